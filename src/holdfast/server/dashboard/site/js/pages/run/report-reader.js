// A run's story, kept up to date: read page by page, and from then on only what is new.
//
// The run's own events tell at once that something has happened in it, and what its model is saying; the store's changes
// tell what has no event, such as another worker that has taken it, and are there after a run has ended, too. Both only
// say when to look: what is shown is always read. So it does not matter whether one of them is cut for a while.

import { useCallback, useEffect, useRef, useState } from "../../html.js";
import { follow, get, part } from "../../api.js";
import { useChanges } from "../../data.js";
import { begun, heard } from "./live-events.js";
import { isEnded, isReopened, merged } from "./rows.js";

const PAGE = 500;
const GATHER = 120; // milliseconds, at least, in which events are gathered before the story is read; twice as long as that took
const AGAIN = 2000; // milliseconds after which a server that did not answer is asked again
const SILENCE = 5000; // milliseconds after which a run that has not ended is looked at anyway: a death tells nobody of itself

// { story, problem, answers, flights, events, again }: `events` rises with each event that was heard.
export function useStory(id) {
  const [told, setTold] = useState({ story: null, problem: null });
  const [answers, setAnswers] = useState({});
  const [flights, setFlights] = useState({});
  const [events, setEvents] = useState(0);
  const [round, setRound] = useState(0);
  const { number } = useChanges();
  const reader = useRef(null);
  if (reader.current === null) reader.current = new Reader(id, setTold);

  useEffect(() => () => reader.current.stop(), []);
  useEffect(() => reader.current.look(), [number]);
  const again = useCallback(() => reader.current.look(), []);

  useEffect(() => {
    const timer = setInterval(() => document.hidden || (reader.current.story && isEnded(reader.current.story.state)) || again(), SILENCE);
    return () => clearInterval(timer);
  }, []);

  const isThere = told.story !== null;
  const isOver = isThere && isEnded(told.story.state);
  useEffect(() => {
    if (!isThere || isOver) return undefined;
    const stop = new AbortController();
    let behind = 0; // events that were put off, so that many at once are one change of the page
    let fresh = [];
    const hear = () => {
      behind = 0;
      const some = fresh;
      fresh = [];
      setAnswers((before) => some.reduce(heard, before));
      setFlights((before) => some.reduce(begun, before));
      setEvents((before) => before + some.length);
    };
    follow(`/v1/runs/${part(id)}/events`, {
      after: reader.current.story.event_offset ?? "",
      signal: stop.signal,
      onEvent({ data }) {
        fresh.push(data);
        if (!behind) behind = requestAnimationFrame(hear);
        if (data.kind === "text") return false; // nothing is recorded by it
        reader.current.look(data.kind === "reopened");
        if (data.kind !== "ended") return false;
        setTimeout(() => stop.signal.aborted || setRound((before) => before + 1), 500); // should it go on after all
        return true;
      },
    });
    return () => {
      stop.abort();
      if (behind) cancelAnimationFrame(behind);
    };
  }, [id, isThere, isOver, round]);
  return { ...told, answers, flights, events, again };
}

// Reads a story: one request at a time, and one more if something was new meanwhile.
class Reader {
  constructor(id, tell) {
    this.id = id;
    this.tell = tell;
    this.story = null;
    this.busy = false;
    this.wanted = false;
    this.fromStart = false;
    this.timer = 0;
    this.pause = 0;
    this.asking = new AbortController();
  }

  look(fromStart = false) {
    this.fromStart ||= fromStart;
    this.wanted = true;
    if (!this.busy && !this.timer) this.timer = setTimeout(() => this.read(), this.pause);
  }

  stop() {
    clearTimeout(this.timer);
    this.asking.abort();
  }

  async read() {
    this.timer = 0;
    this.busy = true;
    this.wanted = false;
    const fromStart = this.fromStart;
    this.fromStart = false;
    const began = performance.now();
    try {
      await this.readPages(fromStart || this.story === null);
      this.pause = Math.max(GATHER, 2 * (performance.now() - began));
    } catch (problem) {
      if (this.asking.signal.aborted) return;
      this.tell({ story: this.story, problem });
      this.fromStart ||= fromStart;
      this.wanted = !problem.status || problem.status >= 500 || problem.status === 429;
      this.pause = AGAIN;
    }
    this.busy = false;
    if (this.wanted) this.timer = setTimeout(() => this.read(), this.pause);
  }

  async readPages(fromStart) {
    let story = fromStart ? null : this.story;
    for (;;) {
      const after = story?.journal.at(-1)?.seq;
      const page = await get(`/v1/runs/${part(this.id)}/report`, { after, limit: PAGE }, this.asking.signal);
      if (this.asking.signal.aborted) return;
      if (!fromStart && isReopened(this.story, page)) {
        fromStart = true;
        story = null;
        continue;
      }
      story = merged(story, page, false);
      // What is known stays on the page until the new beginning is as long, or complete.
      if (!fromStart || this.story === null || !page.has_more) {
        this.story = story;
        this.tell({ story, problem: null });
        fromStart = false;
      }
      if (!page.has_more || !page.journal.length) return;
    }
  }
}
