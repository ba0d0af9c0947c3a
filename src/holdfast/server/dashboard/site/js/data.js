// What pages show, and when they ask for it again: when something in the store has changed, and when the reader asks.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { follow, get, key } from "./api.js";

// One stream for all of a page's parts tells that something has changed, with the numbers in the navigation.
const changes = { number: 0, overview: null, state: "cut", listeners: new Set() };

function tell() {
  changes.listeners.forEach((hear) => hear({ ...changes }));
}

export function startChanges() {
  let running = new AbortController();
  const begin = () => {
    running.abort();
    running = new AbortController();
    follow("/v1/changes", {
      signal: running.signal,
      onEvent({ data }) {
        changes.number += 1;
        changes.overview = data;
        tell();
      },
      onState(state) {
        if (changes.state === state) return;
        changes.state = state;
        changes.number += 1; // whatever happened meanwhile
        tell();
      },
    });
  };
  begin();
  key.onChange(begin);
}

// { number, overview, state }: `number` rises whenever something may be new.
export function useChanges() {
  const [seen, setSeen] = useState(() => ({ ...changes }));
  useEffect(() => {
    changes.listeners.add(setSeen);
    setSeen({ ...changes });
    return () => changes.listeners.delete(setSeen);
  }, []);
  return seen;
}

// Asks for something, and again whenever `deps` change or something in the store has; what is shown stays until the new
// answer is there, and an answer that was overtaken by another question is dropped. A change does not cut short what is
// being asked: where answers take longer than changes, none would ever arrive. It is asked again behind it.
//   pace: milliseconds between two questions because of changes, for what is much work to answer
//   { data, problem, loading, again }
export function useLoaded(load, deps = [], { live = true, pace = 0 } = {}) {
  const { number } = useChanges();
  const [told, setTold] = useState({ data: null, problem: null, loading: true });
  const [wish, setWish] = useState(0);
  const token = JSON.stringify(deps);
  const kept = useRef({ token: null, wish: 0, asking: null, isStale: false, begun: 0, timer: 0 }).current;
  kept.load = load;

  const ask = () => {
    kept.asking?.abort();
    clearTimeout(kept.timer);
    const mine = (kept.asking = new AbortController());
    kept.isStale = false;
    kept.begun = Date.now();
    const end = (next) => {
      if (mine.signal.aborted) return;
      kept.asking = null;
      setTold(next);
      if (kept.isStale) askLater();
    };
    kept.load(mine.signal).then(
      (data) => end({ data, problem: null, loading: false }),
      (problem) => end((before) => ({ data: before.data, problem, loading: false })),
    );
  };
  const askLater = () => {
    clearTimeout(kept.timer);
    kept.timer = setTimeout(ask, Math.max(0, kept.begun + pace - Date.now()));
  };
  useEffect(() => {
    const isOther = kept.token !== token;
    const isWished = isOther || kept.wish !== wish;
    Object.assign(kept, { token, wish });
    if (isOther) setTold((before) => ({ ...before, loading: true }));
    if (isWished) ask();
    else if (kept.asking) kept.isStale = true;
    else askLater();
  }, [token, wish, live ? number : 0]);
  useEffect(() => () => {
    kept.asking?.abort();
    clearTimeout(kept.timer);
  }, []);
  const again = useCallback(() => setWish((before) => before + 1), []);
  return { ...told, again };
}

export const useGet = (path, params = {}, options = {}) =>
  useLoaded((signal) => get(path, params, signal), [path, params], options);

// The time, which moves on: for "3 s ago".
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
