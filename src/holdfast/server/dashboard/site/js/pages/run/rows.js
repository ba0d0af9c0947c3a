// What stands in a run's timeline, row by row: records, steps in flight, and where another worker took over. Pure.

const WORK = new Set(["step", "compensation"]);
const WAITS = new Set(["child", "signal", "approval"]);
const ENDED = new Set(["completed", "failed", "cancelled", "dead"]);
export const isEnded = (state) => ENDED.has(state);

const time = (at) => (at ? Date.parse(at) : NaN);

// How often a worker replayed a record after taking the run over from one that had died. Records may be read before that.
export const replaysOf = (story, record) => story.takeover_epochs.filter((epoch) => epoch > record.epoch).length;

// Whether a person has said what came of it, and no attempt: its outcome was unknown.
export const isSettled = (record) => record.attempt_count === 0;

export const nameOf = (worker, workers) => workers.get(worker)?.name || `worker ${worker}`;
export const workersOf = (story) => new Map(story.workers.map((one) => [one.id, one]));

// What a record is called: what is no step says what it is, too.
export function titleOf(record) {
  const { kind, name } = record;
  if (kind === "step" || kind === "approval" || name.startsWith(`${kind} `)) return name;
  if (kind === "deadline" || kind === "cancel") return kind === "cancel" ? "cancelled" : "deadline passed";
  if (kind === "compensation") return `undoing ${name}`;
  return name ? `${kind} ${name}` : kind;
}

export const titleOfRow = ({ record, attempt, child, waits }) => (record ? titleOf(record) : attempt ? attempt.name || "a step" : child ? `child ${child.workflow}` : `waits for ${waits}`);

// The kinds for which a reader looks: a model call and a step are one kind in the journal, and two for people.
export const sortOf = (record) => (record.model_call ? "model" : record.kind);

// Rows in the order in which things began. Each: { key, what: "record" | "flight" | "child" | "wait" | "takeover" | "skipped", begin, end, work, ... }.
//   now: milliseconds, until which steps in flight go on.
export function rowsOf(story, now) {
  const begins = beginsOf(story);
  const rows = story.journal.map((record, index) => ({
    key: `r${record.seq}`, what: "record", record, begin: begins[index], end: Math.max(begins[index], time(record.recorded_at)), work: workOf(record.kind),
  })).filter((row) => !row.record.is_internal);
  for (const skipped of story.skipped_steps) {
    const after = rows.filter((row) => row.record?.number >= skipped.next_number && row.record.kind !== "timer");
    const at = after.length ? Math.min(...after.map((row) => row.begin)) : Math.max(time(story.created_at), ...rows.map((row) => row.end));
    rows.push({ key: `s${skipped.step_number}`, what: "skipped", skipped, begin: at, end: at, work: "" });
  }
  if (!isEnded(story.state)) {
    for (const attempt of story.in_flight) {
      if (attempt.run) continue; // a run that is waited for has its own row
      const begin = Math.min(now, time(attempt.updated_at) || now);
      const end = attempt.ended ? Math.max(begin, time(attempt.ended)) : now;
      rows.push({ key: `f${attempt.number}`, what: "flight", attempt, begin, end, work: "here" });
    }
  }
  const told = new Set(story.journal.map((record) => record.related_run_id));
  for (const child of isEnded(story.state) ? [] : story.related_runs) {
    // A run that is waited for, and whose end is not recorded yet.
    if (told.has(child.id) || child.parent !== story.id || !child.created_at) continue;
    const end = child.finished_at ? time(child.finished_at) : now;
    rows.push({ key: `c${child.id}`, what: "child", child, begin: Math.min(end, time(child.created_at)), end, work: "elsewhere" });
  }
  if (story.state === "waiting") {
    const asked = story.approvals.filter((one) => one.state === "open");
    const begin = Math.min(now, Math.max(time(story.created_at), ...story.journal.slice(-1).map((one) => time(one.recorded_at)), ...asked.map((one) => time(one.requested_at))));
    rows.push({ key: "w", what: "wait", waits: asked.length ? `an answer to “${asked[0].question}”` : story.waits_for ?? "something", begin, end: now, work: "" });
  }
  for (const at of reopeningsOf(story)) rows.push({ key: `o${at}`, what: "takeover", takeover: { how: "reopened", at, from: null, to: null, seconds: 0 }, begin: at, end: at, work: "" });
  for (const one of takeoversOf(story)) rows.push({ key: `t${one.epoch}`, what: "takeover", takeover: one, begin: one.at, end: one.at, work: "" });
  // What began in the same millisecond.
  const rank = (row) => (row.what === "takeover" ? 0 : 1);
  const place = (row) => (row.what === "skipped" ? row.skipped.next_number - 0.5 : numberOf(row));
  return rows.sort((a, b) => a.begin - b.begin || rank(a) - rank(b) || place(a) - place(b));
}

// Whether a row has nothing to open.
export const isNote = (row) => row?.what === "takeover" || row?.what === "skipped";

const workOf = (kind) => (WORK.has(kind) ? "here" : kind === "child" ? "elsewhere" : "");
export const numberOf = (row) => row.record?.number ?? row.attempt?.number ?? 0;

