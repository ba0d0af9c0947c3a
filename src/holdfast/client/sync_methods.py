"""The client for code without an event loop: each call runs a loop of its own, and disconnects when it is done."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.admission.durations import Duration
from holdfast.admission.usage import Budget, Usage
from holdfast.errors import UsageError
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.tail import TailEvent
from holdfast.reports.types import RunReport
from holdfast.reports.usage_report import UsageReport
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import CallArguments
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.journal_files import Journal
from holdfast.services.retention import PruneReport
from holdfast.services.workers import WorkerInfo

if TYPE_CHECKING:
    from holdfast.client.client import Client

T = TypeVar("T")

SyncRunner = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a call of a client to its end where no event loop is running; the client disconnects then."""


class SyncMethods:
    """What a ``Client`` has for code without an event loop.

    The name of an async method, with ``_sync`` behind it.
    """

    @property
    def _client(self) -> Client:
        return cast("Client", self)

    def start_sync(self, workflow: str, /, *args: Any, **kwargs: Any) -> str:
        """``start`` without an event loop: returns the run's id."""

        async def start() -> str:
            return (await self._client.start(workflow, *args, **kwargs)).run_id

        return self._run_and_close(start())

    def start_many_sync(self, workflow: str, calls: Iterable[CallArguments]) -> builtins.list[str]:
        """``start_many`` without an event loop."""
        return self._run_and_close(self._client.start_many(workflow, calls))

    def send_sync(
        self, address: str, payload: Any = None, *, deadline: Duration | None = None, id: str | None = None
    ) -> str:
        """``send`` without an event loop: returns the run's id."""

        async def send() -> str:
            return (await self._client.send(address, payload, deadline=deadline, id=id)).run_id

        return self._run_and_close(send())

    def run_sync(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any:
        """``run`` without an event loop."""
        return self._run_and_close(self._client.run(workflow, *args, **kwargs))

    def wait_sync(self, run: str, timeout: float | None = None) -> Any:
        """``wait`` without an event loop: by the run's id."""
        return self._run_and_close(self._client.wait(run, timeout))

    def get_sync(self, run_id: str) -> RunInfo:
        """``get`` without an event loop."""
        return self._run_and_close(self._client.get(run_id))

    def list_sync(self, **filters: Any) -> builtins.list[RunInfo]:
        """``list`` without an event loop."""
        return self._run_and_close(self._client.list(**filters))

    def signal_sync(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """``signal`` without an event loop."""
        return self._run_and_close(self._client.signal(run_id, name, value, id=id))

    def cancel_sync(self, run_id: str) -> bool:
        """``cancel`` without an event loop."""
        return self._run_and_close(self._client.cancel(run_id))

    def pause_sync(self, run_id: str) -> bool:
        """``pause`` without an event loop."""
        return self._run_and_close(self._client.pause(run_id))

    def resume_sync(self, run_id: str) -> bool:
        """``resume`` without an event loop."""
        return self._run_and_close(self._client.resume(run_id))

    def approvals_sync(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        assignee: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> builtins.list[ApprovalInfo]:
        """``approvals`` without an event loop."""
        return self._run_and_close(
            self._client.approvals(run_id, workflow=workflow, assignee=assignee, all=all, limit=limit)
        )

    def approval_sync(self, id: str) -> ApprovalInfo:
        """``approval`` without an event loop."""
        return self._run_and_close(self._client.approval(id))

    def approve_sync(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """``approve`` without an event loop."""
        return self._run_and_close(self._client.approve(id, value, arguments=arguments, by=by, reason=reason))

    def deny_sync(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """``deny`` without an event loop."""
        return self._run_and_close(self._client.deny(id, by=by, reason=reason))

    def events_sync(self, run_id: str, after: str | None = None, *, follow: bool = True) -> Iterator[Event]:
        """``events`` without an event loop: to be read with a plain ``for``."""
        if _is_loop_running():
            raise UsageError("an event loop is running in this thread: use `async for event in client.events(...)`")
        return self._iterate(self._client.events(run_id, after, follow=follow))

    def tail_sync(self, **filters: Any) -> Iterator[TailEvent]:
        """``tail`` without an event loop: to be read with a plain ``for``."""
        if _is_loop_running():
            raise UsageError("an event loop is running in this thread: use `async for one in client.tail(...)`")
        return self._iterate(self._client.tail(**filters))

    def _iterate(self, events: AsyncGenerator[T]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(events, None)

        with asyncio.Runner() as runner:
            try:
                while (one := runner.run(following())) is not None:
                    yield one
            finally:
                runner.run(self._client.close())

    def usage_sync(self, run_id: str) -> Usage:
        """``usage`` without an event loop."""
        return self._run_and_close(self._client.usage(run_id))

    def usage_report_sync(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """``usage_report`` without an event loop."""
        return self._run_and_close(self._client.usage_report(since, until, workflow=workflow))

    def plan_sync(self, run_id: str) -> Plan:
        """``plan`` without an event loop."""
        return self._run_and_close(self._client.plan(run_id))

    def budget_sync(self, run_id: str) -> BudgetInfo:
        """``budget`` without an event loop."""
        return self._run_and_close(self._client.budget(run_id))

    def describe_sync(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        """``describe`` without an event loop."""
        return self._run_and_close(self._client.describe(run_id, after, limit, full=full))

    def conversation_sync(self, run_id: str) -> builtins.list[ConversationMessage]:
        """``conversation`` without an event loop."""
        return self._run_and_close(self._client.conversation(run_id))

    def tree_sync(self, run_id: str) -> RunTree:
        """``tree`` without an event loop."""
        return self._run_and_close(self._client.tree(run_id))

    def set_budget_sync(self, run_id: str, budget: Budget) -> None:
        """``set_budget`` without an event loop."""
        self._run_and_close(self._client.set_budget(run_id, budget))

    def retry_sync(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        """``retry`` without an event loop."""
        self._run_and_close(self._client.retry(run_id, run_again=run_again, version=version))

    def settle_sync(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        """``settle`` without an event loop."""
        self._run_and_close(self._client.settle(run_id, step, output, happened=happened, by=by))

    def dead_sync(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        """``dead`` without an event loop."""
        return self._run_and_close(self._client.dead(workflow=workflow, limit=limit, before=before))

    def prune_sync(self, older_than: Duration, **options: Any) -> PruneReport:
        """``prune`` without an event loop."""
        return self._run_and_close(self._client.prune(older_than, **options))

    def export_sync(self, run_id: str) -> Journal:
        """``export`` without an event loop."""
        return self._run_and_close(self._client.export(run_id))

    def fork_sync(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> str:
        """``fork`` without an event loop: returns the new run's id."""

        async def fork() -> str:
            return (await self._client.fork(run_id, at=at, with_output=with_output, id=id)).run_id

        return self._run_and_close(fork())

    def workers_sync(self) -> builtins.list[WorkerInfo]:
        """``workers`` without an event loop."""
        return self._run_and_close(self._client.workers())

    def health_sync(self) -> builtins.list[Health]:
        """``health`` without an event loop."""
        return self._run_and_close(self._client.health())

    def inputs_schema_sync(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        """``inputs_schema`` without an event loop."""
        return self._run_and_close(self._client.inputs_schema(workflow, version=version))

    def disable_sync(self, workflow: str, *, reason: str = "", by: str | None = None) -> bool:
        """``disable`` without an event loop."""
        return self._run_and_close(self._client.disable(workflow, reason=reason, by=by))

    def enable_sync(self, workflow: str) -> bool:
        """``enable`` without an event loop."""
        return self._run_and_close(self._client.enable(workflow))

    def disabled_workflows_sync(self) -> dict[str, DisabledWorkflow]:
        """``disabled_workflows`` without an event loop."""
        return self._run_and_close(self._client.disabled_workflows())

    def audit_sync(self, limit: int = 100) -> builtins.list[AuditEntry]:
        """``audit`` without an event loop."""
        return self._run_and_close(self._client.audit(limit))

    def _run_and_close(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def once() -> T:
            try:
                return await coroutine
            finally:
                await self._client.close()

        try:
            return run_sync(once())
        finally:
            coroutine.close()  # it was never begun if an event loop is running here


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end where no event loop is running."""
    if not _is_loop_running():
        return asyncio.run(coroutine)  # not in an `except` block: it would be the context of whatever the call raises
    coroutine.close()
    raise UsageError("an event loop is running in this thread: use the async form and `await` it")


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
