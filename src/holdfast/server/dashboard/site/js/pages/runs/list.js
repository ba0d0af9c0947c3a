// What the list of runs asks for, and how its answers come together. Pure: tests run it without a browser.

export const STATES = ["pending", "running", "waiting", "completed", "failed", "cancelled", "dead"];
export const TIME_RANGES = { hour: ["last hour", 3600], day: ["last day", 86400], week: ["last week", 7 * 86400] };

export const parseStates = (text) => STATES.filter((one) => (text ?? "").split(",").includes(one));

// The states of the address with one more, or one less.
export function toggleState(text, state) {
  const chosen = parseStates(text);
  return STATES.filter((one) => (one === state) !== chosen.includes(one)).join(",");
}

// The query of the address as the server is asked. Times are whole minutes: so the same question is asked again.
export function buildQuery({ state, workflow, tag, parent, q, since }, now = Date.now()) {
  const seconds = TIME_RANGES[since]?.[1];
  const after = seconds ? new Date(Math.floor(now / 60000 - seconds / 60) * 60000).toISOString() : undefined;
  const params = { state: parseStates(state), workflow, tag, parent, text: q?.trim(), created_after: after };
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value && value.length));
}

// What is shown, and the newest part of the list as it is now: { rows, fresh }.
//   hold: the reader is in the middle of it, so nothing may move. What is new is counted (`fresh`), what is there is
//   brought up to date, and what does not match any more is marked (`gone`).
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

// What there is to say of a run beside its state: { tone, words, whole } or null.
export function describeStatus(run) {
  if (run.error) {
    const fullText = `${run.error.type.replace(/^builtins\./, "")}: ${run.error.message}`;
    return { tone: "bad", text: shorten(fullText), fullText };
  }
  if (run.stall_advice && run.stall_summary !== "paused") return { tone: "warn", text: run.stall_summary || shorten(run.stall_advice), fullText: run.stall_advice };
  if (run.waits_for) return { tone: "", text: `waits for ${shorten(run.waits_for)}`, fullText: run.waits_for };
  return null;
}