// When each record's command began. Of steps it is recorded. What a run only waits for began when the code asked for it:
// behind what it asked for before, and before what it asked for next.
function beginsOf(story) {
  const { journal } = story;
  const numbered = new Map();
  for (const one of journal) if (one.number && one.kind !== "timer") numbered.set(one.number, one);
  const children = new Map(story.related_runs.filter((one) => one.created_at).map((one) => [one.id, time(one.created_at)]));
  const asked = new Map(story.approvals.map((one) => [one.step_number, time(one.requested_at)]));
  const origin = time(story.created_at);
  return journal.map((record) => {
    const end = time(record.recorded_at);
    if (isSettled(record)) return end;
    if (WORK.has(record.kind)) return time(record.started_at) || end;
    if (!WAITS.has(record.kind)) return end;
    if (children.has(record.related_run_id)) return Math.min(end, children.get(record.related_run_id));
    if (record.kind === "approval" && asked.has(record.number)) return Math.min(end, asked.get(record.number));
    const before = numbered.get(record.number - 1);
    const after = numbered.get(record.number + 1);
    let begin = before ? (time(before.recorded_at) <= end ? time(before.recorded_at) : time(before.started_at)) : origin;
    if (after && WORK.has(after.kind)) begin = Math.min(begin, time(after.started_at));
    return Math.min(end, begin);
  });
}

// A story with all that is in flight: what is kept of it, and what events have told (see answers.js).
export function withFlights(story, flights) {
  const recorded = new Set(story.journal.map((record) => record.number));
  const known = new Map(story.in_flight.map((one) => [one.number, one]));
  for (const one of Object.values(flights)) {
    if (recorded.has(one.number)) continue; // the event that says so is on its way
    const kept = known.get(one.number);
    known.set(one.number, kept && time(kept.updated_at) > time(one.updated_at) ? kept : { is_once: false, error: null, progress: null, ...kept, retry_at: null, ...one });
  }
  return { ...story, in_flight: [...known.values()] };
}

// When a person let the run go on after it had ended.
const reopeningsOf = (story) => story.reopened_at.map(time);

// Where another worker went on: [{ epoch, at, from, to, seconds, how: "died" | "left" | "moved" | "alone" }].
//   from, to: workers' ids; seconds: between the last record of the one and the first beginning of the other.
// The number of a run's lease rises whenever somebody takes it, also a run that was left waiting by somebody who was
// well. Then the first thing that the next one records is what it waited for. Whoever held a run that had ended, and
// was let go on by a person, is no part of its story.
export function takeoversOf(story) {
  const workers = workersOf(story);
  const reopenings = reopeningsOf(story);
  const hadEnded = (from, to) => reopenings.some((at) => at >= from && at <= to);
  const found = [];
  let last = null;
  for (const record of story.journal) {
    if (!record.worker_id || !record.epoch) continue; // given to a fork, or nobody knows
    if (last && record.epoch > last.epoch && record.worker_id !== last.worker_id) {
      const waited = !WORK.has(record.kind);
      const at = waited ? time(record.recorded_at) : time(record.started_at) || time(record.recorded_at);
      if (!hadEnded(time(last.recorded_at), at)) found.push(takeover(workers, last, record.worker_id, record.epoch, at, story.takeover_epochs.includes(record.epoch), waited));
    }
    last = record;
  }
  const holder = story.claimed_by;
  if (last && holder && holder !== last.worker_id && story.epoch > last.epoch && !isEnded(story.state)) {
    const since = story.in_flight.map((one) => time(one.updated_at)).filter((at) => at >= time(last.recorded_at));
    if (!hadEnded(time(last.recorded_at), Infinity)) found.push(takeover(workers, last, holder, story.epoch, since.length ? Math.min(...since) : time(last.recorded_at), !["live", "retired"].includes(stateOf(workers.get(last.worker_id))), false));
  } else if (holder && !isEnded(story.state) && workers.get(holder) && !workers.get(holder).is_alive) {
    const latest = Math.max(last ? time(last.recorded_at) : 0, ...story.in_flight.map((one) => time(one.updated_at) || 0)) + 1;
    found.push({ epoch: story.epoch, at: latest, from: holder, to: null, seconds: 0, how: "alone" });
  }
  return found;
}

const stateOf = (worker) => worker?.state ?? (worker?.is_alive ? "live" : "dead");

function takeover(workers, last, to, epoch, at, died, waited) {
  const how = died ? "died" : !waited && stateOf(workers.get(last.worker_id)) === "retired" ? "left" : "moved";
  return { epoch, at, from: last.worker_id, to, seconds: Math.max(0, (at - time(last.recorded_at)) / 1000), how };
}

// A colour for each worker, by the order in which they came: 0, 1, 2, …
export function lanesOf(story) {
  const lanes = new Map();
  for (const record of story.journal) if (record.worker_id && !lanes.has(record.worker_id)) lanes.set(record.worker_id, lanes.size % 6);
  if (story.claimed_by && !lanes.has(story.claimed_by)) lanes.set(story.claimed_by, lanes.size % 6);
  return lanes;
}

// What a page of a story adds to what is known of it; from the beginning, if it was asked for so.
export function merged(before, page, fromStart) {
  const known = fromStart || !before ? [] : before.journal;
  const last = known.length ? known.at(-1).seq : -1;
  return { ...page, journal: [...known, ...page.journal.filter((one) => one.seq > last)] };
}

// Whether records that are known were taken back since: a run that had ended goes on, or has ended anew.
export const isReopened = (before, page) => isEnded(before.state) && (page.state !== before.state || page.finished_at !== before.finished_at);

// Which of many rows of one height are in view: { first, last, above, below }, the latter in pixels.
export function inView(many, height, top, room, spare = 12) {
  const first = Math.max(0, Math.min(many, Math.floor(top / height)) - spare);
  const last = Math.min(many, Math.ceil((top + room) / height) + spare);
  return { first, last, above: first * height, below: (many - last) * height };
}
