// One node: its slots, and who it is.
import { useLive } from "../../lib/poll.js";
import { ago, bytes, count } from "../../lib/format.js";
import { Meter } from "../../ui/meter.jsx";

const HOLDS_SLOTS = ["starting", "running"];

// The ranks on CPUs or GPUs; a rank holds a slot.
function used(jobs, device) {
  return jobs
    .filter((job) => job.device === device && HOLDS_SLOTS.includes(job.state))
    .reduce((sum, job) => sum + job.world, 0);
}

function Slots({ name, used: taken, total }) {
  const text = `${count(taken)} of ${count(total)} in use, ${count(Math.max(0, total - taken))} free`;
  return (
    <div class="slots">
      <span class="muted">{name}</span>
      <Meter label={name} used={taken} total={total} text={text} />
      <span class="number">{text}</span>
    </div>
  );
}

export function Node({ node, active }) {
  const tasks = useLive("/v1/tasks?limit=20", { every_s: 5 });
  const running = tasks.value?.tasks.filter((task) => task.state === "running").length ?? 0;
  const { memory_bytes, cores } = node.resources;
  return (
    <section class="node" aria-label={`Node ${node.name}`}>
      <div class="node-name">
        <strong>{node.name}</strong>
        <span class="light" data-tone={node.draining ? "warn" : "good"}>
          {node.draining ? "draining: takes no new work" : "takes work"}
        </span>
      </div>
      <Slots name="CPU slots" used={used(active, "cpu") + running} total={node.cpu_slots} />
      {node.gpu_slots > 0 && <Slots name="GPUs" used={used(active, "cuda")} total={node.gpu_slots} />}
      <p class="node-facts muted number">
        {[
          memory_bytes && `${bytes(memory_bytes)} of memory`,
          cores && `${count(cores)} cores`,
          node.gpu_slots === 0 && "no GPU",
          `dllmd ${node.version}`,
          `seen ${ago(node.seen_at)}`,
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
    </section>
  );
}
