// Times that pass while one looks.
import { signal } from "@preact/signals";
import { ago, duration, when } from "../lib/format.js";

const TICK_MS = 10000;

const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, TICK_MS);

// "3 min ago"; what happened since the last tick is "just now" all the same
export function Ago({ time }) {
  return (
    <time class="muted number" dateTime={time} title={when(time)}>
      {ago(time, now.value)}
    </time>
  );
}

// "2 h 5 min": how long it is since then
export function Since({ time }) {
  return (
    <time class="number" dateTime={time} title={`since ${when(time)}`}>
      {duration(Math.max(0, Math.floor((now.value - Date.parse(time)) / 1000)))}
    </time>
  );
}
