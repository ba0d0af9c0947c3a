"""A handle to a started run: its state, its result, and ways to influence it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.admission.durations import Duration
from holdfast.admission.usage import Budget, Usage
from holdfast.client.run_operations import RunOperations

if TYPE_CHECKING:
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

    __slots__ = ("_runs", "run_id")

    def __init__(self, runs: RunOperations, run_id: str) -> None:
        self.run_id = run_id
        self._runs = runs

    async def result(self, timeout: Duration | None = None) -> R:
        """The run's result, once it has ended. Raises ``RunFailed``, ``RunCancelled``, or ``RunDead`` if it has none.

        Raises ``TimeoutError`` if it has not ended after ``timeout``; the run continues all the same.
        """
        return await self._runs.wait(self.run_id, timeout)

    def events(self, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in the run until its end, from its beginning or after the event with the offset ``after``.

        Tokens, tool calls, steps, plans, and approvals, whichever process executes the run: see ``Event``. A reader
        that returns with the offset of its last event misses nothing and sees nothing twice. Without ``follow``, the
        events end with what has happened so far.
        """
        return self._runs.events(self.run_id, after, follow=follow)

    async def info(self) -> RunInfo:
        """The current state of the run."""
        return await self._runs.get(self.run_id)

    async def usage(self) -> Usage:
        """What its model calls have used so far, including those of the runs that it started."""
        return await self._runs.usage(self.run_id)

    async def plan(self) -> Plan:
        """The agent's plan and its progress; empty until the agent has written one."""
        return await self._runs.plan(self.run_id)

    async def describe(self, after: int | None = None, limit: int | None = 500, *, full: bool = False) -> RunReport:
        """Everything known about the run now: see ``Client.describe``."""
        return await self._runs.describe(self.run_id, after, limit, full=full)

    async def conversation(self) -> list[ConversationMessage]:
        """The conversation of an agent's run so far; empty for other runs."""
        return await self._runs.conversation(self.run_id)

    async def tree(self) -> RunTree:
        """The tree of runs that the run belongs to, from its topmost ancestor down, at most 500 of them."""
        return await self._runs.tree(self.run_id)

    async def set_budget(self, budget: Budget) -> None:
        """Replace the budget that the run was started with. The run continues if the old one was used up."""
        await self._runs.set_budget(self.run_id, budget)

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into the run. Sending it again with the same ``id`` changes nothing and returns false."""
        return await self._runs.signal(self.run_id, name, value, id=id)

    async def approvals(self, *, all: bool = False) -> list[ApprovalInfo]:
        """The run's approvals that wait for an answer; with ``all``, including closed ones."""
        return await self._runs.approvals(self.run_id, all=all)

    async def approve(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Answer an approval of the run with yes: see ``Client.approve``."""
        return await self._runs.approve(id, value, arguments=arguments, by=by, reason=reason, run_id=self.run_id)

    async def deny(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Answer an approval of the run with no: see ``Client.approve``."""
        return await self._runs.deny(id, by=by, reason=reason, run_id=self.run_id)

    async def cancel(self) -> bool:
        """Cancel the run. False when that was already requested.

        ``asyncio.CancelledError`` is raised in its code and in the steps in flight. ``finally`` blocks run, and steps
        with a compensation are undone. Raises ``RunEnded`` if there is nothing to cancel.
        """
        return await self._runs.cancel(self.run_id)

    async def pause(self) -> bool:
        """Pause the run. False when it was already paused. Steps in flight may end, and are recorded."""
        return await self._runs.pause(self.run_id)

    async def resume(self) -> bool:
        """Resume the run. False when it was not paused."""
        return await self._runs.resume(self.run_id)

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id!r}>"
