// The token that this page speaks with, where the daemon asks for one.
import { signal } from "@preact/signals";

const KEY = "dllmd-token";

// A browser may refuse storage; the token then lasts as long as the page.
function stores() {
  try {
    return [sessionStorage, localStorage];
  } catch {
    return [];
  }
}

function kept() {
  for (const store of stores()) {
    const token = store.getItem(KEY);
    if (token) return token;
  }
  return null;
}

// token: null where there is none; wanted: the sentence with which the daemon asked for one, or null
export const session = signal({ token: kept(), wanted: null });

export function signIn(token, remember) {
  forget();
  const [ofTab, ofBrowser] = stores();
  (remember ? ofBrowser : ofTab)?.setItem(KEY, token);
  session.value = { token, wanted: null };
}

export function signOut() {
  forget();
  session.value = { token: null, wanted: "Signed out." };
}

// The daemon has refused `token`. An answer to an older one says nothing about the present one.
export function refused(token, sentence) {
  if (token !== session.value.token || session.value.wanted) return;
  forget();
  session.value = { token: null, wanted: sentence };
}

// Resolves when there is something new to try.
export function signedIn() {
  return new Promise((resolve) => {
    const stop = session.subscribe(({ wanted }) => {
      if (wanted) return;
      queueMicrotask(() => stop());
      resolve();
    });
  });
}

function forget() {
  for (const store of stores()) store.removeItem(KEY);
}
