import assert from "node:assert/strict";
import test from "node:test";
import { buildQuery, describeStatus, mergePage, shorten, toggleState } from "../../../src/holdfast/server/dashboard/site/js/pages/runs/list.js";

const run = (id, more = {}) => ({ id, created_at: `2026-11-16T10:00:${String(id).padStart(2, "0")}Z`, state: "running", ...more });
const ids = (rows) => rows.map((one) => one.id);

test("the query of the address becomes the parameters of the request", () => {
  const now = Date.parse("2026-11-16T10:00:30Z");
  assert.deepEqual(buildQuery({ state: "failed,dead", workflow: "etl", tag: "eu", parent: "p", q: " oops ", since: "hour", tab: "x" }, now), {
    state: ["failed", "dead"], workflow: "etl", tag: "eu", parent: "p", text: "oops", created_after: "2026-11-16T09:00:00.000Z",
  });
  assert.deepEqual(buildQuery({ since: "ever", q: " " }, now), {});
});

test("a state is toggled, and several are in the order of a run's life", () => {
  assert.equal(toggleState("", "failed"), "failed");
  assert.equal(toggleState("failed", "pending"), "pending,failed");
  assert.equal(toggleState("pending,failed", "failed"), "pending");
});

test("new runs come to the top, and those below the page stay", () => {
  const shown = [run(5), run(4), run(3), run(2)];
  const page = { items: [run(7), run(6), run(5, { state: "completed" }), run(4)], next: "c" };
  const result = mergePage(shown, page, false);
  assert.deepEqual(ids(result.rows), [7, 6, 5, 4, 3, 2]);
  assert.equal(result.rows[2].state, "completed");
  assert.equal(result.newCount, 0);
});

test("a held list is updated in place, and counts new runs", () => {
  const shown = [run(5), run(4), run(3)];
  const page = { items: [run(7), run(6), run(5, { state: "completed" }), run(3)], next: "c" };
  const result = mergePage(shown, page, true);
  assert.deepEqual(ids(result.rows), [5, 4, 3]);
  assert.equal(result.rows[0].state, "completed");
  assert.equal(result.rows[1].isOutdated, true);
  assert.equal(result.newCount, 2);
});

test("runs that no longer match are removed, as far as the page has searched", () => {
  const shown = [run(9), run(5), run(4), run(3)];
  assert.deepEqual(ids(mergePage(shown, { items: [run(9), run(4)], next: "c" }, false).rows), [9, 4, 3]);
  assert.deepEqual(ids(mergePage(shown, { items: [run(9)], next: "c", searched_until: "2026-11-16T10:00:04.500Z" }, false).rows), [9, 4, 3]);
  assert.deepEqual(ids(mergePage(shown, { items: [run(9)], next: null }, false).rows), [9]);
});

test("a run's status is its error, why it is stalled, or what it waits for", () => {
  assert.deepEqual(describeStatus(run(1, { stall_advice: "no live worker serves it: start one", stall_summary: "no worker" })), { tone: "warn", text: "no worker", fullText: "no live worker serves it: start one" });
  assert.deepEqual(describeStatus(run(1, { state: "failed", error: { type: "builtins.ValueError", message: "a\nb" } })), { tone: "bad", text: "ValueError: a", fullText: "ValueError: a\nb" });
  assert.deepEqual(describeStatus(run(1, { state: "waiting", waits_for: "signal 'paid'" })).text, "waits for signal 'paid'");
  assert.equal(describeStatus(run(1)), null);
  assert.equal(shorten("x".repeat(200)).length, 140);
});
