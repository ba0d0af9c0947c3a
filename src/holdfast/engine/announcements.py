"""What a worker announces about its code: queues with limits, workflows, and schedules.

More of each may be declared while the engine is open, so announcements are made before a run is started and at every
poll. Nothing is written for what has been announced already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.admission.queue_limits import QueueLimits
from holdfast.engine.schedule_ticker import ScheduleTicker
from holdfast.stores.queues import NewQueue
from holdfast.stores.served_versions import make_served_name

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine


class Announcements:
    """Announces what has not been announced yet."""

    def __init__(self, host: JournalEngine, queue_limits: Mapping[str, QueueLimits], ticker: ScheduleTicker) -> None:
        self._host = host
        self._queue_limits = queue_limits
        self._ticker = ticker
        self._announced: set[str] = set()
        self._announced_limits: dict[str, QueueLimits] = {}

    def has_pending(self, workflow: str, version: str) -> bool:
        """Whether something must be announced before a run of this workflow can be started."""
        return (
            make_served_name(workflow, version) not in self._announced or self._queue_limits != self._announced_limits
        )

    async def announce(self) -> None:
        """Announce what is new since the last time: queues first, because workflows refer to them, then schedules."""
        store, worker = self._host.store, self._host.worker_id
        new_limits = {
            name: limits for name, limits in self._queue_limits.items() if self._announced_limits.get(name) != limits
        }
        if new_limits:
            await store.queues.declare([NewQueue(name, limits) for name, limits in new_limits.items()])
            self._announced_limits.update(new_limits)
        new = {name: definition for name, definition in self._host.definitions.items() if name not in self._announced}
        if new:
            # A definition that serves several versions is there under the name of each.
            unique = {id(definition): definition for definition in new.values()}
            await store.announce_workflows([definition.to_spec() for definition in unique.values()], worker)
            self._announced.update(new)
        await self._ticker.announce()

    def reset(self) -> None:
        """This is a new worker now, with the same code: announce everything again."""
        self._announced.clear()
        self._ticker.reset_announced()
