// Whether the daemon answers.
//
// Whoever finds that it does not says lost(). One probe, with growing pauses, then looks for it on
// behalf of all; they wait for reachable() and go on where they were.
import { signal } from "@preact/signals";

const FIRST_PAUSE_S = 1;
const LONGEST_PAUSE_S = 15;

// state: "connecting", "connected", "lost"; retryAt (of performance.now()): when the next probe is
export const connection = signal({ state: "connecting", retryAt: 0 });

let pause_s = FIRST_PAUSE_S;
let timer;
let waiting = [];

// A random part keeps many pages from coming back in the same moment.
export function jitter(s) {
  return s * (0.8 + 0.4 * Math.random());
}

export function found() {
  if (connection.value.state === "connected") return;
  clearTimeout(timer);
  pause_s = FIRST_PAUSE_S;
  connection.value = { state: "connected", retryAt: 0 };
  for (const go of waiting.splice(0)) go();
}

export function lost() {
  if (connection.value.state !== "lost") plan();
}

// Resolves when the daemon answers, as far as is known.
export function reachable() {
  if (connection.value.state !== "lost") return Promise.resolve();
  return new Promise((resolve) => waiting.push(resolve));
}

function plan() {
  const wait_s = jitter(pause_s);
  pause_s = Math.min(pause_s * 2, LONGEST_PAUSE_S);
  connection.value = { state: "lost", retryAt: performance.now() + wait_s * 1000 };
  clearTimeout(timer);
  timer = setTimeout(probe, wait_s * 1000);
}

async function probe() {
  try {
    await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    found();
  } catch {
    plan();
  }
}

function probeNow() {
  if (connection.value.state !== "lost" || document.hidden) return;
  clearTimeout(timer);
  probe();
}
addEventListener("online", probeNow);
document.addEventListener("visibilitychange", probeNow);
