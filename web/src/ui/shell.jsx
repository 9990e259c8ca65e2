// What stands around every page: the name, where one can go, whether the daemon answers and the
// node is well, the theme, and the token.
import { useEffect, useRef, useState } from "preact/hooks";
import { connection } from "../lib/connection.js";
import { useLive } from "../lib/poll.js";
import { may, useRole } from "../lib/role.js";
import { find, href, place } from "../lib/router.js";
import { session, signOut } from "../lib/session.js";
import { nextTheme, theme } from "../lib/theme.js";
import { Button } from "./button.jsx";
import { Confirmation } from "./dialog.jsx";
import { Notes } from "./notice.jsx";
import { SignIn } from "./signin.jsx";
import "./shell.css";

const SECOND_MS = 1000;

function secondsTo(time) {
  return Math.max(0, Math.ceil((time - performance.now()) / SECOND_MS));
}

function Connection() {
  const { state, retryAt } = connection.value;
  const [, tick] = useState(0);
  useEffect(() => {
    if (state !== "lost") return undefined;
    const timer = setInterval(() => tick((n) => n + 1), SECOND_MS / 4);
    return () => clearInterval(timer);
  }, [state]);
  const left = secondsTo(retryAt);
  return (
    <span class="light" data-tone={state === "lost" ? "bad" : state === "connected" ? "good" : "info"}>
      {/* The countdown would be read out each second: only the change is. */}
      <span role="status">{state === "lost" ? "the daemon does not answer" : state}</span>
      {state === "lost" && <span>; {left ? `trying again in ${left} s` : "trying again"}</span>}
    </span>
  );
}

function Health() {
  const { value, problem } = useLive("/readyz", { every_s: 5 });
  if (connection.value.state !== "connected" || (!value && !problem)) return null;
  const well = value && !problem;
  return (
    <span class="light" data-tone={well ? "good" : "bad"} role="status">
      {well ? "node ready" : problem.message}
    </span>
  );
}

function Theme() {
  return (
    <button class="tool" type="button" onClick={nextTheme}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" />
        <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" />
      </svg>
      Theme: {theme.value}
    </button>
  );
}

function Navigation({ pages, current }) {
  return (
    <nav aria-label="Pages">
      {pages
        .filter((page) => page.nav && (!page.role || may(page.role)))
        .map((page) => (
          <a href={href(page.path)} aria-current={page === current ? "page" : undefined} key={page.path}>
            {page.nav}
          </a>
        ))}
    </nav>
  );
}

function Missing() {
  return (
    <>
      <h1 tabIndex={-1}>There is no such page</h1>
      <p>
        Nothing is at <code>{place.value.path}</code>. <a href={href("/")}>Go to the overview</a>
      </p>
    </>
  );
}

// A page has one <h1 tabIndex={-1}>: it gets the focus when the page changes, so that the keyboard
// and those who listen begin at its top.
function useArrival(key) {
  const first = useRef(true);
  useEffect(() => {
    const heading = document.querySelector("main h1");
    document.title = heading ? `${heading.textContent} · dllmd` : "dllmd";
    if (!first.current) {
      scrollTo(0, 0);
      heading?.focus({ preventScroll: true });
    }
    first.current = false;
  }, [key]);
}

function skip(event) {
  event.preventDefault(); // the part behind "#" is the page's address
  document.querySelector("main").focus();
}

export function Shell({ pages }) {
  const { path } = place.value;
  const { wanted, token } = session.value;
  const found = find(pages, path);
  const Page = found?.page.page ?? Missing;
  useRole();
  useArrival(wanted ? "sign in" : path);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="shell">
        <a class="brand" href={href("/")}>
          dllmd
        </a>
        <Navigation pages={pages} current={found?.page} />
        <div class="shell-state">
          <Health />
          <Connection />
        </div>
        <div class="shell-tools">
          <Theme />
          {token && <Button onClick={signOut}>Sign out</Button>}
        </div>
      </header>
      <main tabIndex={-1}>{wanted ? <SignIn /> : <Page key={path} {...found?.params} />}</main>
      <Confirmation />
      <Notes />
    </>
  );
}
