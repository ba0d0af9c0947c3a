// Time as a line on which the work stays visible: stretches in which nothing was done are folded. Pure.
//
// A run may work for seconds and wait for days. What counts as work are steps; a run that waits for a timer, a signal or
// a person is idle, however long, and so is one that waits for a child for very long (that has a timeline of its own).

// A stretch is folded that is longer than so many seconds, and than so many times all the work.
const IDLE = [[1, 3], [5, 0.25]];
const ELSEWHERE = [[600, 0.25]]; // the same, while a child works
const FOLD = 0.04; // of the width, for one fold
const FOLDS = 0.4; // of the width, for all of them

// spans: [{ begin, end, work: "here" | "elsewhere" | "" }], in milliseconds; in any order.
//   { begin, end, segments: [{ from, to, left, width, folded }] }, left and width as shares of the whole.
export function axisOf(spans) {
  if (!spans.length) return { begin: 0, end: 0, segments: [] };
  const begin = spans.reduce((least, one) => Math.min(least, one.begin), Infinity);
  const end = Math.max(begin + 1, spans.reduce((most, one) => Math.max(most, one.end), -Infinity));
  const pieces = piecesOf(spans, begin, end);
  const quiet = pieces.filter((one) => one.work !== "here");
  const busy = end - begin - total(quiet);
  const isLong = (one) => ([seconds, times]) => one.to - one.from > Math.max(1000 * seconds, times * busy);
  for (const one of quiet) one.folded = (one.work === "elsewhere" ? ELSEWHERE : IDLE).some(isLong(one));
  const segments = joined(pieces);
  const folds = segments.filter((one) => one.folded);
  const fold = folds.length ? Math.min(FOLD, FOLDS / folds.length) : 0;
  const shown = end - begin - total(folds);
  const room = 1 - fold * folds.length;
  let left = 0;
  for (const one of segments) {
    one.left = left;
    one.width = one.folded ? fold : shown ? ((one.to - one.from) / shown) * room : room;
    left += one.width;
  }
  return { begin, end, segments };
}

const total = (pieces) => pieces.reduce((sum, one) => sum + one.to - one.from, 0);

// The line, cut wherever something begins or ends, with what is done in each piece.
function piecesOf(spans, begin, end) {
  const changes = [];
  for (const one of spans) {
    changes.push([one.begin, one.work, 1], [one.end, one.work, -1]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  const at = { here: 0, elsewhere: 0, "": 0 };
  const pieces = [];
  let from = begin;
  for (const [when, work, by] of changes) {
    if (when > from) {
      pieces.push({ from, to: when, work: at.here ? "here" : at.elsewhere ? "elsewhere" : "", folded: false });
      from = when;
    }
    at[work] += by;
  }
  if (end > from) pieces.push({ from, to: end, work: "", folded: false });
  return pieces;
}

function joined(pieces) {
  const segments = [];
  for (const one of pieces) {
    const last = segments.at(-1);
    if (last && !last.folded && !one.folded) last.to = one.to;
    else segments.push({ from: one.from, to: one.to, folded: one.folded });
  }
  return segments;
}

// Where a moment stands, as a share of the width.
export function place(axis, at) {
  const { segments } = axis;
  if (!segments.length || at <= axis.begin) return 0;
  if (at >= axis.end) return 1;
  let low = 0;
  let high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (segments[middle].from <= at) low = middle;
    else high = middle - 1;
  }
  const one = segments[low];
  return one.left + (one.width * (at - one.from)) / (one.to - one.from);
}

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];

// Moments to write on the line: [{ left, seconds }], seconds since its beginning; and folds: [{ left, width, seconds }].
export function marksOf(axis, many = 6) {
  const open = axis.segments.filter((one) => !one.folded);
  const shown = total(open) / 1000;
  const step = STEPS.find((one) => one >= shown / many) ?? 2 * 604800;
  const ticks = [];
  for (const one of open) {
    const first = Math.max(0, Math.ceil((one.from - axis.begin) / 1000 / step - 1e-9));
    for (let n = first; n * step * 1000 + axis.begin < one.to; n++) {
      const left = place(axis, axis.begin + n * step * 1000);
      if (left < 1 - 0.35 / many && (!ticks.length || left - ticks.at(-1).left > 0.4 / many)) ticks.push({ left, seconds: n * step });
    }
  }
  const folds = axis.segments.filter((one) => one.folded);
  return { ticks, folds: folds.map((one) => ({ left: one.left, width: one.width, seconds: (one.to - one.from) / 1000 })) };
}
