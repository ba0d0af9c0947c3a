import assert from "node:assert/strict";
import test from "node:test";

const RUN = "../../../src/holdfast/server/dashboard/site/js/pages/run";
const { buildAxis, buildMarks, computePosition } = await import(`${RUN}/axis.js`);
const { addInFlight, assignLanes, buildRows, computeVisibleRange, countReplays, findTakeovers, isReopened, mergeReport } = await import(`${RUN}/rows.js`);
const { buildTree } = await import(`${RUN}/tree.js`);
const { applyAnswerEvent, applyStepEvent } = await import(`${RUN}/live-events.js`);

const moment = (seconds) => new Date(1e12 + seconds * 1000).toISOString();
const at = (seconds) => 1e12 + seconds * 1000;
let seq = 0;
const record = (number, from, to, more = {}) => ({
  seq: seq++, number, kind: "step", name: `step ${number}`, related_run_id: null, ok: true, attempt_count: 1, worker_id: 1, epoch: 1,
  started_at: moment(from), recorded_at: moment(to), model_call: null, ...more,
});
const report = (journal, more = {}) => ({
  state: "completed", created_at: moment(0), finished_at: moment(9), epoch: 1, claimed_by: null, journal, in_flight: [], related_runs: [], approvals: [], reopened_at: [], skipped_steps: [], takeover_epochs: [], waits_for: null,
  workers: [{ id: 1, name: "w1", is_alive: false, state: "dead" }, { id: 2, name: "w2", is_alive: true, state: "live" }], ...more,
});
const interval = (from, to, work = "here") => ({ begin: at(from), end: at(to), work });

test("work without a pause is to scale", () => {
  const axis = buildAxis([interval(0, 2), interval(2, 10)]);
  assert.equal(axis.segments.length, 1);
  assert.equal(computePosition(axis, at(0)), 0);
  assert.ok(Math.abs(computePosition(axis, at(2)) - 0.2) < 1e-9);
  assert.equal(computePosition(axis, at(10)), 1);
  assert.equal(computePosition(axis, at(99)), 1);
});

test("hours of waiting are folded, so that the work stays visible", () => {
  const axis = buildAxis([interval(0, 4), interval(4, 7204, ""), interval(7204, 7208)]);
  const [first, wait, second] = axis.segments;
  assert.deepEqual([first.folded, wait.folded, second.folded], [false, true, false]);
  assert.ok(Math.abs(first.width - 0.48) < 1e-9);
  assert.ok(Math.abs(wait.width - 0.04) < 1e-9);
  assert.ok(computePosition(axis, at(7206)) > 0.7);
  const { folds, ticks } = buildMarks(axis);
  assert.deepEqual(folds.map((one) => one.seconds), [7200]);
  assert.equal(ticks[0].seconds, 0);
  assert.ok(ticks.some((one) => one.seconds > 7200));
});

test("a long step is work, and a short pause is no fold", () => {
  assert.ok(buildAxis([interval(0, 7200), interval(7200, 7201)]).segments.every((one) => !one.folded));
  assert.ok(buildAxis([interval(0, 1), interval(4, 5)]).segments.every((one) => !one.folded));
  assert.ok(buildAxis([interval(0, 0.1), interval(2, 2.1)]).segments.some((one) => one.folded)); // which nobody would see otherwise
});

test("a child's work is seen, unless it goes on for very long", () => {
  assert.ok(buildAxis([interval(0, 1), interval(1, 300, "elsewhere")]).segments.every((one) => !one.folded));
  assert.ok(buildAxis([interval(0, 1), interval(1, 90000, "elsewhere"), interval(90000, 90001)]).segments.some((one) => one.folded));
});

test("many folds leave room for the work", () => {
  const intervals = [];
  for (let n = 0; n < 100; n++) intervals.push(interval(n * 3600, n * 3600 + 1));
  const axis = buildAxis(intervals);
  assert.ok(axis.segments.filter((one) => one.folded).reduce((sum, one) => sum + one.width, 0) <= 0.4 + 1e-9);
  assert.ok(Math.abs(axis.segments.reduce((sum, one) => sum + one.width, 0) - 1) < 1e-9);
  assert.ok(buildMarks(axis).ticks.length < 16);
});

