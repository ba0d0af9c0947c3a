// Data for pages: reloaded when something in the store has changed, and on request.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { apiKey, follow, get } from "./api.js";

// The change feed: one stream for all parts of a page, which also has the numbers of the navigation.
const changes = { number: 0, overview: null, state: "cut", listeners: new Set() };

function notifyListeners() {
  changes.listeners.forEach((listener) => listener({ ...changes }));
}

export function startChangeFeed() {
  let running = new AbortController();
  const start = () => {
    running.abort();
    running = new AbortController();
    follow("/v1/changes", {
      signal: running.signal,
      onEvent({ data }) {
        changes.number += 1;
        changes.overview = data;
        notifyListeners();
      },
      onState(state) {
        if (changes.state === state) return;
        changes.state = state;
        changes.number += 1; // something may have changed meanwhile
        notifyListeners();
      },
    });
  };
  start();
  apiKey.onChange(start);
}

// { number, overview, state }: `number` increases whenever something may have changed.
export function useChangeFeed() {
  const [feed, setFeed] = useState(() => ({ ...changes }));
  useEffect(() => {
    changes.listeners.add(setFeed);
    setFeed({ ...changes });
    return () => changes.listeners.delete(setFeed);
  }, []);
  return feed;
}

// Loads data, and reloads it whenever `deps` or something in the store has changed. The old data stays until the new
// response arrives, and the response to an outdated request is dropped. A change does not abort a request in flight: if
// responses took longer than changes, none would ever arrive. Another request follows it.
//   minIntervalMs: between two requests because of changes, for requests that are much work for the server
//   { data, problem, loading, refresh }
export function useLoader(load, deps = [], { live = true, minIntervalMs = 0 } = {}) {
  const { number } = useChangeFeed();
  const [result, setResult] = useState({ data: null, problem: null, loading: true });
  const [refreshCount, setRefreshCount] = useState(0);
  const token = JSON.stringify(deps);
  const current = useRef({ token: null, refreshCount: 0, controller: null, isStale: false, startedAt: 0, timer: 0 }).current;
  current.load = load;

  const request = () => {
    current.controller?.abort();
    clearTimeout(current.timer);
    const controller = (current.controller = new AbortController());
    current.isStale = false;
    current.startedAt = Date.now();
    const finish = (next) => {
      if (controller.signal.aborted) return;
      current.controller = null;
      setResult(next);
      if (current.isStale) requestLater();
    };
    current.load(controller.signal).then(
      (data) => finish({ data, problem: null, loading: false }),
      (problem) => finish((before) => ({ data: before.data, problem, loading: false })),
    );
  };
  const requestLater = () => {
    clearTimeout(current.timer);
    current.timer = setTimeout(request, Math.max(0, current.startedAt + minIntervalMs - Date.now()));
  };
  useEffect(() => {
    const isNew = current.token !== token;
    const isForced = isNew || current.refreshCount !== refreshCount;
    Object.assign(current, { token, refreshCount });
    if (isNew) setResult((before) => ({ ...before, loading: true }));
    if (isForced) request();
    else if (current.controller) current.isStale = true;
    else requestLater();
  }, [token, refreshCount, live ? number : 0]);
  useEffect(() => () => {
    current.controller?.abort();
    clearTimeout(current.timer);
  }, []);
  const refresh = useCallback(() => setRefreshCount((before) => before + 1), []);
  return { ...result, refresh };
}

export const useGet = (path, params = {}, options = {}) =>
  useLoader((signal) => get(path, params, signal), [path, params], options);

// The current time, updated regularly: for "3 s ago".
export function useNow(intervalMs = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setNow(Date.now()), intervalMs);
    return () => clearInterval(timer);
  }, [intervalMs]);
  return now;
}
