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
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.core.records import Record
from holdfast.reports.agent_result import decode_plain_result
from holdfast.reports.conversations import ConversationMessage, read_conversation
from holdfast.reports.events import Event, read_events
from holdfast.reports.plans import Plan, read_plan
from holdfast.reports.report_reader import read_report
from holdfast.reports.run_info import RunInfo, read_run_info
from holdfast.reports.run_tree import RunTree, read_run_tree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalAccess, ApprovalInfo, approve, deny, find_approval, list_approvals
from holdfast.services.run_control import cancel_run, pause_run, resume_run, send_signal, set_budget
from holdfast.services.run_outcome import EndedRun, get_result
from holdfast.stores.change_feed import Subscription
from holdfast.stores.contract import RunUsage
from holdfast.stores.operations import Run


class RunStoreAccess(ApprovalAccess, Protocol):
    """What it takes to follow and change runs."""

    async def wait_for_end(self, run_id: str) -> Run | EndedRun:
        """The run, once it has ended."""
        ...

    def subscribe(self, run_id: str) -> AbstractContextManager[Subscription]:
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
        access: the way to the store.
        decode: makes a result of what is recorded; plain data unless given.
        namespaces: where the classes of exceptions are looked for, beside the modules that are loaded.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(
        self,
        access: RunStoreAccess,
        decode: Callable[[bytes], Any] = decode_plain_result,
        namespaces: Sequence[Mapping[str, object]] = (),
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
    ) -> None:
        self._access = access
        self._decode = decode
        self._namespaces = namespaces
        self.max_value = max_value

    async def result(self, run_id: str) -> Any:
        """The run's result, once it has ended."""
        return get_result(await self._access.wait_for_end(run_id), self._decode, self._namespaces)

    def events(self, run_id: str, after: str | None, *, follow: bool) -> AsyncGenerator[Event]:
        """What happens in the run."""
        return read_events(self._access, run_id, after, follow=follow)

    async def info(self, run_id: str) -> RunInfo:
        """What can be told of the run now."""
        return await read_run_info(self._access, run_id)

    async def usage(self, run_id: str) -> Usage:
        """What its model calls have used so far."""
        return (await self._access.usage(run_id)).used

    async def plan(self, run_id: str) -> Plan:
        """Its plan."""
        return await read_plan(self._access, run_id)

    async def describe(self, run_id: str, after: int | None, limit: int | None, *, full: bool) -> RunReport:
        """All that is known of it."""
        store = await self._access.store()
        return await read_report(store, run_id, -1 if after is None else after, limit, brief=not full)

    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        """What was said in it."""
        return await read_conversation(await self._access.store(), run_id)

    async def tree(self, run_id: str) -> RunTree:
        """The tree of runs that it is in."""
        return await read_run_tree(await self._access.store(), run_id)

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give it another budget."""
        await set_budget(self._access, run_id, budget)

    async def signal(self, run_id: str, name: str, value: Any, id: str | None) -> bool:
        """Send a value into it."""
        return await send_signal(self._access, run_id, name, value, id, self.max_value)

    async def cancel(self, run_id: str) -> bool:
        """Ask for it to be cancelled."""
        return await cancel_run(self._access, run_id)

    async def pause(self, run_id: str) -> bool:
        """Keep it from going on."""
        return await pause_run(self._access, run_id)

    async def resume(self, run_id: str) -> bool:
        """Let it go on."""
        return await resume_run(self._access, run_id)

    async def approvals(
        self, run_id: str | None, *, workflow: str | None, assignee: str | None, all: bool, limit: int
    ) -> list[ApprovalInfo]:
        """Questions that match."""
        return await list_approvals(self._access, run_id, workflow=workflow, assignee=assignee, all=all, limit=limit)

    async def approval(self, id: str) -> ApprovalInfo:
        """One question."""
        return ApprovalInfo.from_row(await find_approval(self._access, id))

    async def approve(
        self,
        id: str,
        value: Any,
        *,
        arguments: Mapping[str, Any] | None,
        by: str | None,
        reason: str,
        run_id: str | None = None,
    ) -> bool:
        """Say yes to a question."""
        return await approve(
            self._access, id, value, arguments=arguments, by=by, reason=reason, run_id=run_id, max_value=self.max_value
        )

    async def deny(self, id: str, *, by: str | None, reason: str, run_id: str | None = None) -> bool:
        """Say no to a question."""
        return await deny(self._access, id, by=by, reason=reason, run_id=run_id, max_value=self.max_value)
