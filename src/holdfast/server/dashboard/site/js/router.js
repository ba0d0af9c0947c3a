// The current page: its address is after the #, so that links and the back button work, and it reaches no server.
// `#/runs/etl-acme?tab=conversation` is { page: "runs", arg: "etl-acme", query: { tab: "conversation" } }.

import { useEffect, useState } from "./html.js";

export function parseHash(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  let arg = "";
  try {
    arg = decodeURIComponent(rest.join("/"));
  } catch {
    arg = rest.join("/");
  }
  return { page: page || "runs", arg, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function buildHref(page, arg = "", query = {}) {
  const filled = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(filled).toString();
  return `#/${page}${arg ? `/${encodeURIComponent(arg)}` : ""}${text ? `?${text}` : ""}`;
}

export function navigate(page, arg = "", query = {}) {
  location.hash = buildHref(page, arg, query);
}

// Changes the query of the current page, without another entry in the history.
export function updateQuery(changes) {
  const { page, arg, query } = parseHash(location.hash);
  const updated = { ...query, ...changes };
  history.replaceState(null, "", buildHref(page, arg, updated));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parseHash(location.hash));
  useEffect(() => {
    const update = () => setRoute(parseHash(location.hash));
    window.addEventListener("hashchange", update);
    return () => window.removeEventListener("hashchange", update);
  }, []);
  return route;
}
