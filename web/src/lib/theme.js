// Light, dark, or as the system has it.
import { effect, signal } from "@preact/signals";

const KEY = "dllmd-theme";
const THEMES = ["auto", "light", "dark"];

function kept() {
  try {
    const theme = localStorage.getItem(KEY);
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

export const theme = signal(kept());

// Counts each change of the colours, for what paints with them itself.
export const repaint = signal(0);

export function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // it then holds as long as the page
  }
}

effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  repaint.value = repaint.peek() + 1;
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  repaint.value = repaint.peek() + 1;
});

// The value of a colour that the style sheet names, as canvas understands it.
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
