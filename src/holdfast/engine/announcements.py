"""What a worker tells the others of its code: queues with limits, the workflows whose runs wait in them, schedules.

More of each may be declared while it is open. So it is looked for before a run is started, and at every look for work;
what is known already costs no question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.admission.queue_limits import QueueLimits
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.schedule_ticker import ScheduleTicker
from holdfast.stores.queues import NewQueue
from holdfast.stores.served_versions import make_served_name

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine


class Announcements:
    """What of the code here has been told, and what has not."""

    def __init__(
        self,
        host: JournalEngine,
        definitions: Mapping[str, WorkflowDefinition],
        queue_limits: Mapping[str, QueueLimits],
        ticker: ScheduleTicker,
    ) -> None:
        self._host = host
        self._definitions = definitions
        self._queue_limits = queue_limits
        self._ticker = ticker
        self._published: set[str] = set()
        self._announced_limits: dict[str, QueueLimits] = {}

    def has_pending(self, workflow: str, version: str) -> bool:
        """Whether something is to be announced before a run of this workflow can be started."""
        return (
            make_served_name(workflow, version) not in self._published or self._queue_limits != self._announced_limits
        )

    async def announce(self) -> None:
        """Announce what is new since the last time, in the order in which it rests on each other."""
        store, worker = self._host.store, self._host.worker_id
        told = {
            name: limits for name, limits in self._queue_limits.items() if self._announced_limits.get(name) != limits
        }
        if told:
            await store.queues.declare([NewQueue(name, limits) for name, limits in told.items()])
            self._announced_limits.update(told)
        new = {name: definition for name, definition in self._definitions.items() if name not in self._published}
        if new:
            # One that serves several versions is there under the name of each.
            each = {id(definition): definition for definition in new.values()}
            await store.publish_workflows([definition.to_spec() for definition in each.values()], worker)
            self._published.update(new)
        await self._ticker.announce()

    def reset(self) -> None:
        """This is another worker now, with the same code."""
        self._published.clear()
        self._ticker.reset_announced()
