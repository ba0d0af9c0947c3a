# pyright: reportPrivateUsage=false
"""Queues with limits, in memory: every operation on a queue looks at all of its runs.

Each claim makes a new ``QueueAdmission`` from the runs that are running then. So there are no counters that could be
wrong: the other stores are compared with this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.admission.queue_limits import Admission, QueueAdmission, QueueLimits, compute_next_turn
from holdfast.core.states import RunState
from holdfast.stores import worker_deaths
from holdfast.stores.memory.tables import QueueRow, Tables
from holdfast.stores.operations import CancelState, Run
from holdfast.stores.queues import MAX_LISTED_KEYS, NewQueue, QueueKeyStatus, Queues, QueueStatus


class QueueOperations(Tables):
    """Admission of runs to limited queues."""

    def _list_queue_runs(self, name: str) -> list[Run]:
        """The unfinished runs of a queue, oldest first."""
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.queue == name]

    def _assign_turn(self, run: Run) -> None:
        row = self._queues[run.queue]
        turn_key = (run.priority, run.queue_key)
        turn = compute_next_turn(row.last_started_turns.get(run.priority, 0), row.last_key_turns.get(turn_key))
        self._turns[run.key] = row.last_key_turns[turn_key] = turn

    # The gates

    def _make_gate(self, name: str, now: float) -> QueueAdmission:
        row = self._queues[name]
        running = Counter(run.queue_key for run in self._list_queue_runs(name) if run.state is RunState.RUNNING)
        return QueueAdmission(
            row.limits, now, running_by_key=running, rate_usage=row.used, rate_usage_by_key=row.used_by_key
        )

    def _admit_runs(self, due: Iterable[Run], now: float, limit: int) -> list[Run]:
        """The runs that a claim takes: repeatedly the first of the runs that are next in their queues."""
        queues: dict[str, list[Run]] = {}
        gates = {name: self._make_gate(name, now) for name in self._queues}
        for run in due:
            queues.setdefault(run.queue if run.queue in gates else "", []).append(run)
        for runs in queues.values():
            runs.sort(key=self._get_sort_key)
        admitted: list[Run] = []
        while len(admitted) < limit:
            heads = (next((run for run in runs if self._can_admit(run, gates)), None) for runs in queues.values())
            first = min((run for run in heads if run is not None), key=_get_age_sort_key, default=None)
            if first is None:
                break
            queues[first.queue if first.queue in gates else ""].remove(first)
            admitted.append(first)
            if first.queue in gates:
                self._count_admitted(first, gates[first.queue])
        return admitted

    def _admit_suspects(self, due: Iterable[Run], now: float, limit: int) -> list[Run]:
        """The isolated runs that a claim takes."""
        gates = {name: self._make_gate(name, now) for name in self._queues}

        def take_slot(run: Run) -> bool:
            can_admit = self._can_admit(run, gates)
            if can_admit and run.queue in gates:
                self._count_admitted(run, gates[run.queue])
            return can_admit

        return worker_deaths.choose_suspects(due, limit, take_slot)

    def _get_sort_key(self, run: Run) -> tuple[float, ...]:
        """The order within a queue; without limits, only priority and age count."""
        if run.queue not in self._queues:
            return _get_age_sort_key(run)
        return (run.epoch == 0, -run.priority, self._turns.get(run.key, 0), run.key)

    def _can_admit(self, run: Run, gates: dict[str, QueueAdmission]) -> bool:
        gate = gates.get(run.queue)
        if gate is None:
            return True
        if self._queues[run.queue].paused_at is not None:
            return False
        return (
            run.cancel_state is not CancelState.NONE
            or gate.decide(run.queue_key, has_started=run.epoch > 0) is Admission.ADMITTED
        )

    def _count_admitted(self, run: Run, gate: QueueAdmission) -> None:
        row, key, has_started = self._queues[run.queue], run.queue_key, run.epoch > 0
        gate.admit(key, has_started=has_started)
        if not has_started:
            turn = self._turns.get(run.key, 0)
            row.last_started_turns[run.priority] = max(row.last_started_turns.get(run.priority, 0), turn)
            row.used, row.used_by_key[key] = gate.rate_usage, gate.get_key_rate_usage(key)

    def _iter_wake_times(self, sleeping: Iterable[Run], now: float) -> Iterator[float | None]:
        """When each of these runs could be claimed, as far as is known now."""
        gates = {name: self._make_gate(name, now) for name in self._queues}
        for run in sleeping:
            gate = gates.get(run.queue)
            if gate is None or run.wake_at is None or worker_deaths.is_isolated(run.suspicion):
                yield run.wake_at
            elif self._queues[run.queue].paused_at is None:
                yield _get_wake_time(run, run.wake_at, gate)

    def _add_token_charge(self, run: Run, tokens: int) -> None:
        row = self._queues.get(run.queue)
        if row is not None and row.limits.has_token_rate:
            gate, key = self._make_gate(run.queue, self._clock()), run.queue_key
            gate.charge_tokens(key, tokens, self._clock())
            row.used, row.used_by_key[key] = gate.rate_usage, gate.get_key_rate_usage(key)


class MemoryCapability:
    """A capability of the memory store."""

    def __init__(self, tables: QueueOperations) -> None:
        self._tables = tables


class MemoryQueues(MemoryCapability, Queues):
    """The queues with limits."""

    async def declare(self, queues: Sequence[NewQueue]) -> None:
        with self._tables._lock:
            for new in queues:
                self._ensure_queue_row(new.name).declared_limits = new.limits
        self._tables._notify_change()

    async def set_limits(self, name: str, limits: QueueLimits | None) -> bool:
        tables = self._tables
        with tables._lock:
            known = tables._queues.get(name)
            if limits == (None if known is None else known.override):
                return False
            self._ensure_queue_row(name).override = limits
            self._delete_if_unneeded(name)
        tables._notify_change()
        return True

    async def pause(self, name: str) -> bool:
        tables = self._tables
        with tables._lock:
            row = self._ensure_queue_row(name)
            if row.paused_at is not None:
                return False
            row.paused_at = tables._clock()
        tables._notify_change()
        return True

    async def resume(self, name: str) -> bool:
        tables = self._tables
        with tables._lock:
            row = tables._queues.get(name)
            if row is None or row.paused_at is None:
                return False
            row.paused_at = None
            self._delete_if_unneeded(name)
        tables._notify_change()
        return True

    def _ensure_queue_row(self, name: str) -> QueueRow:
        """The row of a queue, created if it is missing."""
        tables = self._tables
        row = tables._queues.get(name)
        if row is None:
            row = tables._queues[name] = QueueRow()
            for run in tables._list_queue_runs(name):
                tables._save_run(replace(run, is_limited=True))
                tables._assign_turn(run)
        return row

    def _delete_if_unneeded(self, name: str) -> None:
        tables = self._tables
        if not tables._queues[name].is_needed:
            del tables._queues[name]
            for run in tables._list_queue_runs(name):
                tables._save_run(replace(run, is_limited=False))
                tables._turns.pop(run.key, None)

    def _get_queue_status(self, name: str, now: float) -> QueueStatus:
        tables = self._tables
        row, runs, gate = tables._queues[name], tables._list_queue_runs(name), tables._make_gate(name, now)
        running = Counter(run.queue_key for run in runs if run.state is RunState.RUNNING)
        waiting = Counter(run.queue_key for run in runs if _is_waiting(run, now))
        keys = [QueueKeyStatus(key, running[key], waiting[key]) for key in {*running, *waiting}]
        keys.sort(key=lambda key: (-key.waiting_count, -key.running_count, key.key))
        return QueueStatus(
            name, row.limits, row.declared_limits, row.override is not None, row.paused_at, running.total(),
            waiting.total(), 0.0 if gate.has_rate_capacity else gate.get_next_start_at(),
            tuple(keys[:MAX_LISTED_KEYS]),
        )  # fmt: skip

    async def list(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        tables = self._tables
        with tables._lock:
            now = tables._clock()
            return [
                self._get_queue_status(name, now) for name in sorted(tables._queues) if names is None or name in names
            ]


def _get_age_sort_key(run: Run) -> tuple[float, ...]:
    return (-run.priority, run.key)


def _is_waiting(run: Run, now: float) -> bool:
    is_due = run.wake_at is not None and run.wake_at <= now
    return run.state is not RunState.RUNNING and run.paused_at is None and is_due


def _get_wake_time(run: Run, at: float, gate: QueueAdmission) -> float | None:
    if run.cancel_state is not CancelState.NONE:
        return at
    if gate.free_slot_count == 0 or gate.get_key_free_slot_count(run.queue_key) == 0:
        return None
    return at if run.epoch > 0 else max(at, gate.get_next_start_at(), gate.get_key_next_start_at(run.queue_key))
