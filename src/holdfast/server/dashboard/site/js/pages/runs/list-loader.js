// The list of runs as it is asked for: its newest part again whenever something has changed, older parts when the reader
// wants them, and by itself as long as a search has found too little.

import { useEffect, useRef, useState } from "../../html.js";
import { get } from "../../api.js";
import { useChanges } from "../../data.js";
import { asked, merged } from "./list.js";

const PAGE = 50;
const MOST = 500; // the server's largest page

// Tests run it without a browser.
export class Lister {
  constructor(query, isHeld, tell) {
    Object.assign(this, { query, isHeld, tell, pieces: 0, wanted: PAGE, latest: null, byId: [], isAsking: false, isStale: false });
    this.ending = new AbortController();
    this.told = { rows: [], fresh: 0, next: null, until: null, looking: true, loaded: false, problem: null };
  }

  set(changes) {
    this.told = { ...this.told, ...changes };
    if (!this.ending.signal.aborted) this.tell(this.told);
  }

  ask(more) {
    return get("/v1/runs", { ...asked(this.query), ...more }, this.ending.signal);
  }

  async tried(work) {
    try {
      await work();
      this.set({ problem: null });
    } catch (problem) {
      if (!this.ending.signal.aborted) this.set({ problem, looking: false });
    }
  }

  async begin() {
    if (!this.told.looking) this.set({ looking: true });
    await this.tried(async () => {
      await this.findById();
      await this.look(null);
    });
    if (this.isStale && this.told.loaded) await this.refresh();
  }

  // An id, or its beginning, is found at once, however far back it is.
  async findById() {
    const text = this.query.q?.trim();
    if (!text || text.length > 200) return;
    const { text: _, ...others } = asked(this.query);
    this.byId = (await get("/v1/runs", { ...others, id_prefix: text, limit: 5 }, this.ending.signal)).items;
    if (this.byId.length && !this.told.loaded) this.set({ rows: this.byId });
  }

  // From a place on, piece by piece, until there are enough.
  async look(cursor) {
    this.isStopped = false;
    this.set({ looking: true });
    let place = cursor;
    do {
      const page = await this.ask({ limit: PAGE, cursor: place });
      this.pieces += 1;
      if (place === null) this.latest = page;
      const before = place === null ? [] : this.told.rows;
      this.set({ rows: this.withById([...before, ...page.items]), next: page.next, until: page.searched_until, loaded: true });
      place = page.next;
    } while (place && this.told.rows.length < this.wanted && this.told.until && !this.isStopped && !this.ending.signal.aborted);
    this.set({ looking: false });
  }

  older() {
    if (this.told.looking || !this.told.next) return null;
    this.wanted = this.told.rows.length + PAGE;
    return this.tried(() => this.look(this.told.next));
  }

  stop() {
    this.isStopped = true;
  }

  withById(rows) {
    const known = new Set();
    const all = [...this.byId.filter((one) => !rows.some((other) => other.id === one.id)), ...rows];
    return all.filter((one) => !known.has(one.id) && known.add(one.id));
  }

  // Something has changed: the newest part once more. One question at a time; what changes meanwhile is asked for after it.
  async refresh() {
    if (!this.told.loaded && !this.told.looking) return this.begin(); // the first time it could not be asked
    if (!this.told.loaded || this.isAsking) {
      this.isStale = true;
      return undefined;
    }
    this.isAsking = true;
    await this.tried(async () => {
      do {
        this.isStale = false;
        const limit = Math.min(MOST, Math.max(PAGE, this.told.rows.length));
        this.latest = await this.ask({ limit });
        this.merge(this.isHeld());
      } while (this.isStale && !this.ending.signal.aborted);
    });
    this.isAsking = false;
    return undefined;
  }

  merge(hold) {
    const only = this.pieces === 1 && !hold && !this.told.looking; // nobody asks for older ones: the list does not grow by itself
    const { rows, fresh } = merged(only ? [] : this.told.rows, this.latest, hold);
    const next = only || this.latest.next === null ? this.latest.next : this.told.next;
    this.set({ rows: this.withById(rows), fresh, next, until: only ? this.latest.searched_until : this.told.until });
  }

  // What came meanwhile.
  show() {
    if (this.latest) this.merge(false);
  }
}

// { rows, fresh, next, until, looking, loaded, problem } and what the reader can do: older, stop, show, again.
//   isHeld: () => whether nothing may move now.
export function useRuns(query, isHeld) {
  const { number } = useChanges();
  const [told, setTold] = useState(null);
  const [round, setRound] = useState(0);
  const lister = useRef(null);
  const { state, workflow, tag, parent, q, since } = query;
  useEffect(() => {
    const mine = (lister.current = new Lister({ state, workflow, tag, parent, q, since }, isHeld, setTold));
    mine.begin();
    return () => mine.ending.abort();
  }, [state, workflow, tag, parent, q, since, round]);
  const first = useRef(number);
  useEffect(() => {
    if (first.current !== number) lister.current?.refresh();
    first.current = number;
  }, [number]);
  const doing = {
    older: () => lister.current.older(),
    stop: () => lister.current.stop(),
    show: () => lister.current.show(),
    refresh: () => lister.current.refresh(),
    again: () => setRound((before) => before + 1),
  };
  return { ...(told ?? { rows: [], fresh: 0, next: null, until: null, looking: true, loaded: false, problem: null }), ...doing };
}
