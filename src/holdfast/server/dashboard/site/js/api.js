// Requests to the server: JSON over HTTP with the caller's key, and streams of server-sent events that reconnect.
//
// The key is stored for this tab, until it is closed (sessionStorage). There is no cookie that a browser sends by itself,
// so no other site can use the key. Streams are read with fetch, since EventSource cannot send a key.

const STORAGE_KEY = "holdfast-key";
const listeners = new Set();

export const apiKey = {
  get: () => sessionStorage.getItem(STORAGE_KEY) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(STORAGE_KEY, value);
    else sessionStorage.removeItem(STORAGE_KEY);
    listeners.forEach((listener) => listener());
  },
  // The listener is called when the key has changed, or was rejected or accepted.
  onChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

let isRejected = false;
export const isKeyRejected = () => isRejected;
function setKeyRejected(value) {
  if (isRejected === value) return;
  isRejected = value;
  listeners.forEach((listener) => listener());
}

// An error response of the server (RFC 9457).
class Problem extends Error {
  constructor(status, details) {
    super(details.detail || details.title || `the server answered ${status}`);
    this.status = status;
    this.title = details.title ?? "";
    this.details = details;
  }
}

const NO_ANSWER = "The server does not answer";
const UNREACHABLE = { title: NO_ANSWER, detail: "The server does not answer. It is asked again." };
const UNCONFIRMED = { title: NO_ANSWER, detail: "The server does not answer, and may have heard this all the same: look whether it was done before you ask for it again." };

export const encodePart = (text) => encodeURIComponent(text);

function buildPath(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function buildHeaders(more = {}) {
  return apiKey.get() ? { Authorization: `Bearer ${apiKey.get()}`, ...more } : more;
}

async function request(path, options) {
  const sentKey = apiKey.get();
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, options.method ? UNCONFIRMED : UNREACHABLE);
  }
  // No other status says whether the key is valid: the server answers 429 and 503 before it looks at the key. And a
  // response to a key that is no longer used says nothing about the current one.
  if ((response.ok || response.status === 401) && sentKey === apiKey.get()) setKeyRejected(!response.ok);
  if (response.ok) return response;
  let details = {};
  try {
    details = await response.json();
  } catch {
    // a response without details
  }
  throw new Problem(response.status, details);
}

export async function get(path, params, signal) {
  const response = await request(buildPath(path, params), { headers: buildHeaders(), signal });
  return response.json();
}

// Up to `maxPages` pages of a list, one after the other: { items, next }.
export async function getPages(path, params, maxPages, signal) {
  const items = [];
  let next = null;
  for (let page = 0; page < maxPages && (next || !page); page += 1) {
    const answer = await get(path, { ...params, cursor: next }, signal);
    items.push(...answer.items);
    next = answer.next;
  }
  return { items, next };
}

async function send(method, path, body) {
  const headers = buildHeaders(body === undefined ? {} : { "Content-Type": "application/json" });
  const response = await request(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const post = (path, body) => send("POST", path, body);
export const put = (path, body) => send("PUT", path, body);
export const patch = (path, body) => send("PATCH", path, body);
export const remove = (path) => send("DELETE", path);

// Follows a stream of events until `signal` is aborted or `onEvent` returns true. A broken stream is reopened after the
// last event; a hidden page closes it, since a browser has few connections for all its tabs.
//   onEvent({ id, event, data }): returns true after the last event.
//   onState("live" | "cut"): whether the stream is open.
//   after: the id of the event after which to begin.
export async function follow(path, { onEvent, onState = () => {}, after = "", signal }) {
  let lastId = after;
  let delayMs = 500;
  while (!signal.aborted) {
    await waitUntilVisible(signal);
    if (signal.aborted) return;
    const connection = new AbortController();
    const stop = () => connection.abort();
    const stopWhenHidden = () => document.hidden && stop();
    signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", stopWhenHidden);
    try {
      const headers = buildHeaders({ Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) });
      const response = await request(path, { headers, signal: connection.signal });
      onState("live");
      delayMs = 500;
      for await (const one of readEvents(response.body)) {
        if (one.id) lastId = one.id;
        if (onEvent(one) === true) return;
      }
    } catch (error) {
      if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) {
        onState("cut");
        return;
      }
    } finally {
      stop(); // after the last event, too: it closes the connection
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", stopWhenHidden);
    }
    if (signal.aborted) return;
    onState("cut");
    await new Promise((done) => setTimeout(done, delayMs));
    delayMs = Math.min(2 * delayMs, 5000);
  }
}

function waitUntilVisible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", check);
      signal.removeEventListener("abort", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    signal.addEventListener("abort", check);
  });
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const one = { id: "", event: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith(":")) continue;
        const colon = line.indexOf(": ");
        if (colon > 0) one[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (one.data) yield { ...one, data: JSON.parse(one.data) };
    }
  }
}
