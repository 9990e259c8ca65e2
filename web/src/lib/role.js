// What the reader may do here: a page shows no action that the daemon would refuse.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useLive } from "./poll.js";

const ROLES = ["read", "submit", "admin"];

// The role of this page's token; undefined before the daemon has said it
export const role = signal();

export function may(needed) {
  return ROLES.indexOf(role.value) >= ROLES.indexOf(needed);
}

// Keeps it; once, in the shell.
export function useRole() {
  const { value } = useLive("/v1/me", { every_s: 60 });
  useEffect(() => {
    role.value = value?.role;
  }, [value]);
}
