// The rows of a run's timeline: records, steps in flight, and takeovers. Pure.

const WORK_KINDS = new Set(["step", "compensation"]);
const WAIT_KINDS = new Set(["child", "signal", "approval"]);
const ENDED_STATES = new Set(["completed", "failed", "cancelled", "dead"]);
export const isEnded = (state) => ENDED_STATES.has(state);

const parseTime = (at) => (at ? Date.parse(at) : NaN);

// How often a worker replayed a record after taking over the run of a dead worker. Records may be read before that.
export const countReplays = (report, record) => report.takeover_epochs.filter((epoch) => epoch > record.epoch).length;

// Whether a person settled it: its outcome was unknown.
export const isSettled = (record) => record.attempt_count === 0;

export const formatWorkerName = (worker, workers) => workers.get(worker)?.name || `worker ${worker}`;
export const indexWorkers = (report) => new Map(report.workers.map((one) => [one.id, one]));

// The title of a record, with its kind if it is not a step.
export function formatTitle(record) {
  const { kind, name } = record;
  if (kind === "step" || kind === "approval" || name.startsWith(`${kind} `)) return name;
  if (kind === "deadline" || kind === "cancel") return kind === "cancel" ? "cancelled" : "deadline passed";
  if (kind === "compensation") return `undoing ${name}`;
  return name ? `${kind} ${name}` : kind;
}

export const formatRowTitle = ({ record, attempt, child, waitsFor }) => (record ? formatTitle(record) : attempt ? attempt.name || "a step" : child ? `child ${child.workflow}` : `waits for ${waitsFor}`);

// The kinds to filter by: a model call and a step are one kind in the journal, and two for people.
export const getDisplayKind = (record) => (record.model_call ? "model" : record.kind);

// Rows in the order in which things began. Each: { key, type, begin, end, work, ... }.
//   type: "record" | "flight" | "child" | "wait" | "takeover" | "skipped"
//   now: milliseconds; bars of steps in flight end here.
export function buildRows(report, now) {
  const beginTimes = computeBeginTimes(report);
  const rows = report.journal.map((record, index) => ({
    key: `r${record.seq}`, type: "record", record, begin: beginTimes[index], end: Math.max(beginTimes[index], parseTime(record.recorded_at)), work: classifyWork(record.kind),
  })).filter((row) => !row.record.is_internal);
  for (const skipped of report.skipped_steps) {
    const after = rows.filter((row) => row.record?.number >= skipped.next_number && row.record.kind !== "timer");
    const at = after.length ? Math.min(...after.map((row) => row.begin)) : Math.max(parseTime(report.created_at), ...rows.map((row) => row.end));
    rows.push({ key: `s${skipped.step_number}`, type: "skipped", skipped, begin: at, end: at, work: "" });
  }
  if (!isEnded(report.state)) {
    for (const attempt of report.in_flight) {
      if (attempt.run) continue; // an awaited run has its own row
      const begin = Math.min(now, parseTime(attempt.updated_at) || now);
      const end = attempt.ended ? Math.max(begin, parseTime(attempt.ended)) : now;
      rows.push({ key: `f${attempt.number}`, type: "flight", attempt, begin, end, work: "here" });
    }
  }
  const recordedRunIds = new Set(report.journal.map((record) => record.related_run_id));
  for (const child of isEnded(report.state) ? [] : report.related_runs) {
    // An awaited run whose end is not recorded yet.
    if (recordedRunIds.has(child.id) || child.parent !== report.id || !child.created_at) continue;
    const end = child.finished_at ? parseTime(child.finished_at) : now;
    rows.push({ key: `c${child.id}`, type: "child", child, begin: Math.min(end, parseTime(child.created_at)), end, work: "elsewhere" });
  }
  if (report.state === "waiting") {
    const openApprovals = report.approvals.filter((one) => one.state === "open");
    const begin = Math.min(now, Math.max(parseTime(report.created_at), ...report.journal.slice(-1).map((one) => parseTime(one.recorded_at)), ...openApprovals.map((one) => parseTime(one.requested_at))));
    rows.push({ key: "w", type: "wait", waitsFor: openApprovals.length ? `an answer to “${openApprovals[0].question}”` : report.waits_for ?? "something", begin, end: now, work: "" });
  }
  for (const at of parseReopenings(report)) rows.push({ key: `o${at}`, type: "takeover", takeover: { how: "reopened", at, from: null, to: null, seconds: 0 }, begin: at, end: at, work: "" });
  for (const one of findTakeovers(report)) rows.push({ key: `t${one.epoch}`, type: "takeover", takeover: one, begin: one.at, end: one.at, work: "" });
  // What began in the same millisecond.
  const getRank = (row) => (row.type === "takeover" ? 0 : 1);
  const getPosition = (row) => (row.type === "skipped" ? row.skipped.next_number - 0.5 : getStepNumber(row));
  return rows.sort((a, b) => a.begin - b.begin || getRank(a) - getRank(b) || getPosition(a) - getPosition(b));
}