test("nothing recorded is no error", () => {
  assert.deepEqual(buildAxis([]).segments, []);
  assert.deepEqual(buildRows(report([]), at(1)), []);
});

test("rows are in the order in which things began, and steps in flight grow", () => {
  const slow = record(1, 0, 8);
  const quick = record(2, 1, 2);
  const rows = buildRows(report([quick, slow], { state: "running", in_flight: [{ number: 3, name: "c", updated_at: moment(8) }] }), at(20));
  assert.deepEqual(rows.map((one) => one.key), [`r${slow.seq}`, `r${quick.seq}`, "f3"]);
  assert.equal(rows[2].end, at(20));
});

test("a child that is waited for has a row before its end is recorded", () => {
  const child = { id: "kid", workflow: "w", state: "running", parent: "top", created_at: moment(2), finished_at: null };
  const running = report([record(1, 0, 1)], { id: "top", state: "running", related_runs: [child] });
  assert.deepEqual(buildRows(running, at(7)).map((one) => [one.type, one.end - one.begin]), [["record", 1000], ["child", 5000]]);
});

test("a wait began when the code asked for it, not when it was over", () => {
  const rows = buildRows(report([record(1, 0, 2), record(2, 50, 50, { kind: "signal", name: "paid" }), record(3, 50, 51)]), at(60));
  assert.deepEqual([rows[1].begin, rows[1].end], [at(2), at(50)]);
});

test("an answer is waited for from what came before it, though its beginning has a higher number", () => {
  const journal = [record(1, 0, 1), record(2, 9, 9, { kind: "signal", name: "go" }), record(4, 9, 9.1), record(3, 30, 30, { kind: "approval", name: "approval" })];
  const rows = buildRows(report(journal), at(40));
  assert.deepEqual(rows.map((one) => one.record.number), [1, 2, 3, 4]);
  assert.deepEqual([rows[2].begin, rows[2].end], [at(9), at(30)]);
});

test("an answer is waited for from when it was asked for, where that is known", () => {
  const journal = [record(1, 0, 1), record(2, 0, 80, { kind: "approval" })];
  const approvals = [{ step_number: 2, state: "approved", question: "Really?", requested_at: moment(60) }];
  assert.equal(buildRows(report(journal, { approvals }), at(99))[1].begin, at(60));
});

test("a run that waits says for what, as long as it does", () => {
  const open = [{ state: "open", question: "Really?", requested_at: moment(2) }];
  const rows = (more) => buildRows(report([record(1, 0, 1)], { state: "waiting", waits_for: "signal go", ...more }), at(50));
  assert.deepEqual(rows({}).map((one) => [one.type, one.begin]), [["record", at(0)], ["wait", at(1)]]);
  assert.deepEqual([rows({})[1].waitsFor, rows({ approvals: open })[1].waitsFor, rows({ approvals: open })[1].begin], ["signal go", "an answer to “Really?”", at(2)]);
  assert.equal(rows({ state: "completed" }).length, 1);
});

test("a worker death differs from a handover", () => {
  const journal = [record(1, 0, 1), record(2, 1, 2), record(3, 2.5, 4, { worker_id: 2, epoch: 2 })];
  const [died] = findTakeovers(report(journal, { epoch: 2, takeover_epochs: [2] }));
  assert.deepEqual([died.how, died.from, died.to, died.seconds], ["died", 1, 2, 0.5]);
  const rows = buildRows(report(journal, { epoch: 2, takeover_epochs: [2] }), at(9));
  assert.deepEqual(rows.map((one) => one.type), ["record", "record", "takeover", "record"]);
  assert.equal(findTakeovers(report(journal, { epoch: 2 }))[0].how, "moved"); // it died later
  const woken = [record(1, 0, 1), record(2, 60, 60, { kind: "signal", worker_id: 2, epoch: 2 })];
  assert.equal(findTakeovers(report(woken, { epoch: 2 }))[0].how, "moved");
  const retired = report(journal, { epoch: 2, workers: [{ id: 1, name: "w1", is_alive: false, state: "retired" }] });
  assert.equal(findTakeovers(retired)[0].how, "left");
  assert.deepEqual(findTakeovers(report([record(1, 0, 1), record(2, 9, 10, { epoch: 2 })], { epoch: 2 })), []);
});

