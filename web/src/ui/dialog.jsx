// Dialogs over the page. The browser's own <dialog> keeps the focus inside, gives it back, and
// closes on Escape.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./button.jsx";
import "./dialog.css";

export function Dialog({ title, onClose, children }) {
  const element = useRef();
  useEffect(() => {
    element.current.showModal();
  }, []);
  return (
    <dialog class="dialog" ref={element} aria-labelledby="dialog-title" onClose={onClose}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

const asked = signal(null);

// Asks before something that cannot be taken back: await confirm({title, text, action: "Cancel the
// job", danger: true}) is true when it shall be done.
export function confirm(question) {
  return new Promise((resolve) => {
    asked.value = { ...question, resolve };
  });
}

// Where confirm() shows itself; once, in the shell.
export function Confirmation() {
  const question = asked.value;
  if (!question) return null;
  const answer = (yes) => {
    asked.value = null;
    question.resolve(yes);
  };
  return (
    <Dialog title={question.title} onClose={() => answer(false)}>
      <p>{question.text}</p>
      <div class="dialog-actions">
        <Button onClick={() => answer(false)}>{question.dismiss ?? "Go back"}</Button>
        <Button kind={question.danger ? "danger" : "primary"} onClick={() => answer(true)}>
          {question.action}
        </Button>
      </div>
    </Dialog>
  );
}
