// Bars: how much is done, and how much is used.
import { percent } from "../lib/format.js";
import "./meter.css";

// Work that goes on: <Progress label="steps of first" done={3} total={10} state="running" />
export function Progress({ label, done, total, state }) {
  return (
    <div
      class="bar"
      data-state={state}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={done}
      aria-valuetext={`${done} of ${total}, ${percent(done, total)}`}
    >
      <span style={{ inlineSize: `${total > 0 ? Math.min(100, (100 * done) / total) : 0}%` }} />
    </div>
  );
}

// Something of which there is so much. `text` says the value with its unit.
export function Meter({ label, used, total, text, tone }) {
  return (
    <div
      class="bar"
      data-tone={tone}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={Math.min(used, total)}
      aria-valuetext={text}
    >
      <span style={{ inlineSize: `${total > 0 ? Math.min(100, (100 * used) / total) : 0}%` }} />
    </div>
  );
}