// Whether a row has nothing to open.
export const isNote = (row) => row?.type === "takeover" || row?.type === "skipped";

const classifyWork = (kind) => (WORK_KINDS.has(kind) ? "here" : kind === "child" ? "elsewhere" : "");
export const getStepNumber = (row) => row.record?.number ?? row.attempt?.number ?? 0;

// When each record's command began. For steps, that is recorded. Any other wait began when the code issued its command:
// after the previous command, and before the next one.
function computeBeginTimes(report) {
  const { journal } = report;
  const numbered = new Map();
  for (const one of journal) if (one.number && one.kind !== "timer") numbered.set(one.number, one);
  const childTimes = new Map(report.related_runs.filter((one) => one.created_at).map((one) => [one.id, parseTime(one.created_at)]));
  const requestTimes = new Map(report.approvals.map((one) => [one.step_number, parseTime(one.requested_at)]));
  const origin = parseTime(report.created_at);
  return journal.map((record) => {
    const end = parseTime(record.recorded_at);
    if (isSettled(record)) return end;
    if (WORK_KINDS.has(record.kind)) return parseTime(record.started_at) || end;
    if (!WAIT_KINDS.has(record.kind)) return end;
    if (childTimes.has(record.related_run_id)) return Math.min(end, childTimes.get(record.related_run_id));
    if (record.kind === "approval" && requestTimes.has(record.number)) return Math.min(end, requestTimes.get(record.number));
    const before = numbered.get(record.number - 1);
    const after = numbered.get(record.number + 1);
    let begin = before ? (parseTime(before.recorded_at) <= end ? parseTime(before.recorded_at) : parseTime(before.started_at)) : origin;
    if (after && WORK_KINDS.has(after.kind)) begin = Math.min(begin, parseTime(after.started_at));
    return Math.min(end, begin);
  });
}

// A report with everything in flight: that of the report, and what events added since (see live-events.js).
export function addInFlight(report, inFlight) {
  const recorded = new Set(report.journal.map((record) => record.number));
  const known = new Map(report.in_flight.map((one) => [one.number, one]));
  for (const one of Object.values(inFlight)) {
    if (recorded.has(one.number)) continue; // the event of its end is yet to come
    const reported = known.get(one.number);
    known.set(one.number, reported && parseTime(reported.updated_at) > parseTime(one.updated_at) ? reported : { is_once: false, error: null, progress: null, ...reported, retry_at: null, ...one });
  }
  return { ...report, in_flight: [...known.values()] };
}

// When the run was retried after its end.
const parseReopenings = (report) => report.reopened_at.map(parseTime);

