"""A run that somebody follows: its state, its result, and ways to influence it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Generic, TypeVar

from holdfast.admission.usage import Budget, Usage
from holdfast.client.backend import RunBackend
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo

R = TypeVar("R")


class Handle(Generic[R]):
    """A started run."""

    __slots__ = ("_backend", "run_id")

    def __init__(self, backend: RunBackend, run_id: str) -> None:
        self.run_id = run_id
        self._backend = backend

    async def result(self, timeout: float | None = None) -> R:
        """The run's result, once it has ended. Raises ``RunFailed``, ``RunCancelled`` or ``RunDead`` if it has none.

        With a ``timeout`` in seconds, ``TimeoutError`` if it has not ended by then; the run goes on all the same.
        """
        async with asyncio.timeout(timeout):
            return await self._backend.result(self.run_id)

    def events(self, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in the run, from its beginning or behind the event with the offset ``after``, until its end.

        Tokens, tool calls, steps, plans and questions, whoever executes the run: see ``Event``. A reader that comes
        back with the offset of the last event that it had misses nothing, and sees nothing twice. Without ``follow``
        it ends with what has happened so far.
        """
        return self._backend.events(self.run_id, after, follow=follow)

    async def info(self) -> RunInfo:
        """What can be told of the run now."""
        return await self._backend.info(self.run_id)

    async def usage(self) -> Usage:
        """What its model calls have used so far, with those of the runs that it has started."""
        return await self._backend.usage(self.run_id)

    async def plan(self) -> Plan:
        """What an agent that plans means to do, and how far it is; empty as long as it has written no plan."""
        return await self._backend.plan(self.run_id)

    async def describe(self, after: int | None = None, limit: int | None = 500, *, full: bool = False) -> RunReport:
        """All that is known of the run now: see ``Client.describe``."""
        return await self._backend.describe(self.run_id, after, limit, full=full)

    async def conversation(self) -> list[ConversationMessage]:
        """What was said in an agent's run so far; empty for other runs."""
        return await self._backend.conversation(self.run_id)

    async def tree(self) -> RunTree:
        """The tree of runs that the run is in, from its topmost ancestor down, at most 500 of them."""
        return await self._backend.tree(self.run_id)

    async def set_budget(self, budget: Budget) -> None:
        """Give the run another budget in place of the one that it was started with; it goes on if that was used up."""
        await self._backend.set_budget(self.run_id, budget)

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into the run. With an ``id``, sending it again changes nothing (and returns false)."""
        return await self._backend.signal(self.run_id, name, value, id)

    async def approvals(self, *, all: bool = False) -> list[ApprovalInfo]:
        """The questions of the run that wait for a person's answer; with ``all``, also those that are closed."""
        return await self._backend.approvals(self.run_id, workflow=None, assignee=None, all=all, limit=1000)

    async def approve(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Say yes to a question of the run: see ``Client.approve``."""
        return await self._backend.approve(id, value, arguments=arguments, by=by, reason=reason, run_id=self.run_id)

    async def deny(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Say no to a question of the run: see ``Client.approve``."""
        return await self._backend.deny(id, by=by, reason=reason, run_id=self.run_id)

    async def cancel(self) -> bool:
        """Ask for the run to be cancelled; false when that was asked before.

        What it is doing is interrupted: ``asyncio.CancelledError`` is raised in its code, and in the steps in flight.
        ``finally`` blocks run, and steps with a compensation are undone. ``RunEnded`` if there is nothing to cancel.
        """
        return await self._backend.cancel(self.run_id)

    async def pause(self) -> bool:
        """Keep the run from going on; false when it was paused before. Steps in flight may end, and are recorded."""
        return await self._backend.pause(self.run_id)

    async def resume(self) -> bool:
        """Let a paused run go on; false when it was not paused."""
        return await self._backend.resume(self.run_id)

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id!r}>"
