"""Runs in a store, one by one: what a handle asks for, over a link to the store.

A *link* is a client's connection, the open runtime of a process that executes runs itself, or what workflow code may do
with other runs. The link also decides how changes reach the store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from holdfast.admission.usage import Budget, Usage
from holdfast.client.backend import RunBackend
from holdfast.codec import LARGEST
from holdfast.core.records import Record
from holdfast.reports.agent_result import plain_result
from holdfast.reports.conversations import Said, read_conversation
from holdfast.reports.events import Event, read_events
from holdfast.reports.plans import Plan, read_plan
from holdfast.reports.report_reader import read_story
from holdfast.reports.run_info import RunInfo, info_of
from holdfast.reports.run_tree import Family, read_family
from holdfast.reports.types import Story
from holdfast.services.approvals import ApprovalInfo, ApprovalReach, approve, deny, find_approval, list_approvals
from holdfast.services.run_control import cancel_run, pause_run, resume_run, send_signal, set_budget
from holdfast.services.run_outcome import Ended, result_of
from holdfast.stores.change_feed import Bell
from holdfast.stores.contract import RunUsage
from holdfast.stores.operations import Run


class Link(ApprovalReach, Protocol):
    """What it takes to follow and change runs."""

    async def wait_for_end(self, run_id: str) -> Run | Ended:
        """The run, once it has ended."""
        ...

    def listen(self, run_id: str) -> AbstractContextManager[Bell]:
        """A bell that rings whenever something may be new of the run."""
        ...

    async def usage(self, run_id: str) -> RunUsage:
        """What the run has used so far."""
        ...

    async def last_record(self, run_id: str, name: str) -> Record | None:
        """The newest record of this name that is ``ok``."""
        ...


class StoreRuns(RunBackend):
    """Runs over a link.

    Args:
        link: the way to the store.
        decode: makes a result of what is recorded; plain data unless given.
        namespaces: where the classes of exceptions are looked for, beside the modules that are loaded.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(
        self,
        link: Link,
        decode: Callable[[bytes], Any] = plain_result,
        namespaces: Sequence[Mapping[str, object]] = (),
        max_value: int = LARGEST,
    ) -> None:
        self._link = link
        self._decode = decode
        self._namespaces = namespaces
        self.max_value = max_value

    async def result(self, run_id: str) -> Any:
        """The run's result, once it has ended."""
        return result_of(await self._link.wait_for_end(run_id), self._decode, self._namespaces)

    def events(self, run_id: str, after: str | None, *, follow: bool) -> AsyncGenerator[Event]:
        """What happens in the run."""
        return read_events(self._link, run_id, after, follow=follow)

    async def info(self, run_id: str) -> RunInfo:
        """What can be told of the run now."""
        return await info_of(self._link, run_id)

    async def usage(self, run_id: str) -> Usage:
        """What its model calls have used so far."""
        return (await self._link.usage(run_id)).used

    async def plan(self, run_id: str) -> Plan:
        """Its plan."""
        return await read_plan(self._link, run_id)

    async def story(self, run_id: str, after: int | None, limit: int | None, *, full: bool) -> Story:
        """All that is known of it."""
        store = await self._link.store()
        return await read_story(store, run_id, -1 if after is None else after, limit, brief=not full)

    async def conversation(self, run_id: str) -> list[Said]:
        """What was said in it."""
        return await read_conversation(await self._link.store(), run_id)

    async def family(self, run_id: str) -> Family:
        """The tree of runs that it is in."""
        return await read_family(await self._link.store(), run_id)

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give it another budget."""
        await set_budget(self._link, run_id, budget)

    async def signal(self, run_id: str, name: str, value: Any, id: str | None) -> bool:
        """Send a value into it."""
        return await send_signal(self._link, run_id, name, value, id, self.max_value)

    async def cancel(self, run_id: str) -> bool:
        """Ask for it to be cancelled."""
        return await cancel_run(self._link, run_id)

    async def pause(self, run_id: str) -> bool:
        """Keep it from going on."""
        return await pause_run(self._link, run_id)

    async def resume(self, run_id: str) -> bool:
        """Let it go on."""
        return await resume_run(self._link, run_id)

    async def approvals(
        self, run_id: str | None, *, workflow: str | None, asked_of: str | None, all: bool, limit: int
    ) -> list[ApprovalInfo]:
        """Questions that match."""
        return await list_approvals(self._link, run_id, workflow=workflow, asked_of=asked_of, all=all, limit=limit)

    async def approval(self, id: str) -> ApprovalInfo:
        """One question."""
        return ApprovalInfo.of(await find_approval(self._link, id))

    async def approve(
        self,
        id: str,
        value: Any,
        *,
        arguments: Mapping[str, Any] | None,
        by: str | None,
        reason: str,
        of: str | None = None,
    ) -> bool:
        """Say yes to a question."""
        return await approve(
            self._link, id, value, arguments=arguments, by=by, reason=reason, of=of, max_value=self.max_value
        )

    async def deny(self, id: str, *, by: str | None, reason: str, of: str | None = None) -> bool:
        """Say no to a question."""
        return await deny(self._link, id, by=by, reason=reason, of=of, max_value=self.max_value)
