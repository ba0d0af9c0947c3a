// The list of runs: its query, how pages are merged, and the status of a run. Pure: tests run it without a browser.

export const STATES = ["pending", "running", "waiting", "completed", "failed", "cancelled", "dead"];
export const TIME_RANGES = { hour: ["last hour", 3600], day: ["last day", 86400], week: ["last week", 7 * 86400] };

export const parseStates = (text) => STATES.filter((one) => (text ?? "").split(",").includes(one));

// The states in the address, with one added or removed.
export function toggleState(text, state) {
  const chosen = parseStates(text);
  return STATES.filter((one) => (one === state) !== chosen.includes(one)).join(",");
}

// The parameters of a request, from the query of the address. Times are whole minutes, so that a refresh sends the same
// request.
export function buildQuery({ state, workflow, tag, parent, q, since }, now = Date.now()) {
  const seconds = TIME_RANGES[since]?.[1];
  const after = seconds ? new Date(Math.floor(now / 60000 - seconds / 60) * 60000).toISOString() : undefined;
  const params = { state: parseStates(state), workflow, tag, parent, text: q?.trim(), created_after: after };
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value && value.length));
}

// The shown rows with the newest page of the list: { rows, newCount }.
//   isHeld: the list is being read, so nothing may move. New runs are counted (`newCount`), shown ones are updated, and
//   those that no longer match are marked (`isOutdated`).
export function mergePage(shown, page, isHeld) {
  const current = new Map(page.items.map((one) => [one.id, one]));
  const known = new Set(shown.map((one) => one.id));
  const last = page.items.at(-1);
  const until = page.next === null ? -Infinity : page.searched_until ? Date.parse(page.searched_until) : last ? Date.parse(last.created_at) : Infinity;
  const isCovered = (one) => Date.parse(one.created_at) > until;
  if (isHeld && shown.length) {
    const rows = shown.map((one) => current.get(one.id) ?? (isCovered(one) ? { ...one, isOutdated: true } : one));
    return { rows, newCount: page.items.filter((one) => !known.has(one.id)).length };
  }
  return { rows: [...page.items, ...shown.filter((one) => !current.has(one.id) && !isCovered(one))], newCount: 0 };
}

const MAX_LENGTH = 140;
export function shorten(text) {
  const line = text.split("\n", 1)[0];
  return line.length > MAX_LENGTH ? `${line.slice(0, MAX_LENGTH - 1)}…` : line;
}

// A remark about a run besides its state: { tone, text, fullText } or null.
export function describeStatus(run) {
  if (run.error) {
    const fullText = `${run.error.type.replace(/^builtins\./, "")}: ${run.error.message}`;
    return { tone: "bad", text: shorten(fullText), fullText };
  }
  if (run.stall_advice && run.stall_summary !== "paused") return { tone: "warn", text: run.stall_summary || shorten(run.stall_advice), fullText: run.stall_advice };
  if (run.waits_for) return { tone: "", text: `waits for ${shorten(run.waits_for)}`, fullText: run.waits_for };
  return null;
}
