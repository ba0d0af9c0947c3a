// Loads the list of runs: it reloads the newest page whenever something has changed, loads older pages on request, and
// loads more pages by itself while a search has found too little.

import { useEffect, useRef, useState } from "../../html.js";
import { get } from "../../api.js";
import { useChangeFeed } from "../../data.js";
import { buildQuery, mergePage } from "./list.js";

const PAGE_SIZE = 50;
const MAX_PAGE_SIZE = 500; // the server's largest page

// Tests run it without a browser.
export class RunListLoader {
  constructor(query, isHeld, onChange) {
    Object.assign(this, { query, isHeld, onChange, loadedPages: 0, wantedCount: PAGE_SIZE, latest: null, foundById: [], isRefreshing: false, isStale: false });
    this.controller = new AbortController();
    this.state = { rows: [], newCount: 0, next: null, searchedUntil: null, isSearching: true, isLoaded: false, problem: null };
  }

  update(changes) {
    this.state = { ...this.state, ...changes };
    if (!this.controller.signal.aborted) this.onChange(this.state);
  }

  fetchPage(more) {
    return get("/v1/runs", { ...buildQuery(this.query), ...more }, this.controller.signal);
  }

  async catchProblem(work) {
    try {
      await work();
      this.update({ problem: null });
    } catch (problem) {
      if (!this.controller.signal.aborted) this.update({ problem, isSearching: false });
    }
  }

  async start() {
    if (!this.state.isSearching) this.update({ isSearching: true });
    await this.catchProblem(async () => {
      await this.findById();
      await this.loadPages(null);
    });
    if (this.isStale && this.state.isLoaded) await this.refresh();
  }

  // An id, or its beginning, is found at once, however far back it is.
  async findById() {
    const text = this.query.q?.trim();
    if (!text || text.length > 200) return;
    const { text: _, ...others } = buildQuery(this.query);
    this.foundById = (await get("/v1/runs", { ...others, id_prefix: text, limit: 5 }, this.controller.signal)).items;
    if (this.foundById.length && !this.state.isLoaded) this.update({ rows: this.foundById });
  }

  // Loads from a cursor on, page by page, until there are enough runs.
  async loadPages(cursor) {
    this.isStopped = false;
    this.update({ isSearching: true });
    let position = cursor;
    do {
      const page = await this.fetchPage({ limit: PAGE_SIZE, cursor: position });
      this.loadedPages += 1;
      if (position === null) this.latest = page;
      const before = position === null ? [] : this.state.rows;
      this.update({ rows: this.addFoundById([...before, ...page.items]), next: page.next, searchedUntil: page.searched_until, isLoaded: true });
      position = page.next;
    } while (position && this.state.rows.length < this.wantedCount && this.state.searchedUntil && !this.isStopped && !this.controller.signal.aborted);
    this.update({ isSearching: false });
  }

  loadOlder() {
    if (this.state.isSearching || !this.state.next) return null;
    this.wantedCount = this.state.rows.length + PAGE_SIZE;
    return this.catchProblem(() => this.loadPages(this.state.next));
  }

  stopSearch() {
    this.isStopped = true;
  }

  addFoundById(rows) {
    const known = new Set();
    const combined = [...this.foundById.filter((one) => !rows.some((other) => other.id === one.id)), ...rows];
    return combined.filter((one) => !known.has(one.id) && known.add(one.id));
  }

  // Something has changed: reloads the newest page. One request at a time; a change meanwhile causes another one.
  async refresh() {
    if (!this.state.isLoaded && !this.state.isSearching) return this.start(); // the first request failed
    if (!this.state.isLoaded || this.isRefreshing) {
      this.isStale = true;
      return undefined;
    }
    this.isRefreshing = true;
    await this.catchProblem(async () => {
      do {
        this.isStale = false;
        const limit = Math.min(MAX_PAGE_SIZE, Math.max(PAGE_SIZE, this.state.rows.length));
        this.latest = await this.fetchPage({ limit });
        this.merge(this.isHeld());
      } while (this.isStale && !this.controller.signal.aborted);
    });
    this.isRefreshing = false;
    return undefined;
  }

  merge(isHeld) {
    const isFirstPage = this.loadedPages === 1 && !isHeld && !this.state.isSearching; // without older pages, the list does not grow by itself
    const { rows, newCount } = mergePage(isFirstPage ? [] : this.state.rows, this.latest, isHeld);
    const next = isFirstPage || this.latest.next === null ? this.latest.next : this.state.next;
    this.update({ rows: this.addFoundById(rows), newCount, next, searchedUntil: isFirstPage ? this.latest.searched_until : this.state.searchedUntil });
  }

  // Shows the runs that arrived while the list was held.
  showNew() {
    if (this.latest) this.merge(false);
  }
}

// { rows, newCount, next, searchedUntil, isSearching, isLoaded, problem }, and the actions loadOlder, stopSearch,
// showNew, refresh, and restart.
//   isHeld: () => whether the list must not move now.
export function useRunList(query, isHeld) {
  const { number } = useChangeFeed();
  const [listState, setListState] = useState(null);
  const [round, setRound] = useState(0);
  const loader = useRef(null);
  const { state, workflow, tag, parent, q, since } = query;
  useEffect(() => {
    const created = (loader.current = new RunListLoader({ state, workflow, tag, parent, q, since }, isHeld, setListState));
    created.start();
    return () => created.controller.abort();
  }, [state, workflow, tag, parent, q, since, round]);
  const lastNumber = useRef(number);
  useEffect(() => {
    if (lastNumber.current !== number) loader.current?.refresh();
    lastNumber.current = number;
  }, [number]);
  const actions = {
    loadOlder: () => loader.current.loadOlder(),
    stopSearch: () => loader.current.stopSearch(),
    showNew: () => loader.current.showNew(),
    refresh: () => loader.current.refresh(),
    restart: () => setRound((before) => before + 1),
  };
  return { ...(listState ?? { rows: [], newCount: 0, next: null, searchedUntil: null, isSearching: true, isLoaded: false, problem: null }), ...actions };
}
