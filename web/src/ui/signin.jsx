// Asks for a token when the daemon does.
import { useState } from "preact/hooks";
import { get } from "../lib/client.js";
import { session, signIn } from "../lib/session.js";
import { Button } from "./button.jsx";
import { Notice } from "./notice.jsx";
import "./signin.css";

export function SignIn() {
  const [token, setToken] = useState("");
  const [remember, setRemember] = useState(false);
  const [wrong, setWrong] = useState(null);
  const [busy, setBusy] = useState(false);

  async function enter(event) {
    event.preventDefault();
    setBusy(true);
    try {
      await get("/v1/nodes", { token: token.trim() });
      signIn(token.trim(), remember);
    } catch (error) {
      setWrong(error.message);
      setBusy(false);
    }
  }

  return (
    <form class="signin" onSubmit={enter}>
      <h1 tabIndex={-1}>Sign in</h1>
      <p class="muted">{session.value.wanted}</p>
      {wrong && <Notice tone="bad">{wrong}</Notice>}
      <label for="token">Token</label>
      <input
        id="token"
        type="password"
        autocomplete="current-password"
        spellcheck={false}
        required
        value={token}
        onInput={(event) => setToken(event.target.value)}
      />
      <label class="signin-remember">
        <input
          type="checkbox"
          checked={remember}
          onChange={(event) => setRemember(event.target.checked)}
        />
        Remember it in this browser, not only in this tab
      </label>
      <Button type="submit" kind="primary" busy={busy}>
        Sign in
      </Button>
    </form>
  );
}
