// Pages by the part of the address behind "#", so that the daemon serves one page and any place in
// it can be linked to: "#/jobs/12?tab=logs".
import { signal } from "@preact/signals";

function parse() {
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  return { path, query: Object.fromEntries(new URLSearchParams(query)) };
}

export const place = signal(parse());
addEventListener("hashchange", () => {
  place.value = parse();
});

// "#/jobs/12?tab=logs"; parameters that are empty are left out
export function href(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return `#${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function go(path, query) {
  location.hash = href(path, query);
}

// The same page with other parameters, without a new entry in the browser's history.
export function replaceQuery(query) {
  history.replaceState(null, "", href(place.value.path, query));
  place.value = parse();
}

// {page, params} of the first page whose path, "/jobs/:id", is this one; null: none.
export function find(pages, path) {
  for (const page of pages) {
    const params = matches(page.path, path);
    if (params) return { page, params };
  }
  return null;
}

function matches(pattern, path) {
  const wanted = pattern.split("/");
  const parts = path.split("/");
  if (wanted.length !== parts.length) return null;
  const params = {};
  for (let i = 0; i < wanted.length; i++) {
    if (wanted[i].startsWith(":") && parts[i]) params[wanted[i].slice(1)] = decodeURIComponent(parts[i]);
    else if (wanted[i] !== parts[i]) return null;
  }
  return params;
}
