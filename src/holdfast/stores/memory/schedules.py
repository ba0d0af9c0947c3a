# pyright: reportPrivateUsage=false
"""Schedules in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace as changed

from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.schedules import Schedule, ScheduleDefinition, Schedules, merge_schedule


class MemorySchedules(MemoryCapability, Schedules):
    """Schedules, in memory."""

    async def put(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        tables = self._tables
        with tables._lock:
            for new in schedules:
                known = tables._schedules.get(new.name)
                if known is None or replace:
                    tables._schedules[new.name] = merge_schedule(known, new, tables._clock())
                if worker is not None:
                    tables._announcers.setdefault(new.name, set()).add(worker)
            stored = [self._get_schedule(new.name) for new in schedules]
        tables._notify_change()
        return stored

    def _get_schedule(self, name: str) -> Schedule:
        tables = self._tables
        now = tables._clock()
        workers = [tables._workers[worker] for worker in tables._announcers.get(name, ()) if tables._is_live(worker)]
        return changed(tables._schedules[name], is_announced=any(worker.lease_expires_at >= now for worker in workers))

    async def advance(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        tables = self._tables
        with tables._lock:
            known = tables._schedules.get(name)
            if known is None or known.fired_up_to != expected_fired_up_to:
                return False
            tables._schedules[name] = changed(
                known,
                fired_up_to=max(expected_fired_up_to, fired_up_to),
                last_run=run_id or known.last_run,
                last_skipped_at=known.last_skipped_at if skipped_at is None else skipped_at,
            )
        tables._notify_change()
        return True

    async def pause(self, name: str) -> bool:
        return self._set_paused_at(name, self._tables._clock())

    async def resume(self, name: str) -> bool:
        return self._set_paused_at(name, None)

    def _set_paused_at(self, name: str, at: float | None) -> bool:
        tables = self._tables
        with tables._lock:
            known = tables._schedules.get(name)
            if known is None or (known.paused_at is None) == (at is None):
                return False
            tables._schedules[name] = changed(known, paused_at=at)
        tables._notify_change()
        return True

    async def delete(self, name: str) -> bool:
        tables = self._tables
        with tables._lock:
            tables._announcers.pop(name, None)
            if tables._schedules.pop(name, None) is None:
                return False
        tables._notify_change()
        return True

    async def list(self, names: Collection[str] | None = None) -> list[Schedule]:
        with self._tables._lock:
            return [
                self._get_schedule(name) for name in sorted(self._tables._schedules) if names is None or name in names
            ]
