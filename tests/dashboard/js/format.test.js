import assert from "node:assert/strict";
import test from "node:test";
import { describeCutOff, formatRelativeTime, formatBytes, formatDuration, formatMoney, formatShortCount, pluralize } from "../../../src/holdfast/server/dashboard/site/js/format.js";

test("durations have the units that people use for them", () => {
  assert.deepEqual([0, 0.0123, 1.26, 42.4, 61, 3660, 90000].map(formatDuration), [
    "0 ms", "12 ms", "1.3 s", "42 s", "1 min 1 s", "1 h 1 min", "1 d 1 h",
  ]);
  assert.equal(formatDuration(59.7), "1 min 0 s");
  assert.equal(formatDuration(3599.8), "1 h 0 min");
  assert.equal(formatDuration(null), "");
});

test("times are relative to now", () => {
  const now = Date.parse("2026-11-16T12:00:00Z");
  assert.equal(formatRelativeTime("2026-11-16T11:59:59.5Z", now), "now");
  assert.equal(formatRelativeTime("2026-11-16T11:57:00Z", now), "3 min ago");
  assert.equal(formatRelativeTime("2026-11-16T14:00:00Z", now), "in 2 h");
  assert.equal(formatRelativeTime("2026-11-13T12:00:00Z", now), "3 d ago");
});

test("money keeps its significant digits", () => {
  assert.deepEqual(["0", "0.013", "0.00042", "1.5", "1234.5", null].map(formatMoney), ["$0", "$0.013", "$0.00042", "$1.50", "$1,234.50", ""]);
});

test("large numbers are short", () => {
  assert.deepEqual([999, 1234, 45678, 2500000].map(formatShortCount), ["999", "1.2k", "46k", "2.5M"]);
  assert.equal(formatBytes(2048), "2.0 KiB");
  assert.equal(pluralize(1, "run"), "1 run");
  assert.equal(pluralize(1200, "run"), "1,200 runs");
  assert.equal(pluralize(2, "delivery", "deliveries"), "2 deliveries");
});

test("an answer that was cut off says by what", () => {
  assert.equal(describeCutOff({ finish_reason: "stop", refusal: "", is_continued: false }), "");
  assert.equal(describeCutOff({ finish_reason: "length", refusal: "", is_continued: false }), "Cut off at the limit of tokens.");
  assert.equal(describeCutOff({ finish_reason: "length", refusal: "", is_continued: true }), "Cut off at the limit of tokens; the model was asked to continue.");
  assert.equal(describeCutOff({ finish_reason: "content_filter", refusal: "I will not.", is_continued: false }), "Cut off by the content filter: I will not.");
});
