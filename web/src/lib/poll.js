// Looking again and again: at a modest rate, only while somebody can see it and the daemon answers.
import { useEffect, useState } from "preact/hooks";
import { get, Problem, Unreachable } from "./client.js";
import { jitter, reachable } from "./connection.js";
import { session, signedIn } from "./session.js";

const AFTER_PROBLEM_S = 5;
const sleepers = new Set();

// All who poll look at once: something was changed from here.
export function lookAgain() {
  for (const wake of [...sleepers]) wake();
}

function sleep(s, signal) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      sleepers.delete(wake);
      signal.removeEventListener("abort", wake);
      resolve();
    };
    const timer = setTimeout(wake, s * 1000);
    sleepers.add(wake);
    signal.addEventListener("abort", wake);
  });
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) =>
    document.addEventListener("visibilitychange", resolve, { once: true }),
  );
}

// Calls look(signal) until the returned function is called. A problem goes to failed(problem), and
// the next look comes all the same.
export function poll(look, every_s, failed) {
  const stop = new AbortController();
  (async () => {
    while (!stop.signal.aborted) {
      let wait_s = every_s;
      try {
        await visible();
        await reachable();
        if (stop.signal.aborted) return;
        await look(stop.signal);
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Unreachable) continue;
        if (!(error instanceof Problem)) throw error;
        if (error.status === 401) await signedIn();
        else failed?.(error);
        wait_s = error.status === 401 ? 0 : (error.retryAfter_s ?? Math.max(every_s, AFTER_PROBLEM_S));
      }
      await sleep(jitter(wait_s), stop.signal);
    }
  })();
  return () => stop.abort();
}

// The resource at `path` (null: none), kept fresh: {value, etag, problem}, all undefined before the
// first answer. With `keep` the old value stays while another path's first answer is awaited.
export function useLive(path, { every_s = 2, keep = false } = {}) {
  const [state, setState] = useState({});
  const { token } = session.value;
  useEffect(() => {
    if (!path) {
      setState({});
      return undefined;
    }
    let etag;
    if (!keep) setState({});
    const look = async (signal) => {
      const answer = await get(path, { etag, signal });
      if (!answer) return;
      etag = answer.etag;
      setState({ path, value: answer.value, etag });
    };
    return poll(look, every_s, (problem) => {
      etag = undefined;
      setState((old) => ({ ...old, path, problem }));
    });
  }, [path, every_s, keep, token]);
  return keep || state.path === path ? state : {};
}
