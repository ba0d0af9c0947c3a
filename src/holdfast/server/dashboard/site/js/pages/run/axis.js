// A time axis on which work stays visible: idle stretches are folded. Pure.
//
// A run may work for seconds and wait for days. Steps count as work. A run that waits for a timer, a signal, or a person
// is idle, and so is one that waits very long for a child (which has its own timeline).

// [seconds, times]: a segment is folded if it is longer than these seconds, and than this multiple of all work.
const IDLE_FOLD_RULES = [[1, 3], [5, 0.25]];
const CHILD_FOLD_RULES = [[600, 0.25]]; // the same, while a child works
const FOLD_WIDTH = 0.04; // of the width, for one fold
const MAX_FOLDS_WIDTH = 0.4; // of the width, for all folds

// intervals: [{ begin, end, work: "here" | "elsewhere" | "" }], in milliseconds; in any order.
//   { begin, end, segments: [{ from, to, left, width, folded }] }, left and width as fractions of the whole.
export function buildAxis(intervals) {
  if (!intervals.length) return { begin: 0, end: 0, segments: [] };
  const begin = intervals.reduce((min, one) => Math.min(min, one.begin), Infinity);
  const end = Math.max(begin + 1, intervals.reduce((max, one) => Math.max(max, one.end), -Infinity));
  const pieces = buildPieces(intervals, begin, end);
  const idlePieces = pieces.filter((one) => one.work !== "here");
  const busyMs = end - begin - sumDurations(idlePieces);
  const exceeds = (one) => ([seconds, times]) => one.to - one.from > Math.max(1000 * seconds, times * busyMs);
  for (const one of idlePieces) one.folded = (one.work === "elsewhere" ? CHILD_FOLD_RULES : IDLE_FOLD_RULES).some(exceeds(one));
  const segments = joinPieces(pieces);
  const folds = segments.filter((one) => one.folded);
  const foldWidth = folds.length ? Math.min(FOLD_WIDTH, MAX_FOLDS_WIDTH / folds.length) : 0;
  const openMs = end - begin - sumDurations(folds);
  const openWidth = 1 - foldWidth * folds.length;
  let left = 0;
  for (const one of segments) {
    one.left = left;
    one.width = one.folded ? foldWidth : openMs ? ((one.to - one.from) / openMs) * openWidth : openWidth;
    left += one.width;
  }
  return { begin, end, segments };
}

const sumDurations = (pieces) => pieces.reduce((sum, one) => sum + one.to - one.from, 0);

// The axis, split wherever an interval begins or ends, with the kind of work in each segment.
function buildPieces(intervals, begin, end) {
  const changes = [];
  for (const one of intervals) {
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

function joinPieces(pieces) {
  const segments = [];
  for (const one of pieces) {
    const last = segments.at(-1);
    if (last && !last.folded && !one.folded) last.to = one.to;
    else segments.push({ from: one.from, to: one.to, folded: one.folded });
  }
  return segments;
}

// The position of a time, as a fraction of the width.
export function computePosition(axis, at) {
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

const TICK_INTERVALS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];

// Labels of the axis: [{ left, seconds }], seconds since its start; and folds: [{ left, width, seconds }].
export function buildMarks(axis, targetCount = 6) {
  const open = axis.segments.filter((one) => !one.folded);
  const openS = sumDurations(open) / 1000;
  const step = TICK_INTERVALS_S.find((one) => one >= openS / targetCount) ?? 2 * 604800;
  const ticks = [];
  for (const one of open) {
    const first = Math.max(0, Math.ceil((one.from - axis.begin) / 1000 / step - 1e-9));
    for (let n = first; n * step * 1000 + axis.begin < one.to; n++) {
      const left = computePosition(axis, axis.begin + n * step * 1000);
      if (left < 1 - 0.35 / targetCount && (!ticks.length || left - ticks.at(-1).left > 0.4 / targetCount)) ticks.push({ left, seconds: n * step });
    }
  }
  const folds = axis.segments.filter((one) => one.folded);
  return { ticks, folds: folds.map((one) => ({ left: one.left, width: one.width, seconds: (one.to - one.from) / 1000 })) };
}
