# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""Queues with limits, in memory: whatever is asked of a queue, all of its runs are looked at.

A gate is opened anew for each claim, with what is running then. So nothing has to be counted while runs come and go,
and nothing can be counted wrongly: this is what the other stores are compared with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.admission.queue_limits import Admission, Gate, QueueLimits, next_turn
from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.memory.tables import QueueRow, Tables
from holdfast.stores.operations import Cancel, Run
from holdfast.stores.queues import MOST_KEYS, KeptQueue, NewQueue, QueueKey


class Queueing(Tables):
    """What the store has to do with limited queues."""

    @abstractmethod
    def _announce(self) -> None:
        """Tell whoever waits that something was written."""

    # The rows

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        with self._lock:
            for new in queues:
                self._row_of(new.name).declared = new.limits
        self._announce()

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        with self._lock:
            known = self._queues.get(name)
            if limits == (None if known is None else known.by_hand):
                return False
            self._row_of(name).by_hand = limits
            self._drop_if_unneeded(name)
        self._announce()
        return True

    async def pause_queue(self, name: str) -> bool:
        with self._lock:
            row = self._row_of(name)
            if row.paused_at is not None:
                return False
            row.paused_at = self._clock()
        self._announce()
        return True

    async def resume_queue(self, name: str) -> bool:
        with self._lock:
            row = self._queues.get(name)
            if row is None or row.paused_at is None:
                return False
            row.paused_at = None
            self._drop_if_unneeded(name)
        self._announce()
        return True

    def _row_of(self, name: str) -> QueueRow:
        """The row of a queue, which has one from now on."""
        row = self._queues.get(name)
        if row is None:
            row = self._queues[name] = QueueRow()
            for run in self._runs_of(name):
                self._put(replace(run, limited=True))
                self._give_turn(run)
        return row

    def _drop_if_unneeded(self, name: str) -> None:
        if not self._queues[name].is_needed:
            del self._queues[name]
            for run in self._runs_of(name):
                self._put(replace(run, limited=False))
                self._turns.pop(run.key, None)

    def _runs_of(self, name: str) -> list[Run]:
        """The unfinished runs of a queue, the oldest first."""
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.queue == name]

    def _give_turn(self, run: Run) -> None:
        row = self._queues[run.queue]
        place = (run.priority, run.queue_key)
        turn = next_turn(row.begun.get(run.priority, 0), row.turns.get(place))
        self._turns[run.key] = row.turns[place] = turn

    # Reading

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        with self._lock:
            now = self._clock()
            return [self._kept(name, now) for name in sorted(self._queues) if names is None or name in names]

    def _kept(self, name: str, now: float) -> KeptQueue:
        row, runs, gate = self._queues[name], self._runs_of(name), self._gate(name, now)
        running = Counter(run.queue_key for run in runs if run.state is RunState.RUNNING)
        waiting = Counter(run.queue_key for run in runs if _is_waiting(run, now))
        keys = [QueueKey(key, running[key], waiting[key]) for key in {*running, *waiting}]
        keys.sort(key=lambda one: (-one.waiting, -one.running, one.key))
        return KeptQueue(
            name, row.limits, row.declared, row.by_hand is not None, row.paused_at, running.total(), waiting.total(),
            0.0 if gate.has_rate else gate.next_at(), tuple(keys[:MOST_KEYS]),
        )  # fmt: skip

    # The gates

    def _gate(self, name: str, now: float) -> Gate:
        row = self._queues[name]
        running = Counter(run.queue_key for run in self._runs_of(name) if run.state is RunState.RUNNING)
        return Gate(row.limits, now, running=running, used=row.used, used_by_key=row.used_by_key)

    def _let_through(self, due: Iterable[Run], now: float, limit: int) -> list[Run]:
        """The runs that a claim takes of these: of those that are next in their queues the first, again and again."""
        lines: dict[str, list[Run]] = {}
        gates = {name: self._gate(name, now) for name in self._queues}
        for run in due:
            lines.setdefault(run.queue if run.queue in gates else "", []).append(run)
        for line in lines.values():
            line.sort(key=self._order)
        taken: list[Run] = []
        while len(taken) < limit:
            heads = (next((run for run in line if self._may_pass(run, gates)), None) for line in lines.values())
            first = min((run for run in heads if run is not None), key=_by_age, default=None)
            if first is None:
                break
            lines[first.queue if first.queue in gates else ""].remove(first)
            taken.append(first)
            if first.queue in gates:
                self._pass(first, gates[first.queue])
        return taken

    def _let_suspects_through(self, due: Iterable[Run], now: float, limit: int) -> list[Run]:
        """The isolated runs that a claim takes of these."""
        gates = {name: self._gate(name, now) for name in self._queues}

        def take_place(run: Run) -> bool:
            passes = self._may_pass(run, gates)
            if passes and run.queue in gates:
                self._pass(run, gates[run.queue])
            return passes

        return rules.choose_suspects(due, limit, take_place)

    def _order(self, run: Run) -> tuple[float, ...]:
        """The order within a queue; in one without limits, there is only priority and age."""
        if run.queue not in self._queues:
            return _by_age(run)
        return (run.epoch == 0, -run.priority, self._turns.get(run.key, 0), run.key)

    def _may_pass(self, run: Run, gates: dict[str, Gate]) -> bool:
        gate = gates.get(run.queue)
        if gate is None:
            return True
        if self._queues[run.queue].paused_at is not None:
            return False
        return run.cancel is not Cancel.NO or gate.admits(run.queue_key, begun=run.epoch > 0) is Admission.YES

    def _pass(self, run: Run, gate: Gate) -> None:
        row, key, begun = self._queues[run.queue], run.queue_key, run.epoch > 0
        gate.take(key, begun=begun)
        if not begun:
            turn = self._turns.get(run.key, 0)
            row.begun[run.priority] = max(row.begun.get(run.priority, 0), turn)
            row.used, row.used_by_key[key] = gate.used, gate.used_by(key)

    def _wake_times(self, sleeping: Iterable[Run], now: float) -> Iterator[float | None]:
        """When each of these could be taken, as far as is known now."""
        gates = {name: self._gate(name, now) for name in self._queues}
        for run in sleeping:
            gate = gates.get(run.queue)
            if gate is None or run.wake_at is None or rules.is_isolated(run.suspicion):
                yield run.wake_at
            elif self._queues[run.queue].paused_at is None:
                yield _wake_time(run, run.wake_at, gate)

    def _charge(self, run: Run, tokens: int) -> None:
        """Note what model calls of a run have used."""
        row = self._queues.get(run.queue)
        if row is not None and row.limits.counts_tokens:
            gate, key = self._gate(run.queue, self._clock()), run.queue_key
            gate.charge(key, tokens, self._clock())
            row.used, row.used_by_key[key] = gate.used, gate.used_by(key)


def _by_age(run: Run) -> tuple[float, ...]:
    return (-run.priority, run.key)


def _is_waiting(run: Run, now: float) -> bool:
    is_due = run.wake_at is not None and run.wake_at <= now
    return run.state is not RunState.RUNNING and run.paused_at is None and is_due


def _wake_time(run: Run, at: float, gate: Gate) -> float | None:
    if run.cancel is not Cancel.NO:
        return at
    if gate.places == 0 or gate.places_of(run.queue_key) == 0:
        return None
    return at if run.epoch > 0 else max(at, gate.next_at(), gate.next_at_of(run.queue_key))
