// Sentences to the reader. say() shows one for a while in the corner, and is read out; <Notice>
// stands in the page where it belongs.
import { signal } from "@preact/signals";
import "./notice.css";

const MOST = 4;
const SHOWN_MS = 8000;

const notes = signal([]);
let next = 1;

function take(id) {
  notes.value = notes.value.filter((note) => note.id !== id);
}

// tone: "info", "good", "bad". What went wrong stays until it is put away.
export function say(text, tone = "info") {
  const id = next++;
  const others = notes.value.filter((note) => note.text !== text);
  notes.value = [...others.slice(1 - MOST), { id, text, tone }];
  if (tone !== "bad") setTimeout(take, SHOWN_MS, id);
}

// Where say() shows itself; once, in the shell. The live region is there before its content is.
export function Notes() {
  return (
    <div class="notes" role="status" aria-live="polite">
      {notes.value.map(({ id, text, tone }) => (
        <div class="note" data-tone={tone} key={id}>
          <span>{text}</span>
          <button type="button" aria-label={`Put away: ${text}`} onClick={() => take(id)}>
            <svg viewBox="0 0 16 16" aria-hidden="true">
              <path d="M4 4l8 8M12 4l-8 8" fill="none" stroke="currentColor" stroke-width="1.6" />
            </svg>
          </button>
        </div>
      ))}
    </div>
  );
}

export function Notice({ tone = "info", children }) {
  return (
    <div class="notice" data-tone={tone} role={tone === "bad" ? "alert" : undefined}>
      {children}
    </div>
  );
}
