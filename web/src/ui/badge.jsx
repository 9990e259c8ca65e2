// A state as a shape, a word and a colour; any one of them is enough to read it.
import "./badge.css";

const shapes = {
  queued: <circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2" />,
  preparing: (
    <>
      <circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2" />
      <path d="M8 8V2.5A5.5 5.5 0 0 1 13.5 8z" fill="currentColor" />
    </>
  ),
  starting: (
    <>
      <circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2" />
      <path d="M8 2.5a5.5 5.5 0 0 1 0 11z" fill="currentColor" />
    </>
  ),
  running: <path d="M4 2.5v11l9-5.5z" fill="currentColor" />,
  restarting: (
    <path
      d="M13 8a5 5 0 1 1-1.6-3.7M13.5 1.5v3.8H9.7"
      fill="none"
      stroke="currentColor"
      stroke-width="2"
    />
  ),
  paused: <path d="M3.5 3h3v10h-3zM9.5 3h3v10h-3z" fill="currentColor" />,
  succeeded: <path d="M2.5 8.5 6.5 12.5 13.5 4" fill="none" stroke="currentColor" stroke-width="2.4" />,
  failed: <path d="M3.5 3.5l9 9M12.5 3.5l-9 9" fill="none" stroke="currentColor" stroke-width="2.4" />,
  cancelled: (
    <>
      <circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2" />
      <path d="M4.2 11.8l7.6-7.6" stroke="currentColor" stroke-width="2" />
    </>
  ),
};

// The states of jobs and tasks, in the order of a job's life.
export const STATES = Object.keys(shapes);

export function Badge({ state }) {
  return (
    <span class="badge" data-state={state}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        {shapes[state] ?? shapes.queued}
      </svg>
      {state}
    </span>
  );
}
