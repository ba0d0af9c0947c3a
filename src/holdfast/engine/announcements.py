"""What a worker tells the others of its code: queues with limits, the workflows whose runs wait in them, schedules.

More of each may be declared while it is open. So it is looked for before a run is started, and at every look for work;
what is known already costs no question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.admission.queue_limits import QueueLimits
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.schedule_ticker import Ticker
from holdfast.stores.contract import Store
from holdfast.stores.queues import NewQueue
from holdfast.stores.served_versions import served_name


class Announcer(Protocol):
    """What announcements need of the engine that makes them."""

    store: Store
    worker: int


class Announcements:
    """What of the code here has been told, and what has not."""

    def __init__(
        self,
        announcer: Announcer,
        definitions: Mapping[str, WorkflowDefinition],
        limits: Mapping[str, QueueLimits],
        ticker: Ticker,
    ) -> None:
        self._announcer = announcer
        self._definitions = definitions
        self._limits = limits
        self._ticker = ticker
        self._published: set[str] = set()
        self._told_limits: dict[str, QueueLimits] = {}

    def lacks(self, workflow: str, version: str) -> bool:
        """Whether something is to be announced before a run of this workflow can be started."""
        return served_name(workflow, version) not in self._published or self._limits != self._told_limits

    async def announce(self) -> None:
        """Announce what is new since the last time, in the order in which it rests on each other."""
        store, worker = self._announcer.store, self._announcer.worker
        told = {name: limits for name, limits in self._limits.items() if self._told_limits.get(name) != limits}
        if told:
            await store.put_queues([NewQueue(name, limits) for name, limits in told.items()])
            self._told_limits.update(told)
        new = {name: definition for name, definition in self._definitions.items() if name not in self._published}
        if new:
            # One that serves several versions is there under the name of each.
            each = {id(definition): definition for definition in new.values()}
            await store.publish([definition.spec() for definition in each.values()], worker)
            self._published.update(new)
        await self._ticker.announce()

    def begin_anew(self) -> None:
        """This is another worker now, with the same code."""
        self._published.clear()
        self._ticker.come_back()
