// A dllmd of the test's own: a directory, a free port that stays the same over restarts, and the
// real worker or the fake one (tests/integration/fake_worker.c).
import { spawn } from "node:child_process";
import { createWriteStream, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const PROGRAMS = { real: process.env.DLLM_WORKER, fake: process.env.FAKE_WORKER };
const WAIT_MS = 120_000;

// What becomes true, sooner or later.
export async function until(what, look) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`it does not come to be that ${what}`);
    await sleep(50);
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

// Text that can be learnt: few words, in order.
function corpus() {
  const words = "the quick brown fox jumps over the lazy dog and runs away".split(" ");
  const lines = [];
  for (let i = 0; i < 600; i++) {
    const text = Array.from({ length: 24 }, (_, k) => words[(i * 7 + k) % words.length]);
    lines.push(JSON.stringify({ text: text.join(" ") }));
  }
  return `${lines.join("\n")}\n`;
}

export class Daemon {
  // worker: "real" or "fake"; settings: of dllmd.json, besides those here
  static async start({ worker = "fake", settings = {} } = {}) {
    const daemon = new Daemon();
    daemon.directory = mkdtempSync(join(tmpdir(), "dllmd-e2e-"));
    daemon.state = join(daemon.directory, "state");
    daemon.worker = PROGRAMS[worker];
    daemon.port = await freePort();
    daemon.url = `http://127.0.0.1:${daemon.port}`;
    mkdirSync(daemon.state);
    daemon.data = join(daemon.directory, "train.jsonl");
    writeFileSync(daemon.data, corpus());
    daemon.config = join(daemon.directory, "dllmd.json");
    const all = {
      roots: [daemon.directory],
      slots: 4,
      stop_timeout_s: 1,
      term_timeout_s: 1,
      backoff_s: 0.05,
      launcher: "plain",
      ...settings,
    };
    writeFileSync(daemon.config, JSON.stringify(all));
    await daemon.restart();
    return daemon;
  }

  flags() {
    return ["--config", this.config, "--state", this.state];
  }

  async restart() {
    const log = createWriteStream(join(this.directory, "dllmd.log"), { flags: "a" });
    const flags = ["--listen", `127.0.0.1:${this.port}`, "--worker", this.worker];
    this.process = spawn(process.env.DLLMD, [...this.flags(), ...flags], { cwd: "/" });
    this.process.stderr.pipe(log);
    this.process.stdout.pipe(log);
    await until("the daemon is ready", async () => {
      if (this.process.exitCode !== null) throw new Error("the daemon ended at its start");
      return fetch(`${this.url}/readyz`).then((r) => r.ok, () => false);
    });
  }

  // signal: "SIGTERM", "SIGKILL"; its workers go on
  async end(signal) {
    const gone = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill(signal);
    await gone;
  }

  // Ends it, its workers and its files.
  async close() {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const { jobs } = await this.get("/v1/jobs?state=queued,preparing,starting,running,restarting,paused&limit=500");
      await Promise.all(jobs.map(({ id }) => this.ask("POST", `/v1/jobs/${id}/cancel`)));
      await until("nothing runs", async () => {
        const left = await this.get("/v1/jobs?state=preparing,starting,running,restarting");
        const tasks = await this.get("/v1/tasks?limit=500");
        return !left.jobs.length && !tasks.tasks.some((task) => task.state === "running");
      });
      await this.end("SIGTERM");
    }
    rmSync(this.directory, { recursive: true, force: true });
  }

  async ask(method, path, body) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  get(path) {
    return this.ask("GET", path);
  }

  // A tiny model; `changes` replace whole members of the spec. With the fake worker the name says
  // what it shall do.
  spec(name, changes = {}) {
    return {
      name,
      device: "cpu",
      model: {
        init: "random",
        config: {
          model_type: "qwen3",
          hidden_size: 32,
          intermediate_size: 64,
          num_hidden_layers: 2,
          num_attention_heads: 4,
          num_key_value_heads: 2,
          head_dim: 8,
          vocab_size: 260,
          tie_word_embeddings: true,
        },
      },
      objective: { type: "block_diffusion", block_size: 16 },
      data: { path: this.data, sequence_length: 128 },
      parallel: { mode: "csbp", degree: 2 },
      batch: { sequences: 4 },
      optimizer: { lr: 0.01 },
      steps: 20,
      restart: { max: 0 },
      ...changes,
    };
  }

  // Answers with the job's id.
  async submit(name, changes) {
    return (await this.ask("POST", "/v1/jobs", this.spec(name, changes))).id;
  }

  job(id) {
    return this.get(`/v1/jobs/${id}`);
  }

  async inState(id, ...states) {
    const over = ["succeeded", "failed", "cancelled"];
    return until(`job ${id} is ${states.join(" or ")}`, async () => {
      const job = await this.job(id);
      if (states.includes(job.state)) return job;
      if (over.includes(job.state)) throw new Error(`job ${id} is ${job.state}: ${job.reason}`);
      return null;
    });
  }
}
