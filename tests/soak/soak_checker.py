"""Compares the journals of the soak with its ledger while it runs.

A run is checked when it has ended and every worker that was stopped meanwhile has had time to resume. Then it is
forgotten, so memory depends on the number of concurrent runs and not on the duration. The rules are those of
``ledger.check_end``, adapted to workers that come back:

- Every run ends as its workflow should, with the right result, and its client got the same result.
- A step starts again only if the worker that started it was declared dead, or handed over in a hurry, with the step in
  flight: never after its outcome was recorded, and never if the worker shut down cleanly.
- A ``once`` step starts at most once.
- Signals are consumed once each and in order, journals have no gaps, and epochs never fall.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Container
from pathlib import Path
from typing import Any

from ledger import Journal, LedgerLine, RecordRow, _check_shape
from soak_expectations import check_pauses, check_result, check_signals
from soak_reader import StoreReader, Tail, WorkerRow
from soak_workers import Fault, WorkerFleet

CHECK_DELAY_S = 4.5
"""A run is checked this long after it ended, which is longer than any worker is stopped."""
MAX_RUN_S = 45.0
"""Every run ends within this time; on a quiet machine the longest take about three seconds."""
SAMPLE_SIZE = 10_000
MAX_SKEW_S = 0.05
"""On Postgres, records have the database's time, which workers know to within a round trip."""
MAX_LATE_S = 0.05
"""After SIGCONT, a worker may start a step within this time that it was about to start at SIGSTOP.

It checks its lease before it starts a step, but it can be stopped between the check and the start. Only an effect that
checks the fence itself could prevent that. The checker counts how often it happens.
"""
ONCE = ("pay_once",)
ENDS = ("finish", "fail", "stopped")


class OpenRun:
    """A run that has not been checked yet."""

    __slots__ = ("began", "ended", "lines", "reported")

    def __init__(self) -> None:
        self.began = time.time()
        self.ended = 0.0
        self.lines: list[LedgerLine] = []
        self.reported: tuple[str, Any] | None = None
        """The state and result that its client got."""


class Sample:
    """An even sample of numbers, of limited size."""

    def __init__(self) -> None:
        self.count = 0
        self._values: list[float] = []
        self._chance = random.Random(0)

    def add(self, value: float) -> None:
        self.count += 1
        if len(self._values) < SAMPLE_SIZE:
            self._values.append(value)
        elif (index := self._chance.randrange(self.count)) < SAMPLE_SIZE:
            self._values[index] = value

    def at(self, share: float) -> float:
        """The quantile of this share."""
        return sorted(self._values)[int(share * (len(self._values) - 1))] if self._values else 0.0


