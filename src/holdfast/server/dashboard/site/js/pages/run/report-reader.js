// A run's report, kept up to date: read page by page, and from then on only what is new.
//
// The run's own events report at once that something has happened in it, and stream the model's answer. The change feed
// reports what has no event, such as a takeover, and continues after the run has ended. Both only trigger a read: the
// page always shows what was read. So it does not matter if one of them breaks for a while.

import { useCallback, useEffect, useRef, useState } from "../../html.js";
import { encodePart, follow, get } from "../../api.js";
import { useChangeFeed } from "../../data.js";
import { applyAnswerEvent, applyStepEvent } from "./live-events.js";
import { isEnded, isReopened, mergeReport } from "./rows.js";

const PAGE_SIZE = 500;
const MIN_PAUSE_MS = 120; // events are gathered at least this long before the report is read, and twice as long as that takes
const RETRY_DELAY_MS = 2000; // until a request that failed is sent again
const POLL_INTERVAL_MS = 5000; // an unfinished run is read without a change, too: a worker death causes none by itself

// { report, problem, answers, inFlight, eventCount, refresh }: `eventCount` increases with each received event.
export function useRunReport(id) {
  const [state, setState] = useState({ report: null, problem: null });
  const [answers, setAnswers] = useState({});
  const [inFlight, setInFlight] = useState({});
  const [eventCount, setEventCount] = useState(0);
  const [streamRound, setStreamRound] = useState(0);
  const { number } = useChangeFeed();
  const reader = useRef(null);
  if (reader.current === null) reader.current = new ReportReader(id, setState);

  useEffect(() => () => reader.current.stop(), []);
  useEffect(() => reader.current.requestRead(), [number]);
  const refresh = useCallback(() => reader.current.requestRead(), []);

  useEffect(() => {
    const timer = setInterval(() => document.hidden || (reader.current.report && isEnded(reader.current.report.state)) || refresh(), POLL_INTERVAL_MS);
    return () => clearInterval(timer);
  }, []);

  const isLoaded = state.report !== null;
  const hasEnded = isLoaded && isEnded(state.report.state);
  useEffect(() => {
    if (!isLoaded || hasEnded) return undefined;
    const stream = new AbortController();
    let frame = 0; // new events wait for the next frame, so that many at once are one change of the page
    let newEvents = [];
    const applyEvents = () => {
      frame = 0;
      const batch = newEvents;
      newEvents = [];
      setAnswers((before) => batch.reduce(applyAnswerEvent, before));
      setInFlight((before) => batch.reduce(applyStepEvent, before));
      setEventCount((before) => before + batch.length);
    };
    follow(`/v1/runs/${encodePart(id)}/events`, {
      after: reader.current.report.event_offset ?? "",
      signal: stream.signal,
      onEvent({ data }) {
        newEvents.push(data);
        if (!frame) frame = requestAnimationFrame(applyEvents);
        if (data.kind === "text") return false; // it adds no record
        reader.current.requestRead(data.kind === "reopened");
        if (data.kind !== "ended") return false;
        setTimeout(() => stream.signal.aborted || setStreamRound((before) => before + 1), 500); // in case the run was retried
        return true;
      },
    });
    return () => {
      stream.abort();
      if (frame) cancelAnimationFrame(frame);
    };
  }, [id, isLoaded, hasEnded, streamRound]);
  return { ...state, answers, inFlight, eventCount, refresh };
}

// Reads a report: one request at a time, and one more if something changed meanwhile.
class ReportReader {
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    this.report = null;
    this.isReading = false;
    this.isRequested = false;
    this.fromStart = false;
    this.timer = 0;
    this.pauseMs = 0;
    this.controller = new AbortController();
  }

  requestRead(fromStart = false) {
    this.fromStart ||= fromStart;
    this.isRequested = true;
    if (!this.isReading && !this.timer) this.timer = setTimeout(() => this.read(), this.pauseMs);
  }

  stop() {
    clearTimeout(this.timer);
    this.controller.abort();
  }

  async read() {
    this.timer = 0;
    this.isReading = true;
    this.isRequested = false;
    const fromStart = this.fromStart;
    this.fromStart = false;
    const startedAt = performance.now();
    try {
      await this.readPages(fromStart || this.report === null);
      this.pauseMs = Math.max(MIN_PAUSE_MS, 2 * (performance.now() - startedAt));
    } catch (problem) {
      if (this.controller.signal.aborted) return;
      this.onChange({ report: this.report, problem });
      this.fromStart ||= fromStart;
      this.isRequested = !problem.status || problem.status >= 500 || problem.status === 429;
      this.pauseMs = RETRY_DELAY_MS;
    }
    this.isReading = false;
    if (this.isRequested) this.timer = setTimeout(() => this.read(), this.pauseMs);
  }

  async readPages(fromStart) {
    let report = fromStart ? null : this.report;
    for (;;) {
      const after = report?.journal.at(-1)?.seq;
      const page = await get(`/v1/runs/${encodePart(this.id)}/report`, { after, limit: PAGE_SIZE }, this.controller.signal);
      if (this.controller.signal.aborted) return;
      if (!fromStart && isReopened(this.report, page)) {
        fromStart = true;
        report = null;
        continue;
      }
      report = mergeReport(report, page, false);
      // The known journal stays on the page until the new one is as long, or complete.
      if (!fromStart || this.report === null || !page.has_more) {
        this.report = report;
        this.onChange({ report, problem: null });
        fromStart = false;
      }
      if (!page.has_more || !page.journal.length) return;
    }
  }
}
