// Sums of what /v1/usage returns. Pure: tests run it without a browser.
// Sums are in billionths of a dollar, which are whole numbers, so that additions are exact.

export const NANO_PER_DOLLAR = 1e9;
const DAY_MS = 86400000;

export const toIsoDay = (time) => new Date(time).toISOString().slice(0, 10);

// The days from `since` to `until`, both included.
export function listDays(since, until) {
  const days = [];
  for (let at = Date.parse(since); at <= Date.parse(until); at += DAY_MS) days.push(toIsoDay(at));
  return days;
}

export const getRangeStart = (dayCount, now = Date.now()) => toIsoDay(now - (dayCount - 1) * DAY_MS);

const NO_USAGE = { nano: 0, calls: 0, unpriced: 0, input: 0, output: 0, cached: 0 };

function addUsage(sum, { usage }) {
  return {
    nano: sum.nano + usage.nano_usd, calls: sum.calls + usage.calls, unpriced: sum.unpriced + usage.unpriced,
    input: sum.input + usage.input_tokens, output: sum.output + usage.output_tokens, cached: sum.cached + usage.cached_tokens,
  };
}

export const sumUsage = (items) => items.reduce(addUsage, NO_USAGE);

// By agent (`workflow`) or by `model`: [{ name, nano, calls, ... }], the most expensive first.
export function groupUsage(items, by) {
  const sums = new Map();
  for (const one of items) sums.set(one[by], addUsage(sums.get(one[by]) ?? NO_USAGE, one));
  return [...sums].map(([name, sum]) => ({ name, ...sum })).sort((a, b) => b.nano - a.nano || b.calls - a.calls || (a.name < b.name ? -1 : 1));
}

// The data of a chart: a bar for each day, with parts in the order of `names`. The cheapest are one part, "others".
export const OTHERS = "others";
export function buildChart(spending, by, maxParts = 7) {
  const all = groupUsage(spending.daily_usage, by).filter((one) => one.nano > 0).map((one) => one.name);
  const names = all.length > maxParts ? all.slice(0, maxParts - 1) : all;
  const indexByName = new Map(names.map((name, index) => [name, index]));
  const shown = names.length < all.length ? [...names, OTHERS] : names;
  const days = new Map(listDays(spending.since, spending.until).map((day) => [day, shown.map(() => 0)]));
  for (const one of spending.daily_usage) {
    const parts = days.get(one.day);
    if (parts && one.usage.nano_usd) parts[indexByName.get(one[by]) ?? names.length] += one.usage.nano_usd;
  }
  return { names: shown, bars: [...days].map(([day, parts]) => ({ day, parts, nano: parts.reduce((a, b) => a + b, 0) })) };
}

// Values for the grid lines of a chart: round numbers, from 0 to above `max`.
export function buildGridLines(max, targetCount = 4) {
  if (max <= 0) return [0, 1];
  const rough = max / targetCount;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const lines = [];
  for (let at = 0; at < max + step; at += step) lines.push(at);
  return lines;
}
