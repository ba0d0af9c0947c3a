"""Holds the journals of the soak against its ledger while it goes on.

A run is looked at when it has ended and every worker that was stopped meanwhile has had time to go on; then all that
was kept of it is dropped. So the memory that this takes depends on how many runs there are at a time, not on how long
it lasts. The rules are those of ``ledger.check_end``, made for workers that come back:

- every run ends as its workflow is meant to, with the right result, which is also what its client was told;
- a step begins again only if the worker that began it was declared dead, or handed over in a hurry, with it in flight:
  never after its outcome was recorded, and never in a worker that left in good order;
- a ``once`` step begins at most once, whatever happens;
- signals are consumed once each and in order, journals have no gaps, and epochs never fall.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Container
from pathlib import Path
from typing import Any

from ledger import Journal, Line, Recorded, _check_shape
from soak_expectations import check_pauses, check_result, check_signals
from soak_reader import StoreReader, Tail, WorkerRow
from soak_workers import Crew, Strike

SETTLE = 4.5
"""A run is looked at so many seconds after it ended: longer than anybody is stopped."""
LONGEST = 45.0
"""Seconds in which a run ends, strikes or not; on a quiet machine the longest take about three."""
SAMPLE = 10_000
SKEW = 0.05
"""Seconds: on Postgres records have the time of the database, which workers know to within a round trip."""
LATE = 0.05
"""Seconds after SIGCONT in which a worker may begin a step that it was about to begin at SIGSTOP.

It looks at its lease before it begins anything, but it can be stopped between the look and the deed: the effect itself
would have to know the fence for that never to happen. How often it does is counted.
"""
ONCE = ("pay_once",)
ENDS = ("finish", "fail", "stopped")


class Watched:
    """What is known of a run that has not been checked yet."""

    __slots__ = ("began", "ended", "lines", "told")

    def __init__(self) -> None:
        self.began = time.time()
        self.ended = 0.0
        self.lines: list[Line] = []
        self.told: tuple[str, Any] | None = None
        """How its client saw it end."""


class Sample:
    """As many numbers as fit, drawn evenly from all that there were."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[float] = []
        self._chance = random.Random(0)

    def add(self, value: float) -> None:
        self.count += 1
        if len(self._kept) < SAMPLE:
            self._kept.append(value)
        elif (place := self._chance.randrange(self.count)) < SAMPLE:
            self._kept[place] = value

    def at(self, share: float) -> float:
        """The value below which this share of them lies."""
        return sorted(self._kept)[int(share * (len(self._kept) - 1))] if self._kept else 0.0


