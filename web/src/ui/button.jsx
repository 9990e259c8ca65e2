import "./button.css";

// kind: "plain", "primary", "danger"; `busy`: it was pressed, and the answer is awaited.
export function Button({ kind = "plain", busy = false, disabled, type = "button", children, ...rest }) {
  return (
    <button class="button" data-kind={kind} type={type} aria-busy={busy} disabled={disabled || busy} {...rest}>
      {children}
    </button>
  );
}
