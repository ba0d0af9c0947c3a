# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""Schedules in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace as changed

from holdfast.stores.memory.tables import Tables
from holdfast.stores.schedules import Schedule, ScheduleDefinition, merge_schedule


class ScheduleOperations(Tables):
    """What the store has to do with schedules."""

    @abstractmethod
    def _notify_change(self) -> None:
        """Tell whoever waits that something was written."""

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        with self._lock:
            for new in schedules:
                known = self._schedules.get(new.name)
                if known is None or replace:
                    self._schedules[new.name] = merge_schedule(known, new, self._clock())
                if worker is not None:
                    self._announcers.setdefault(new.name, set()).add(worker)
            kept = [self._get_schedule(new.name) for new in schedules]
        self._notify_change()
        return kept

    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        with self._lock:
            return [self._get_schedule(name) for name in sorted(self._schedules) if names is None or name in names]

    def _get_schedule(self, name: str) -> Schedule:
        now = self._clock()
        workers = [self._workers[worker] for worker in self._announcers.get(name, ()) if self._is_live(worker)]
        return changed(self._schedules[name], is_announced=any(worker.lease_expires_at >= now for worker in workers))

    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        with self._lock:
            known = self._schedules.get(name)
            if known is None or known.fired_up_to != expected_fired_up_to:
                return False
            self._schedules[name] = changed(
                known,
                fired_up_to=max(expected_fired_up_to, fired_up_to),
                last_run=run_id or known.last_run,
                last_skipped_at=known.last_skipped_at if skipped_at is None else skipped_at,
            )
        self._notify_change()
        return True

    async def pause_schedule(self, name: str) -> bool:
        return self._set_paused_at(name, self._clock())

    async def resume_schedule(self, name: str) -> bool:
        return self._set_paused_at(name, None)

    def _set_paused_at(self, name: str, at: float | None) -> bool:
        with self._lock:
            known = self._schedules.get(name)
            if known is None or (known.paused_at is None) == (at is None):
                return False
            self._schedules[name] = changed(known, paused_at=at)
        self._notify_change()
        return True

    async def delete_schedule(self, name: str) -> bool:
        with self._lock:
            self._announcers.pop(name, None)
            if self._schedules.pop(name, None) is None:
                return False
        self._notify_change()
        return True
