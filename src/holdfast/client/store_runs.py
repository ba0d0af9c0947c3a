"""Operations on runs in a store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from holdfast.admission.usage import Budget, Usage
from holdfast.client.run_operations import RunOperations
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.reports.agent_result import decode_plain_result
from holdfast.reports.conversations import ConversationMessage, read_conversation
from holdfast.reports.events import Event, read_events
from holdfast.reports.plans import Plan, read_plan
from holdfast.reports.report_reader import read_report
from holdfast.reports.run_info import RunInfo, read_run_info
from holdfast.reports.run_tree import RunTree, read_run_tree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo, approve, deny, find_approval, list_approvals
from holdfast.services.run_control import cancel_run, pause_run, resume_run, send_signal, set_budget
from holdfast.services.run_outcome import get_result
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.contract import RunUsage


class StoreRuns(RunOperations):
    """Operations on runs in a store.

    Args:
        provider: the way to the store, which also decides how changes reach it.
        decode: decodes a recorded result; default: as plain data.
        namespaces: where classes of exceptions are looked up, besides the loaded modules.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(
        self,
        provider: StoreProvider,
        decode: Callable[[bytes], Any] = decode_plain_result,
        namespaces: Sequence[Mapping[str, object]] = (),
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
    ) -> None:
        self._provider = provider
        self._decode = decode
        self._namespaces = namespaces
        self.max_value = max_value

    @override
    async def _wait_for_result(self, run_id: str) -> Any:
        return get_result(await self._provider.wait_for_end(run_id), self._decode, self._namespaces)

    @override
    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        return read_events(self._provider, run_id, after, follow=follow)

    @override
    async def get(self, run_id: str) -> RunInfo:
        return await read_run_info(self._provider, run_id)

    @override
    async def usage(self, run_id: str) -> Usage:
        usages = await (await self._provider.store()).get_usages([run_id])
        return usages.get(run_id, RunUsage()).used

    @override
    async def plan(self, run_id: str) -> Plan:
        return await read_plan(await self._provider.store(), run_id)

    @override
    async def describe(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        store = await self._provider.store()
        return await read_report(store, run_id, -1 if after is None else after, limit, brief=not full)

    @override
    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        return await read_conversation(await self._provider.store(), run_id)

    @override
    async def tree(self, run_id: str) -> RunTree:
        return await read_run_tree(await self._provider.store(), run_id)

    @override
    async def set_budget(self, run_id: str, budget: Budget) -> None:
        await set_budget(self._provider, run_id, budget)

    @override
    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        return await send_signal(self._provider, run_id, name, value, id, self.max_value)

    @override
    async def cancel(self, run_id: str) -> bool:
        return await cancel_run(self._provider, run_id)

    @override
    async def pause(self, run_id: str) -> bool:
        return await pause_run(self._provider, run_id)

    @override
    async def resume(self, run_id: str) -> bool:
        return await resume_run(self._provider, run_id)

    @override
    async def approvals(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        assignee: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> list[ApprovalInfo]:
        return await list_approvals(self._provider, run_id, workflow=workflow, assignee=assignee, all=all, limit=limit)

    @override
    async def approval(self, id: str) -> ApprovalInfo:
        return ApprovalInfo.from_row(await find_approval(self._provider, id))

    @override
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
        return await approve(
            self._provider,
            id,
            value,
            arguments=arguments,
            by=by,
            reason=reason,
            run_id=run_id,
            max_value=self.max_value,
        )

    @override
    async def deny(self, id: str, *, by: str | None = None, reason: str = "", run_id: str | None = None) -> bool:
        return await deny(self._provider, id, by=by, reason=reason, run_id=run_id, max_value=self.max_value)
