import assert from "node:assert/strict";
import { test } from "node:test";
import { buildChart, buildGridLines, groupUsage, listDays, OTHERS, sumUsage } from "../../../src/holdfast/server/dashboard/site/js/spending.js";

const item = (day, workflow, model, nano, more = {}) => ({
  day, workflow, model,
  usage: { calls: 1, input_tokens: 100, output_tokens: 10, cached_tokens: 5, nano_usd: nano, unpriced: 0, ...more },
});

test("days are listed one by one, across the end of a month and of daylight saving time", () => {
  assert.deepEqual(listDays("2026-02-27", "2026-03-02"), ["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"]);
  assert.equal(listDays("2026-10-01", "2026-10-31").length, 31);
  assert.deepEqual(listDays("2026-01-02", "2026-01-01"), []);
});

test("sums lose nothing, and the most expensive comes first", () => {
  const items = [item("2026-01-01", "a", "m", 100000001), item("2026-01-01", "b", "m", 200000002), item("2026-01-02", "a", "n", 300000003)];
  assert.equal(sumUsage(items).nano, 600000006);
  assert.deepEqual(groupUsage(items, "workflow").map((one) => [one.name, one.nano, one.calls]), [["a", 400000004, 2], ["b", 200000002, 1]]);
  assert.deepEqual(groupUsage(items, "model").map((one) => one.name), ["m", "n"]);
});

test("every day has a bar, whose parts are in the order of the names", () => {
  const spending = { since: "2026-01-01", until: "2026-01-03", daily_usage: [item("2026-01-01", "a", "m", 5), item("2026-01-03", "b", "m", 9), item("2026-01-03", "c", "m", 0, { unpriced: 1 })] };
  const { names, bars } = buildChart(spending, "workflow");
  assert.deepEqual(names, ["b", "a"], "what has no price has no part");
  assert.deepEqual(bars.map((bar) => [bar.day, bar.parts, bar.nano]), [["2026-01-01", [0, 5], 5], ["2026-01-02", [0, 0], 0], ["2026-01-03", [9, 0], 9]]);
});

test("many agents are a few parts and the others", () => {
  const items = Array.from({ length: 12 }, (_, index) => item("2026-01-01", `agent-${index}`, "m", 100 - index));
  const { names, bars } = buildChart({ since: "2026-01-01", until: "2026-01-01", daily_usage: items }, "workflow");
  assert.equal(names.length, 7);
  assert.equal(names.at(-1), OTHERS);
  assert.equal(bars[0].nano, items.reduce((sum, one) => sum + one.usage.nano_usd, 0));
});

test("the lines behind a chart are round, and none is below its bars", () => {
  for (const most of [0.0003, 0.7, 1, 3.2, 99, 1234]) {
    const lines = buildGridLines(most);
    assert.ok(lines.at(-1) >= most && lines.length <= 7, `${most}: ${lines}`);
  }
  assert.deepEqual(buildGridLines(0), [0, 1]);
});
