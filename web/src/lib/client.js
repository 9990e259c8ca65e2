// Requests to the daemon: JSON there and back, problem documents (RFC 9457) as exceptions.
import { found, lost } from "./connection.js";
import { refused, session } from "./session.js";

const TIMEOUT_MS = 30000;

// What the daemon refused, and why.
export class Problem extends Error {
  constructor(status, document, retryAfter_s) {
    super(document.detail ?? document.title ?? `The daemon answered ${status}.`);
    this.status = status;
    this.word = (document.type ?? "").replace("urn:dllmd:problem:", "");
    // [{pointer: "/optimizer/lr" or parameter: "limit", detail}]
    this.errors = document.errors ?? [];
    this.retryAfter_s = retryAfter_s;
  }

  // The sentence about one field, "/optimizer/lr"; undefined: nothing is wrong with it.
  of(pointer) {
    return this.errors.find((error) => error.pointer === pointer)?.detail;
  }
}

// The daemon does not answer.
export class Unreachable extends Error {
  constructor() {
    super("The daemon does not answer.");
  }
}

// A fetch() with the token. Throws Problem, Unreachable, or AbortError when `signal` says so.
export async function send(path, { method = "GET", headers = {}, body, signal, token } = {}) {
  const used = token ?? session.value.token;
  const all = { ...headers };
  if (used) all.Authorization = `Bearer ${used}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: all,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
    lost();
    throw new Unreachable();
  }
  found();
  if (response.ok || response.status === 304) return response;
  const problem = await readProblem(response);
  if (problem.status === 401 && token === undefined) refused(used, problem.message);
  throw problem;
}

async function readProblem(response) {
  const retryAfter_s = Number(response.headers.get("Retry-After")) || undefined;
  let document = {};
  try {
    document = await response.json();
  } catch {
    // what stands between the daemon and this page may answer in another way
  }
  return new Problem(response.status, document, retryAfter_s);
}

function timed(signal) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  return signal && AbortSignal.any ? AbortSignal.any([signal, limit]) : (signal ?? limit);
}

async function readJson(response) {
  try {
    return await response.json();
  } catch {
    lost(); // it broke off
    throw new Unreachable();
  }
}

// {value, etag}; null when the resource still has the given etag.
export async function get(path, { etag, signal, token } = {}) {
  const headers = etag ? { "If-None-Match": etag } : {};
  const response = await send(path, { headers, signal: timed(signal), token });
  if (response.status === 304) return null;
  return { value: await readJson(response), etag: response.headers.get("ETag") };
}

// A change. It carries a key, so that a repetition after a broken connection does nothing twice;
// with `etag` it is done only while the resource is the one that was looked at. Answers with the
// JSON, or undefined where there is none.
export async function act(method, path, { body, etag, key = newKey(), signal } = {}) {
  const headers = {};
  if (etag) headers["If-Match"] = etag;
  if (method === "POST") headers["Idempotency-Key"] = key;
  const response = await send(path, { method, headers, body, signal: timed(signal) });
  return response.status === 204 ? undefined : readJson(response);
}

// crypto.randomUUID() is there in secure contexts only, and a node may be reached over plain HTTP.
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