class Checker:
    """Follows the ledger, the starter and the store."""

    def __init__(self, folder: Path, fleet: WorkerFleet, store: StoreReader) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        """What the checker saw: runs, steps, and outcomes of ``once`` steps by kind."""
        self.takeovers: dict[str, Sample] = {kind: Sample() for kind in ("kill", "stop", "hurry")}
        """Seconds from the fault until another worker started the step that was in flight."""
        self.retried: list[str] = []
        """Runs found dead since the last poll, which an operator would retry."""
        self.late: deque[str] = deque(maxlen=20)
        """Steps that a stopped worker was about to start, and started when another worker had the run."""
        self.unprovoked: deque[str] = deque(maxlen=20)
        """Workers that lost their lease without a fault, because the machine was too busy."""
        self._fleet = fleet
        self._ledger, self._starts = Tail(folder / "ledger"), Tail(folder / "starts")
        self._open_runs: dict[str, OpenRun] = {}
        self._workers: dict[int, WorkerRow] = {}
        self._by_pid: dict[int, list[int]] = {}
        self._first = 1

    # Following

    def poll(self) -> None:
        """Read what has happened, and check the runs that ended long enough ago."""
        lines = self._ledger.read()  # before the starts: a run is announced before any of its steps begins
        for what, run, *rest in self._starts.read():
            self._handle_start(what, run, rest)
        for fields in lines:
            self._add_line(LedgerLine(*fields))
        open_runs = [run for run, open_run in self._open_runs.items() if not open_run.ended]
        states = self.store.list_ended(open_runs)
        self._read_workers()  # after the runs: the workers that had a hand in these are there
        now = time.time()
        for run, state in states:
            if state == "dead":
                self._check_death(self.store.journals([run])[run])
                self.retried.append(run)
            else:
                self._open_runs[run].ended = now
        self._check_ended_runs(now - CHECK_DELAY_S)
        self._check_durations(now)

    def _handle_start(self, what: str, run: str, rest: list[Any]) -> None:
        if what == "begin":
            assert run not in self._open_runs, f"{run} was begun twice"
            self._open_runs[run] = OpenRun()
        elif what == "ended":
            open_run = self._open_runs.get(run)
            assert open_run is not None, f"run {run}: its client was told of its end long after it"
            open_run.reported = (rest[0], rest[1])

    def _add_line(self, line: LedgerLine) -> None:
        open_run = self._open_runs.get(line.run)
        if open_run is not None:
            open_run.lines.append(line)
        else:
            assert line.phase in ENDS, f"run {line.run} had ended, and more was done for it: {line}"

    def _read_workers(self) -> None:
        for row in self.store.workers(self._first):
            known = self._workers.get(row.id)
            self._workers[row.id] = row
            if known is None:
                self._by_pid.setdefault(row.pid, []).append(row.id)
            if row.state == "dead" and (known is None or known.state != "dead"):
                self._check_dead_worker(row)

    def _check_dead_worker(self, row: WorkerRow) -> None:
        process = self._fleet.get_process(row.pid, row.started_at)
        if not any(fault.kind in ("kill", "stop") and fault.end >= row.started_at for fault in process.faults):
            self.counts["unprovoked"] += 1
            self.unprovoked.append(f"{time.time():.2f}: {row} {process.app}")

    def _check_ended_runs(self, before: float) -> None:
        ended_runs = [run for run, open_run in self._open_runs.items() if open_run.ended and open_run.ended < before]
        ended_runs = [
            run for run in ended_runs if self._open_runs[run].reported or not run.startswith("child-")
        ]  # it is told of later
        for run, journal in self.store.journals(ended_runs).items():
            open_run = self._open_runs.pop(run)
            try:
                self._check_run(journal, open_run)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.describe(journal, open_run)}") from None
        oldest = min((open_run.began for open_run in self._open_runs.values()), default=time.time())
        self._fleet.forget(oldest)
        self._forget_workers(oldest)

    def _forget_workers(self, oldest: float) -> None:
        """Forget the workers that cannot have executed a run that is still to be checked."""
        while (row := self._workers.get(self._first)) is not None and row.state != "live":
            if self._fleet.is_known(row.pid, row.started_at) or row.started_at > oldest:
                return
            del self._workers[row.id]
            self._by_pid[row.pid].remove(row.id)
            if not self._by_pid[row.pid]:
                del self._by_pid[row.pid]
            self._first += 1

    def _check_durations(self, now: float) -> None:
        late = [
            run for run, open_run in self._open_runs.items() if not open_run.ended and now - open_run.began > MAX_RUN_S
        ]
        assert not late, f"not ended after {MAX_RUN_S} s:\n{self.explain(late)}"

    @property
    def open(self) -> int:
        """Number of runs that have not ended, or whose clients do not know it yet."""
        return sum(not open_run.ended or open_run.reported is None for open_run in self._open_runs.values())

    def explain_open(self) -> str:
        """Details of the runs that have not ended."""
        return self.explain([run for run, open_run in self._open_runs.items() if not open_run.ended])

    def finish(self) -> None:
        """Check the remaining runs, after all processes have ended."""
        self.poll()
        self._check_ended_runs(time.time() + 1)
        assert not self._open_runs, self.explain(list(self._open_runs))

    # One run

    def _check_run(self, journal: Journal, open_run: OpenRun) -> None:
        check_result(journal)
        _check_shape(journal)
        check_signals(journal)
        check_pauses(journal)
        last = journal.records[-1]
        assert journal.epoch >= last.epoch, "its epoch has fallen below that of its last record"
        assert not journal.attempts, f"it ended, and left the attempts {journal.attempts}"
        assert open_run.reported is not None, "it ended, and its client was not told"
        state, result = open_run.reported
        assert state == journal.state, f"its client was told that it {state}"
        assert state == "failed" or result == journal.output, f"its client was told {result}"
        by_key: dict[str, list[LedgerLine]] = {}
        for line in open_run.lines:
            by_key.setdefault(line.key, []).append(line)
        for key, record in journal.steps.items():
            self._check_step(record, sorted(by_key.pop(key, []), key=lambda line: line.at))
        assert not by_key, f"effects of which the journal does not know: {by_key}"
        self.counts["runs"] += 1
        self.counts["taken over"] += any(record.epoch != journal.records[0].epoch for record in journal.records)
        self.counts["signals"] += len([record for record in journal.records if record.name == "letter"])

    def _check_step(self, record: RecordRow, lines: list[LedgerLine]) -> None:
        self.counts["steps"] += 1
        starts = [line for line in lines if line.phase == "start"]
        assert record.name not in ONCE or len(starts) <= 1, f"a `once` step was begun more than once: {starts}"
        late = [line for line in starts if self._is_late(line, record, starts)]
        self.counts["late"] += len(late)
        self.late.extend(f"{line} recorded {record.at}" for line in late)
        starts = [line for line in starts if line not in late]
        workers = [self._find_worker(line) for line in starts]
        recorded_at = record.at + MAX_SKEW_S
        again = [line for line in starts if line.at > recorded_at]
        assert not again, f"recorded at {record.at}, and begun again: {again}"
        if record.name in ONCE and not record.ok:
            self._check_unknown(record, starts, workers)
            return
        assert starts, f"recorded, and never carried out: {record}"
        assert workers[-1].id == record.worker, f"recorded by worker {record.worker}, and last begun by {workers[-1]}"
        assert starts[-1].attempt == record.attempts, f"the journal counts {record.attempts} attempts: {starts}"
        wanted = "finish" if record.ok else "fail"
        assert any(line.phase == wanted and starts[-1].at <= line.at <= recorded_at for line in lines), (
            f"recorded as {wanted} at {record.at}, and it did not end so: {lines}"
        )
        self._check_sessions(starts, workers, {(line.pid, line.attempt) for line in lines if line.phase == "fail"})
        self.counts["begun again"] += len({worker.id for worker in workers}) - 1

    def _check_unknown(self, record: RecordRow, starts: list[LedgerLine], workers: list[WorkerRow]) -> None:
        assert b"StepOutcomeUnknown" in (record.payload or b""), f"{record}"
        assert record.epoch > 1, f"nobody else has had the run, so its outcome cannot be unknown: {record}"
        for worker in workers:
            assert worker.id != record.worker, f"its outcome is known to the worker that began it: {starts}"
            self._explain_missing_outcome(worker, starts[0])
        self.counts["unknown"] += 1

    def _check_sessions(
        self, starts: list[LedgerLine], workers: list[WorkerRow], failed: Container[tuple[int, int]]
    ) -> None:
        """Workers had the step one after the other, and each made its attempts in order.

        All but the last were hit, or were told to stop and handed the run over between two attempts.
        """
        begun = list(zip(starts, workers, strict=True))
        for index, ((line, worker), (after, successor)) in enumerate(itertools.pairwise(begun), 1):
            if worker.id == successor.id:
                assert after.attempt == line.attempt + 1, f"an attempt was made twice by worker {worker}: {starts}"
                continue
            if (line.pid, line.attempt) in failed and after.attempt == line.attempt + 1 and worker.state == "retired":
                continue
            fault = self._explain_missing_outcome(worker, line)
            assert worker.id not in [other.id for other in workers[index:]], f"worker {worker} came back: {starts}"
            if fault is not None and fault.kind in self.takeovers and after.at > fault.at:
                self.takeovers[fault.kind].add(after.at - fault.at)

    def _explain_missing_outcome(self, worker: WorkerRow, line: LedgerLine) -> Fault | None:
        """Why a step that this worker began had no outcome from it; the fault, if it was one."""
        process = self._fleet.get_process(worker.pid, worker.started_at)
        fault = next((fault for fault in process.faults if fault.end >= line.at), None)
        hurried = fault is not None and fault.kind == "hurry"
        assert worker.state == "dead" or hurried, f"{worker} left a step in good order, with no outcome: {line} {fault}"
        return fault

    def _find_worker(self, line: LedgerLine) -> WorkerRow:
        """The worker that the line's process was registered as at that time."""
        rows = [self._workers[number] for number in self._by_pid.get(line.pid, ())]
        rows = [row for row in rows if row.started_at <= line.at]
        assert rows, f"begun by a process that was no worker: {line}"
        return rows[-1]

    def _is_late(self, line: LedgerLine, record: RecordRow, starts: list[LedgerLine]) -> bool:
        """Whether a stopped worker was about to start the step, and started it after another worker had the run.

        A worker may also resume in time and be hit again before another worker has the step; that is not late.
        """
        worker = self._find_worker(line)
        faults = self._fleet.get_process(worker.pid, worker.started_at).faults
        just_resumed = any(fault.kind == "stop" and 0 <= line.at - fault.end < MAX_LATE_S for fault in faults)
        taken_over_at = min(
            (o.at for o in starts if o.at > line.at and self._find_worker(o).id != worker.id), default=record.at
        )
        was_hit_again = any(line.at < fault.at <= taken_over_at for fault in faults)
        return just_resumed and not was_hit_again and worker.id != record.worker

    def _check_death(self, journal: Journal) -> None:
        """A run may be dead only if three of its workers had faults since its last record."""
        since = journal.records[-1].at if journal.records else 0.0
        faults = [fault for fault in self._fleet.recent_faults if fault.kind == "stop" and fault.end > since]
        faults += [fault for fault in self._fleet.recent_faults if fault.kind == "kill" and fault.at > since]
        death_count = len(faults) + self.counts["unprovoked"]
        assert journal.deliveries == 3, f"dead after {journal.deliveries} deliveries: {journal}"
        assert death_count >= 3, f"dead after {death_count} faults since its last record: {journal} {faults}"
        self.counts["dead"] += 1

    # In words

    def describe(self, journal: Journal, open_run: OpenRun) -> str:
        """All that there is to see of a run."""
        lines = [f"  {line} by {self._find_worker(line)}" for line in open_run.lines]
        records = [f"  {record}" for record in journal.records]
        faults = [f"  {fault}" for fault in self._list_faults({line.pid for line in open_run.lines})]
        head = f"run {journal.id}: {journal.state}, epoch {journal.epoch}, deliveries {journal.deliveries}"
        workers = {self._find_worker(line) for line in open_run.lines} | {
            self._workers[record.worker] for record in journal.records
        }
        said = [str(app) for app in {self._fleet.get_process(worker.pid, worker.started_at).app for worker in workers}]
        return "\n".join([head, "journal:", *records, "ledger:", *lines, "faults of its workers:", *faults, *said])

    def explain(self, runs: list[str]) -> str:
        """Why runs have not ended, as far as can be seen from outside."""
        rows = {row.id: row for row in self.store.workers(1)}
        parts = [f"{len(runs)} runs, of which:"]
        journals = self.store.journals(runs[:5])
        for held in self.store.list_runs(journals):
            owner = rows.get(held.owner or 0)
            parts += [f"{held} held by {owner}", self.describe(journals[held.id], self._open_runs[held.id])]
        return "\n".join([*parts, "workers:", self._fleet.dump_stacks()])

    def _list_faults(self, pids: set[int]) -> list[Fault]:
        return [fault for fault in self._fleet.recent_faults if fault.pid in pids]
