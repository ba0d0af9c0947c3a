"""``RunOperations``: what a client, or a handle, can ask of one run.

``Client`` inherits these methods, and ``Handle`` calls them with its run's id. ``store_runs`` implements them over a
store, and ``http.runs`` over a Holdfast server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.admission.durations import Duration, timeout_to_seconds
from holdfast.admission.usage import Budget, Usage
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo

if TYPE_CHECKING:
    from holdfast.client.handle import Handle


class RunOperations:
    """Operations on runs by their ids.

    The methods are not abstract in Python's sense because type checkers would then refuse ``Client(url)``, which
    returns an instance of a subclass. A test checks that the subclasses implement them all.
    """

    async def wait(self, run: str | Handle[Any], timeout: Duration | None = None) -> Any:
        """The result of a run, by its id or its handle, once it has ended.

        Raises ``RunFailed``, ``RunCancelled``, or ``RunDead`` if it has none, and ``TimeoutError`` after ``timeout``;
        the run continues all the same.
        """
        if not isinstance(run, str):
            return await run.result(timeout)
        seconds = timeout_to_seconds(timeout, f"run {run!r}: timeout")
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._wait_for_result(run)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"run {run!r} has not ended within {seconds:g} s, and continues. `holdfast show {run}` says what it is "
                f"doing or waiting for"
            ) from None

    async def _wait_for_result(self, run_id: str) -> Any:
        raise NotImplementedError

    async def get(self, run_id: str) -> RunInfo:
        """The current state of a run."""
        raise NotImplementedError

    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in a run, from its beginning or after the event with the offset ``after``.

        See ``Handle.events``.
        """
        raise NotImplementedError

    async def describe(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        """Everything known about a run now: what `holdfast show` prints, as data.

        Its state and what keeps it from continuing, its journal, its usage, and the runs and workers related to it;
        `summary` describes what it did, and `advice` what to do next.

        Args:
            run_id: the run.
            after: return records after this `seq`; default: from the beginning.
            limit: maximum number of records (`has_more` says whether there are others); `None`: all of them.
            full: include large values. By default, only their beginning is included, and `is_truncated` is set.
        """
        raise NotImplementedError

    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        """The conversation of an agent's run so far; empty for other runs."""
        raise NotImplementedError

    async def tree(self, run_id: str) -> RunTree:
        """The tree of runs that a run belongs to, from its topmost ancestor down, at most 500 of them."""
        raise NotImplementedError

    async def plan(self, run_id: str) -> Plan:
        """The plan of an agent's run and its progress; empty until the agent has written one."""
        raise NotImplementedError

    async def usage(self, run_id: str) -> Usage:
        """What the model calls of a run have used so far, including those of the runs that it started."""
        raise NotImplementedError

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Replace the budget that a run was started with. The run continues if the old one was used up."""
        raise NotImplementedError

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into a run. Sending it again with the same ``id`` changes nothing and returns false."""
        raise NotImplementedError

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run. False when that was already requested. Raises ``RunEnded`` if it has ended."""
        raise NotImplementedError

    async def pause(self, run_id: str) -> bool:
        """Pause a run. False when it was already paused. Steps in flight may end, and are recorded."""
        raise NotImplementedError

    async def resume(self, run_id: str) -> bool:
        """Resume a paused run. False when it was not paused."""
        raise NotImplementedError

    async def approvals(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        assignee: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> list[ApprovalInfo]:
        """Approvals that wait for an answer, the longest open first.

        Args:
            run_id: only approvals of this run.
            workflow: only approvals of this workflow's runs.
            assignee: only approvals that are assigned to this person now.
            all: include closed approvals.
            limit: maximum number of results.
        """
        raise NotImplementedError

    async def approval(self, id: str) -> ApprovalInfo:
        """One approval; an unambiguous beginning of its id is enough. Raises ``UnknownApproval``."""
        raise NotImplementedError

    async def approve(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
        run_id: str | None = None,
    ) -> bool:
        """Answer an approval with yes. False when the same person already gave the same answer.

        Args:
            id: the approval's id; an unambiguous beginning is enough.
            value: the choice, or the content of the form, if the question is not answered with yes or no.
            arguments: for a tool call, arguments that replace those of the call.
            by: who answers; default: the user of the operating system, or on a server the name of the key.
            reason: why, for people to read.
            run_id: answer only if the approval belongs to this run.

        Raises ``InputError`` if the answer does not fit (the approval stays open), ``ApprovalClosed`` if it was
        already answered or no run waits for it, and ``UnknownApproval``.
        """
        raise NotImplementedError

    async def deny(self, id: str, *, by: str | None = None, reason: str = "", run_id: str | None = None) -> bool:
        """Answer an approval with no. Arguments and errors as for ``approve``."""
        raise NotImplementedError
