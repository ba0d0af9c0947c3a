// Asking the server: JSON over HTTP with the reader's key, and streams of server-sent events that come back by themselves.
//
// The key is kept for this tab and as long as it is open (sessionStorage): no cookie goes along by itself, so no other
// site can use it. Streams are read with fetch, since EventSource cannot send a key.

const KEY = "holdfast-key";
const listeners = new Set();

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
    listeners.forEach((tell) => tell());
  },
  // Is told when the key has changed, or is not (any more) valid.
  onChange(tell) {
    listeners.add(tell);
    return () => listeners.delete(tell);
  },
};

let refused = false;
export const isRefused = () => refused;
function refuse(value) {
  if (refused === value) return;
  refused = value;
  listeners.forEach((tell) => tell());
}

// An answer that is an error, as the server tells it (RFC 9457).
class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the server answered ${status}`);
    this.status = status;
    this.title = told.title ?? "";
    this.told = told;
  }
}

const SILENT = "The server does not answer";
const UNREACHABLE = { title: SILENT, detail: "The server does not answer. It is asked again." };
const UNHEARD = { title: SILENT, detail: "The server does not answer, and may have heard this all the same: look whether it was done before you ask for it again." };

export const part = (text) => encodeURIComponent(text);

function pathWith(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function headersFor(more = {}) {
  return key.get() ? { Authorization: `Bearer ${key.get()}`, ...more } : more;
}

async function asked(path, options) {
  const shown = key.get();
  let answer;
  try {
    answer = await fetch(path, { ...options, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, options.method ? UNHEARD : UNREACHABLE);
  }
  // Nothing else tells whether the key is known: who asks too often, or whose store is away, is told so before anybody looks at
  // it. An answer to a key that is not used any more says nothing about the one that is.
  if ((answer.ok || answer.status === 401) && shown === key.get()) refuse(!answer.ok);
  if (answer.ok) return answer;
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // no words, then
  }
  throw new Problem(answer.status, told);
}

export async function get(path, params, signal) {
  const answer = await asked(pathWith(path, params), { headers: headersFor(), signal });
  return answer.json();
}

// So many pages of a list, one behind the other: { items, next }.
export async function getPages(path, params, many, signal) {
  const items = [];
  let next = null;
  for (let page = 0; page < many && (next || !page); page += 1) {
    const told = await get(path, { ...params, cursor: next }, signal);
    items.push(...told.items);
    next = told.next;
  }
  return { items, next };
}

async function send(method, path, body) {
  const headers = headersFor(body === undefined ? {} : { "Content-Type": "application/json" });
  const answer = await asked(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export const post = (path, body) => send("POST", path, body);
export const put = (path, body) => send("PUT", path, body);
export const patch = (path, body) => send("PATCH", path, body);
export const remove = (path) => send("DELETE", path);

// Follows a stream of events until `signal` is aborted or an event tells the end. A cut stream is opened again behind
// the last event; a hidden page lets go of it, since a browser has few connections for all its tabs.
//   onEvent({ id, event, data }): returns true when there is nothing more to come.
//   onState("live" | "cut"): whether the stream is open.
//   after: the id of the event behind which to begin.
export async function follow(path, { onEvent, onState = () => {}, after = "", signal }) {
  let last = after;
  let pause = 500;
  while (!signal.aborted) {
    await visible(signal);
    if (signal.aborted) return;
    const cut = new AbortController();
    const stop = () => cut.abort();
    const hide = () => document.hidden && stop();
    signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", hide);
    try {
      const headers = headersFor({ Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) });
      const answer = await asked(path, { headers, signal: cut.signal });
      onState("live");
      pause = 500;
      for await (const one of events(answer.body)) {
        if (one.id) last = one.id;
        if (onEvent(one) === true) return;
      }
    } catch (error) {
      if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) {
        onState("cut");
        return;
      }
    } finally {
      stop(); // whoever has heard the end lets go of the connection
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", hide);
    }
    if (signal.aborted) return;
    onState("cut");
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, 5000);
  }
}

function visible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
  });
}

async function* events(body) {
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
