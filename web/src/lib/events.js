// Server-sent events by fetch(), since EventSource cannot send a token.
//
// The stream goes on behind the last event that came (Last-Event-ID), after a restart of the daemon
// as after a broken line, so that no event is missed and none comes twice.
import { Problem, send, Unreachable } from "./client.js";
import { jitter, reachable } from "./connection.js";
import { EventParser } from "./eventparser.js";
import { signedIn } from "./session.js";

const RETRY_S = 2;
const LONGEST_RETRY_S = 30;
const SILENCE_MS = 45000; // the daemon sends a comment each 15 s

// Follows the events at `path` behind the id `after` (default: all there are). on(event) gets the
// JSON of each; ended(problem) is called once: undefined when there is nothing more to come, else
// why not. The returned function stops it all.
export function follow(path, { after, on, ended }) {
  const stop = new AbortController();
  let last = after;
  let wait_s = RETRY_S;

  const parserOf = () =>
    new EventParser(({ id, data }) => {
      last = id ?? last;
      wait_s = RETRY_S;
      on(JSON.parse(data));
    });

  // True: the daemon says that nothing more comes.
  async function read() {
    const headers = { Accept: "text/event-stream" };
    if (last !== undefined) headers["Last-Event-ID"] = String(last);
    const silence = new AbortController();
    const give_up = () => silence.abort();
    let timer = setTimeout(give_up, SILENCE_MS);
    const abort = () => silence.abort();
    stop.signal.addEventListener("abort", abort);
    try {
      const response = await send(path, { headers, signal: silence.signal });
      if (response.status === 204) return true;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = parserOf();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || stop.signal.aborted) break;
        clearTimeout(timer);
        timer = setTimeout(give_up, SILENCE_MS);
        parser.feed(value);
      }
      if (parser.retry_s !== undefined) wait_s = parser.retry_s;
      return false;
    } finally {
      clearTimeout(timer);
      stop.signal.removeEventListener("abort", abort);
      silence.abort();
    }
  }

  (async () => {
    while (!stop.signal.aborted) {
      try {
        await reachable();
        if (await read()) {
          ended?.();
          return;
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Problem && error.status === 401) {
          await signedIn();
          continue;
        }
        if (error instanceof Problem && error.status < 500 && error.status !== 429) {
          ended?.(error);
          return;
        }
        if (error instanceof Unreachable) continue;
        wait_s = error.retryAfter_s ?? Math.min(wait_s * 2, LONGEST_RETRY_S);
      }
      await new Promise((resolve) => setTimeout(resolve, jitter(wait_s) * 1000));
    }
  })();
  return () => stop.abort();
}