// Where another worker continued: [{ epoch, at, from, to, seconds, how: "died" | "left" | "moved" | "alone" }].
//   from, to: workers' ids; seconds: from the last record of one to the first start of the other.
// The epoch of a run increases with each claim, even if a healthy worker had parked it. In that case, the first record
// of the next worker is what the run waited for. A run that was retried after its end was not taken over from the
// worker that held it before.
export function findTakeovers(report) {
  const workers = indexWorkers(report);
  const reopenings = parseReopenings(report);
  const wasReopened = (from, to) => reopenings.some((at) => at >= from && at <= to);
  const found = [];
  let last = null;
  for (const record of report.journal) {
    if (!record.worker_id || !record.epoch) continue; // inherited by a fork, or unknown
    if (last && record.epoch > last.epoch && record.worker_id !== last.worker_id) {
      const isWait = !WORK_KINDS.has(record.kind);
      const at = isWait ? parseTime(record.recorded_at) : parseTime(record.started_at) || parseTime(record.recorded_at);
      if (!wasReopened(parseTime(last.recorded_at), at)) found.push(buildTakeover(workers, last, record.worker_id, record.epoch, at, report.takeover_epochs.includes(record.epoch), isWait));
    }
    last = record;
  }
  const holder = report.claimed_by;
  if (last && holder && holder !== last.worker_id && report.epoch > last.epoch && !isEnded(report.state)) {
    const since = report.in_flight.map((one) => parseTime(one.updated_at)).filter((at) => at >= parseTime(last.recorded_at));
    if (!wasReopened(parseTime(last.recorded_at), Infinity)) found.push(buildTakeover(workers, last, holder, report.epoch, since.length ? Math.min(...since) : parseTime(last.recorded_at), !["live", "retired"].includes(getWorkerState(workers.get(last.worker_id))), false));
  } else if (holder && !isEnded(report.state) && workers.get(holder) && !workers.get(holder).is_alive) {
    const latest = Math.max(last ? parseTime(last.recorded_at) : 0, ...report.in_flight.map((one) => parseTime(one.updated_at) || 0)) + 1;
    found.push({ epoch: report.epoch, at: latest, from: holder, to: null, seconds: 0, how: "alone" });
  }
  return found;
}

const getWorkerState = (worker) => worker?.state ?? (worker?.is_alive ? "live" : "dead");

function buildTakeover(workers, last, to, epoch, at, isDeath, isWait) {
  const how = isDeath ? "died" : !isWait && getWorkerState(workers.get(last.worker_id)) === "retired" ? "left" : "moved";
  return { epoch, at, from: last.worker_id, to, seconds: Math.max(0, (at - parseTime(last.recorded_at)) / 1000), how };
}

// A color for each worker, in the order of their first records: 0, 1, 2, …
export function assignLanes(report) {
  const lanes = new Map();
  for (const record of report.journal) if (record.worker_id && !lanes.has(record.worker_id)) lanes.set(record.worker_id, lanes.size % 6);
  if (report.claimed_by && !lanes.has(report.claimed_by)) lanes.set(report.claimed_by, lanes.size % 6);
  return lanes;
}

// A report with another page of its journal; with `fromStart`, the page replaces the journal.
export function mergeReport(before, page, fromStart) {
  const known = fromStart || !before ? [] : before.journal;
  const last = known.length ? known.at(-1).seq : -1;
  return { ...page, journal: [...known, ...page.journal.filter((one) => one.seq > last)] };
}

// Whether known records were rewound since: an ended run was retried, and may have ended again.
export const isReopened = (before, page) => isEnded(before.state) && (page.state !== before.state || page.finished_at !== before.finished_at);

// The rows in view, among many rows of the same height: { first, last, above, below }; above and below are in pixels.
export function computeVisibleRange(count, height, top, viewHeight, overscan = 12) {
  const first = Math.max(0, Math.min(count, Math.floor(top / height)) - overscan);
  const last = Math.min(count, Math.ceil((top + viewHeight) / height) + overscan);
  return { first, last, above: first * height, below: (count - last) * height };
}
