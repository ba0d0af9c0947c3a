# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""Schedules in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace as changed

from holdfast.stores.memory.tables import Tables
from holdfast.stores.schedules import NewSchedule, Schedule, merged


class Scheduling(Tables):
    """What the store has to do with schedules."""

    @abstractmethod
    def _announce(self) -> None:
        """Tell whoever waits that something was written."""

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        with self._lock:
            for new in schedules:
                known = self._schedules.get(new.name)
                if known is None or replace:
                    self._schedules[new.name] = merged(known, new, self._clock())
                if worker is not None:
                    self._announcers.setdefault(new.name, set()).add(worker)
            kept = [self._told(new.name) for new in schedules]
        self._announce()
        return kept

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        with self._lock:
            return [self._told(name) for name in sorted(self._schedules) if names is None or name in names]

    def _told(self, name: str) -> Schedule:
        now = self._clock()
        workers = [self._workers[worker] for worker in self._announcers.get(name, ()) if self._is_live(worker)]
        return changed(self._schedules[name], announced=any(worker.lease_until >= now for worker in workers))

    async def settle_schedule(
        self, name: str, if_was: float, fired_up_to: float, *, run: str = "", skipped: float | None = None
    ) -> bool:
        with self._lock:
            known = self._schedules.get(name)
            if known is None or known.fired_up_to != if_was:
                return False
            self._schedules[name] = changed(
                known,
                fired_up_to=max(if_was, fired_up_to),
                last_run=run or known.last_run,
                skipped=known.skipped if skipped is None else skipped,
            )
        self._announce()
        return True

    async def pause_schedule(self, name: str) -> bool:
        return self._set_pause(name, self._clock())

    async def resume_schedule(self, name: str) -> bool:
        return self._set_pause(name, None)

    def _set_pause(self, name: str, at: float | None) -> bool:
        with self._lock:
            known = self._schedules.get(name)
            if known is None or (known.paused_at is None) == (at is None):
                return False
            self._schedules[name] = changed(known, paused_at=at)
        self._announce()
        return True

    async def delete_schedule(self, name: str) -> bool:
        with self._lock:
            self._announcers.pop(name, None)
            if self._schedules.pop(name, None) is None:
                return False
        self._announce()
        return True
