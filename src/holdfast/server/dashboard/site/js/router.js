// Where the reader is: behind the #, so that it can be linked to and gone back to, and no server is told of it.
// `#/runs/etl-acme?tab=conversation` is { page: "runs", arg: "etl-acme", query: { tab: "conversation" } }.

import { useEffect, useState } from "./html.js";

export function parse(hash) {
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

export function href(page, arg = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${page}${arg ? `/${encodeURIComponent(arg)}` : ""}${text ? `?${text}` : ""}`;
}

export function go(page, arg = "", query = {}) {
  location.hash = href(page, arg, query);
}

// Changes the query of the place where the reader is, without another entry to go back over.
export function refine(changes) {
  const { page, arg, query } = parse(location.hash);
  const merged = { ...query, ...changes };
  history.replaceState(null, "", href(page, arg, merged));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const look = () => setRoute(parse(location.hash));
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  }, []);
  return route;
}