class Checker:
    """Follows the ledger, the starter and the store."""

    def __init__(self, folder: Path, crew: Crew, store: StoreReader) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        """Runs, steps and outcomes of ``once`` steps by kind; what was seen at all."""
        self.takeovers: dict[str, Sample] = {kind: Sample() for kind in ("kill", "stop", "hurry")}
        """Seconds from the strike until somebody else began the step that was in flight."""
        self.retried: list[str] = []
        """Runs found dead since the last look, which a person would let go on."""
        self.late: deque[str] = deque(maxlen=20)
        """Steps that a stopped worker was about to begin, and began when somebody else had the run."""
        self.unprovoked: deque[str] = deque(maxlen=20)
        """Workers that lost their lease although nobody had struck them: the machine was too busy for them."""
        self._crew = crew
        self._ledger, self._starts = Tail(folder / "ledger"), Tail(folder / "starts")
        self._watched: dict[str, Watched] = {}
        self._workers: dict[int, WorkerRow] = {}
        self._by_pid: dict[int, list[int]] = {}
        self._first = 1

    # Following

    def look(self) -> None:
        """Take in what has happened, and check the runs that are ripe."""
        lines = self._ledger.read()  # before the starts: a run is announced before any of its steps begins
        for what, run, *rest in self._starts.read():
            self._hear(what, run, rest)
        for fields in lines:
            self._note(Line(*fields))
        open_runs = [run for run, watched in self._watched.items() if not watched.ended]
        states = self.store.ended(open_runs)
        self._read_workers()  # after the runs: the workers that had a hand in these are there
        now = time.time()
        for run, state in states:
            if state == "dead":
                self._check_death(self.store.journals([run])[run])
                self.retried.append(run)
            else:
                self._watched[run].ended = now
        self._check_ripe(now - SETTLE)
        self._check_patience(now)

    def _hear(self, what: str, run: str, rest: list[Any]) -> None:
        if what == "begin":
            assert run not in self._watched, f"{run} was begun twice"
            self._watched[run] = Watched()
        elif what == "ended":
            watched = self._watched.get(run)
            assert watched is not None, f"run {run}: its client was told of its end long after it"
            watched.told = (rest[0], rest[1])

    def _note(self, line: Line) -> None:
        watched = self._watched.get(line.run)
        if watched is not None:
            watched.lines.append(line)
        else:
            assert line.phase in ENDS, f"run {line.run} had ended, and more was done for it: {line}"

    def _read_workers(self) -> None:
        for row in self.store.workers(self._first):
            known = self._workers.get(row.id)
            self._workers[row.id] = row
            if known is None:
                self._by_pid.setdefault(row.pid, []).append(row.id)
            if row.state == "dead" and (known is None or known.state != "dead"):
                self._check_burial(row)

    def _check_burial(self, row: WorkerRow) -> None:
        member = self._crew.process_of(row.pid, row.started_at)
        if not any(strike.kind in ("kill", "stop") and strike.end >= row.started_at for strike in member.strikes):
            self.counts["unprovoked"] += 1
            self.unprovoked.append(f"{time.time():.2f}: {row} {member.app}")

    def _check_ripe(self, before: float) -> None:
        ripe = [run for run, watched in self._watched.items() if watched.ended and watched.ended < before]
        ripe = [run for run in ripe if self._watched[run].told or not run.startswith("child-")]  # it is told of later
        for run, journal in self.store.journals(ripe).items():
            watched = self._watched.pop(run)
            try:
                self._check_run(journal, watched)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.describe(journal, watched)}") from None
        oldest = min((watched.began for watched in self._watched.values()), default=time.time())
        self._crew.forget(oldest)
        self._forget_workers(oldest)

    def _forget_workers(self, oldest: float) -> None:
        """Drop the workers that cannot have had a hand in a run that is still to be checked."""
        while (row := self._workers.get(self._first)) is not None and row.state != "live":
            if self._crew.is_known(row.pid, row.started_at) or row.started_at > oldest:
                return
            del self._workers[row.id]
            self._by_pid[row.pid].remove(row.id)
            if not self._by_pid[row.pid]:
                del self._by_pid[row.pid]
            self._first += 1

    def _check_patience(self, now: float) -> None:
        late = [run for run, watched in self._watched.items() if not watched.ended and now - watched.began > LONGEST]
        assert not late, f"not ended after {LONGEST} s:\n{self.explain(late)}"

    @property
    def open(self) -> int:
        """How many runs have not ended, or their clients have not heard of it."""
        return sum(not watched.ended or watched.told is None for watched in self._watched.values())

    def explain_open(self) -> str:
        """What keeps those from ending."""
        return self.explain([run for run, watched in self._watched.items() if not watched.ended])

    def finish(self) -> None:
        """Everybody has ended: check what is left."""
        self.look()
        self._check_ripe(time.time() + 1)
        assert not self._watched, self.explain(list(self._watched))

    # One run

    def _check_run(self, journal: Journal, watched: Watched) -> None:
        check_result(journal)
        _check_shape(journal)
        check_signals(journal)
        check_pauses(journal)
        last = journal.records[-1]
        assert journal.epoch >= last.epoch, "its epoch has fallen below that of its last record"
        assert not journal.attempts, f"it ended, and left the attempts {journal.attempts}"
        assert watched.told is not None, "it ended, and its client was not told"
        state, result = watched.told
        assert state == journal.state, f"its client was told that it {state}"
        assert state == "failed" or result == journal.output, f"its client was told {result}"
        by_key: dict[str, list[Line]] = {}
        for line in watched.lines:
            by_key.setdefault(line.key, []).append(line)
        for key, record in journal.steps.items():
            self._check_step(record, sorted(by_key.pop(key, []), key=lambda line: line.at))
        assert not by_key, f"effects of which the journal does not know: {by_key}"
        self.counts["runs"] += 1
        self.counts["taken over"] += any(record.epoch != journal.records[0].epoch for record in journal.records)
        self.counts["signals"] += len([record for record in journal.records if record.name == "letter"])

    def _check_step(self, record: Recorded, lines: list[Line]) -> None:
        self.counts["steps"] += 1
        starts = [line for line in lines if line.phase == "start"]
        assert record.name not in ONCE or len(starts) <= 1, f"a `once` step was begun more than once: {starts}"
        late = [line for line in starts if self._is_late(line, record, starts)]
        self.counts["late"] += len(late)
        self.late.extend(f"{line} recorded {record.at}" for line in late)
        starts = [line for line in starts if line not in late]
        makers = [self._maker(line) for line in starts]
        recorded_at = record.at + SKEW
        again = [line for line in starts if line.at > recorded_at]
        assert not again, f"recorded at {record.at}, and begun again: {again}"
        if record.name in ONCE and not record.ok:
            self._check_unknown(record, starts, makers)
            return
        assert starts, f"recorded, and never carried out: {record}"
        assert makers[-1].id == record.worker, f"recorded by worker {record.worker}, and last begun by {makers[-1]}"
        assert starts[-1].attempt == record.attempts, f"the journal counts {record.attempts} attempts: {starts}"
        wanted = "finish" if record.ok else "fail"
        assert any(line.phase == wanted and starts[-1].at <= line.at <= recorded_at for line in lines), (
            f"recorded as {wanted} at {record.at}, and it did not end so: {lines}"
        )
        self._check_sessions(starts, makers, {(line.pid, line.attempt) for line in lines if line.phase == "fail"})
        self.counts["begun again"] += len({maker.id for maker in makers}) - 1

    def _check_unknown(self, record: Recorded, starts: list[Line], makers: list[WorkerRow]) -> None:
        assert b"StepOutcomeUnknown" in (record.payload or b""), f"{record}"
        assert record.epoch > 1, f"nobody else has had the run, so its outcome cannot be unknown: {record}"
        for maker in makers:
            assert maker.id != record.worker, f"its outcome is known to the worker that began it: {starts}"
            self._excuse(maker, starts[0])
        self.counts["unknown"] += 1

    def _check_sessions(self, starts: list[Line], makers: list[WorkerRow], failed: Container[tuple[int, int]]) -> None:
        """Workers had the step one after the other, and each made its attempts in order.

        All but the last were hit, or were told to stop and handed the run over between two attempts.
        """
        begun = list(zip(starts, makers, strict=True))
        for place, ((line, maker), (after, successor)) in enumerate(itertools.pairwise(begun), 1):
            if maker.id == successor.id:
                assert after.attempt == line.attempt + 1, f"an attempt was made twice by worker {maker}: {starts}"
                continue
            if (line.pid, line.attempt) in failed and after.attempt == line.attempt + 1 and maker.state == "retired":
                continue
            strike = self._excuse(maker, line)
            assert maker.id not in [other.id for other in makers[place:]], f"worker {maker} came back: {starts}"
            if strike is not None and strike.kind in self.takeovers and after.at > strike.at:
                self.takeovers[strike.kind].add(after.at - strike.at)

    def _excuse(self, maker: WorkerRow, line: Line) -> Strike | None:
        """Why a step that this worker began had no outcome from it; the strike, if it was one."""
        member = self._crew.process_of(maker.pid, maker.started_at)
        strike = next((strike for strike in member.strikes if strike.end >= line.at), None)
        hurried = strike is not None and strike.kind == "hurry"
        assert maker.state == "dead" or hurried, f"{maker} left a step in good order, with no outcome: {line} {strike}"
        return strike

    def _maker(self, line: Line) -> WorkerRow:
        """The worker that its process was at this time."""
        rows = [self._workers[number] for number in self._by_pid.get(line.pid, ())]
        rows = [row for row in rows if row.started_at <= line.at]
        assert rows, f"begun by a process that was no worker: {line}"
        return rows[-1]

    def _is_late(self, line: Line, record: Recorded, starts: list[Line]) -> bool:
        """Whether this step was about to begin when its worker was stopped, and somebody else had it meanwhile.

        It may also have come back in time, and have been struck again before anybody else had the step.
        """
        maker = self._maker(line)
        strikes = self._crew.process_of(maker.pid, maker.started_at).strikes
        just_went_on = any(s.kind == "stop" and 0 <= line.at - s.end < LATE for s in strikes)
        taken_over_at = min(
            (o.at for o in starts if o.at > line.at and self._maker(o).id != maker.id), default=record.at
        )
        again = any(line.at < s.at <= taken_over_at for s in strikes)
        return just_went_on and not again and maker.id != record.worker

    def _check_death(self, journal: Journal) -> None:
        """A run is dead only if three of its workers were struck since its last record."""
        since = journal.records[-1].at if journal.records else 0.0
        strikes = [strike for strike in self._crew.recent if strike.kind == "stop" and strike.end > since]
        strikes += [strike for strike in self._crew.recent if strike.kind == "kill" and strike.at > since]
        deaths = len(strikes) + self.counts["unprovoked"]
        assert journal.deliveries == 3, f"dead after {journal.deliveries} deliveries: {journal}"
        assert deaths >= 3, f"dead after {deaths} strikes since its last record: {journal} {strikes}"
        self.counts["dead"] += 1

    # In words

    def describe(self, journal: Journal, watched: Watched) -> str:
        """All that there is to see of a run."""
        lines = [f"  {line} by {self._maker(line)}" for line in watched.lines]
        records = [f"  {record}" for record in journal.records]
        strikes = [f"  {strike}" for strike in self._strikes_of({line.pid for line in watched.lines})]
        head = f"run {journal.id}: {journal.state}, epoch {journal.epoch}, deliveries {journal.deliveries}"
        makers = {self._maker(line) for line in watched.lines} | {
            self._workers[record.worker] for record in journal.records
        }
        said = [str(app) for app in {self._crew.process_of(maker.pid, maker.started_at).app for maker in makers}]
        return "\n".join([head, "journal:", *records, "ledger:", *lines, "strikes on its workers:", *strikes, *said])

    def explain(self, runs: list[str]) -> str:
        """Why runs have not ended, as far as can be seen from outside."""
        rows = {row.id: row for row in self.store.workers(1)}
        parts = [f"{len(runs)} runs, of which:"]
        journals = self.store.journals(runs[:5])
        for held in self.store.held(journals):
            owner = rows.get(held.owner or 0)
            parts += [f"{held} held by {owner}", self.describe(journals[held.id], self._watched[held.id])]
        return "\n".join([*parts, "workers:", self._crew.stacks()])

    def _strikes_of(self, pids: set[int]) -> list[Strike]:
        return [strike for strike in self._crew.recent if strike.pid in pids]