test("a retry after the end of a run is not a takeover", () => {
  const journal = [record(1, 0, 1), record(2, 1, 2), record(3, 60, 61, { worker_id: 2, epoch: 2 })];
  const retried = report(journal, { epoch: 2, reopened_at: [moment(50)] });
  assert.deepEqual(findTakeovers(retried), []);
  const rows = buildRows(retried, at(99));
  assert.deepEqual(rows.map((one) => [one.type, one.takeover?.how]), [["record", undefined], ["record", undefined], ["takeover", "reopened"], ["record", undefined]]);
  assert.equal(findTakeovers(report(journal, { epoch: 2, takeover_epochs: [2], reopened_at: [moment(1.5)] }))[0].how, "died");
  const held = { state: "running", epoch: 2, claimed_by: 2, reopened_at: [moment(50)] };
  assert.deepEqual(findTakeovers(report(journal.slice(0, 2), held)), []);
});

test("a takeover is seen before the first record of the new worker", () => {
  const running = report([record(1, 0, 1)], { state: "running", epoch: 2, claimed_by: 2, in_flight: [{ number: 2, name: "b", updated_at: moment(3) }] });
  const [takeover] = findTakeovers(running);
  assert.deepEqual([takeover.how, takeover.to, takeover.at], ["died", 2, at(3)]);
  assert.deepEqual(buildRows(running, at(5)).map((one) => one.type), ["record", "takeover", "flight"]);
});

test("a worker death without a takeover", () => {
  const [takeover] = findTakeovers(report([record(1, 0, 1)], { state: "running", claimed_by: 1 }));
  assert.equal(takeover.how, "alone");
});

test("records given to a fork are not a takeover", () => {
  assert.deepEqual(findTakeovers(report([record(1, 0, 1, { worker_id: 0, epoch: 0 }), record(2, 5, 6)])), []);
});

test("workers have colours by the order in which they came", () => {
  const lanes = assignLanes(report([record(1, 0, 1, { worker_id: 7 }), record(2, 1, 2, { worker_id: 3 })], { claimed_by: 9 }));
  assert.deepEqual([...lanes], [[7, 0], [3, 1], [9, 2]]);
});

test("pages are merged, and read from the start when records were rewound", () => {
  const first = report([record(1, 0, 1)], { state: "failed" });
  const second = mergeReport(first, report([first.journal[0], record(2, 1, 2)]), false);
  assert.equal(second.journal.length, 2);
  assert.equal(mergeReport(second, report([record(9, 0, 1)]), true).journal.length, 1);
  assert.ok(isReopened(first, { state: "pending" }));
  assert.ok(isReopened(first, { state: "failed", finished_at: moment(99) }));
  assert.ok(!isReopened({ state: "running" }, { state: "failed" }));
});

test("a record counts as replayed only where a worker had died", () => {
  assert.deepEqual([1, 2, 3, 4].map((epoch) => countReplays({ epoch: 4, takeover_epochs: [2, 4] }, { epoch })), [2, 1, 1, 0]);
});

test("internal records have no row, and skipped steps have one before what came next", () => {
  const journal = [record(1, 0, 1), record(2, 1, 2, { is_internal: true }), record(3, 2, 3)];
  const skipped = [{ step_number: 2, name: "review", next_number: 3 }, { step_number: 4, name: "report", next_number: 4 }];
  const rows = buildRows(report(journal, { skipped_steps: skipped }), at(9));
  assert.deepEqual(rows.map((row) => row.record?.number ?? row.skipped.name), [1, "review", 3, "report"]);
  const quick = [record(1, 0, 0), record(2, 0, 0)]; // all in the same millisecond
  const mixed = buildRows(report(quick, { skipped_steps: [{ step_number: 2, name: "review", next_number: 2 }] }), at(9));
  assert.deepEqual(mixed.map((row) => row.record?.number ?? row.skipped.name), [1, "review", 2]);
});

test("only rows in view are rendered", () => {
  assert.deepEqual(computeVisibleRange(10000, 30, 30 * 500, 600, 10), { first: 490, last: 530, above: 490 * 30, below: 9470 * 30 });
  assert.deepEqual(computeVisibleRange(3, 30, 0, 600), { first: 0, last: 3, above: 0, below: 0 });
});

test("runs form a tree, also when some parents are missing", () => {
  const items = [{ id: "top", parent: null }, { id: "a", parent: "top" }, { id: "b", parent: "top" }, { id: "a1", parent: "a" }, { id: "lost", parent: "gone" }];
  assert.deepEqual(buildTree({ root: "top", items }).map((one) => `${one.depth}${one.id}`), ["0top", "1a", "2a1", "1b", "0lost"]);
});

test("what was streamed before a worker death stays, marked as retracted", () => {
  let answers = {};
  const apply = (kind, more = {}) => (answers = applyAnswerEvent(answers, { kind, step: 4, name: "model call", text: "", ...more }));
  apply("started");
  apply("text", { text: "One " });
  apply("text", { text: "two" });
  assert.equal(answers[4].text, "One two");
  apply("retracted");
  apply("started");
  apply("text", { text: "Three" });
  assert.deepEqual([answers[4].text, answers[4].retracted, answers[4].done], ["Three", ["One two"], false]);
  apply("answered", { text: "Three four" });
  assert.deepEqual([answers[4].text, answers[4].done], ["Three four", true]);
  assert.deepEqual(applyAnswerEvent(answers, { kind: "reopened", step: null }), {});
  assert.deepEqual(applyAnswerEvent({}, { kind: "step", step: 2, name: "fetch" }), {});
});

test("a step is in flight until its record is read", () => {
  let inFlight = {};
  const apply = (kind, step, more = {}) => (inFlight = applyStepEvent(inFlight, { kind, step, name: "fetch", at: moment(3), data: {}, ...more }));
  apply("started", 2, { data: { attempt: 1, arguments: "url='x'" } });
  apply("text", 2);
  const running = report([record(1, 0, 1)], { state: "running" });
  assert.deepEqual(addInFlight(running, inFlight).in_flight.map((one) => [one.number, one.attempt, one.arguments]), [[2, 1, "url='x'"]]);
  assert.deepEqual(addInFlight({ ...running, journal: [record(2, 0, 1)] }, inFlight).in_flight, []);
  const reported = { number: 2, name: "fetch", attempt: 3, is_once: true, error: "no", progress: null, updated_at: moment(5) };
  assert.deepEqual(addInFlight({ ...running, in_flight: [reported] }, inFlight).in_flight, [reported]);
  const waiting = { ...reported, updated_at: moment(2), retry_at: moment(60) };
  assert.deepEqual(addInFlight({ ...running, in_flight: [waiting] }, inFlight).in_flight.map((one) => one.retry_at), [null]); // that attempt has begun
  apply("step", 2, { at: moment(4) });
  const [ended] = addInFlight(running, inFlight).in_flight;
  assert.deepEqual([ended.number, ended.updated_at, ended.ended], [2, moment(3), moment(4)]); // until its record is read
  assert.deepEqual(buildRows({ ...running, in_flight: [ended] }, at(9)).map((one) => one.end), [at(1), at(4)]);
  assert.deepEqual(addInFlight({ ...running, journal: [record(2, 3, 4)] }, inFlight).in_flight, []);
  for (let step = 3; step < 60; step += 1) {
    apply("started", step);
    apply("step", step);
  }
  assert.equal(Object.keys(inFlight).length, 20);
  apply("ended", null);
  assert.deepEqual(inFlight, {});
});

test("a settled step took no worker's time", () => {
  const [row] = buildRows(report([record(1, 0, 9, { attempt_count: 0, worker_id: 0, epoch: 0 })]), at(10));
  assert.deepEqual([row.begin, row.end], [at(9), at(9)]);
});

test("a takeover is where the next worker began, whatever has ended since", () => {
  const inFlight = [{ number: 2, name: "b", updated_at: moment(3), ended: moment(5) }, { number: 3, name: "c", updated_at: moment(5) }];
  const [takeover] = findTakeovers(report([record(1, 0, 1)], { state: "running", epoch: 2, claimed_by: 2, in_flight: inFlight }));
  assert.deepEqual([takeover.at, takeover.seconds], [at(3), 2]);
});
