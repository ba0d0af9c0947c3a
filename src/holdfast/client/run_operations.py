"""``RunOperations``: everything a client, or a handle, can do with one run.

``Client`` inherits these methods, and ``Handle`` calls them with its run's id. Here they work on a store;
``http.runs`` overrides each of them with a request to a Holdfast server.

What a method needs is imported when it is called: every process with a workflow has handles, and hardly any of them
builds reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.admission.durations import Duration, timeout_to_seconds
from holdfast.admission.usage import Budget, Usage
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.codec.run_ids import NOT_GIVEN
from holdfast.reports.agent_result import decode_plain_result
from holdfast.services import run_control
from holdfast.services.run_outcome import get_result
from holdfast.services.store_provider import StoreProvider

if TYPE_CHECKING:
    from holdfast.client.handle import Handle
    from holdfast.reports.budgets import BudgetInfo
    from holdfast.reports.conversations import ConversationMessage
    from holdfast.reports.events import Event
    from holdfast.reports.plans import Plan
    from holdfast.reports.run_info import RunInfo
    from holdfast.reports.run_tree import RunTree
    from holdfast.reports.types import RunReport
    from holdfast.services.approvals import ApprovalInfo
    from holdfast.services.journal_files import Journal

R = TypeVar("R")


class RunOperations:
    """Operations on runs by their ids.

    Args:
        provider: gives access to the store, and decides how changes reach it.
        decode: decodes a recorded result; default: as plain data.
        namespaces: where classes of exceptions are looked up, in addition to the loaded modules.
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

    @overload
    async def wait(self, run: Handle[R], timeout: Duration | None = None) -> R: ...
    @overload
    async def wait(self, run: str, timeout: Duration | None = None) -> Any: ...
    async def wait(self, run: str | Handle[Any], timeout: Duration | None = None) -> Any:
        """The result of a run, by its id or its handle, once it has ended.

        Raises ``RunFailed``, ``RunCancelled``, or ``RunDead`` if it has none, and ``TimeoutError`` after ``timeout``;
        the run continues all the same.
        """
        if not isinstance(run, str):
            return await run.result(timeout)
        if timeout is None:
            return await self._wait_for_result(run)
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
        return get_result(await self._provider.wait_for_end(run_id), self._decode, self._namespaces)

    async def get(self, run_id: str) -> RunInfo:
        """The current state of a run."""
        from holdfast.reports.run_info import read_run_info

        return await read_run_info(self._provider, run_id)

    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """The events of a run, from its beginning or after the offset ``after``: see ``Handle.events``."""
        from holdfast.reports.events import read_events

        return read_events(self._provider, run_id, after, follow=follow)

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
        from holdfast.reports.report_reader import check_limit, read_report

        check_limit(limit)
        store = await self._provider.store()
        return await read_report(store, run_id, -1 if after is None else after, limit, brief=not full)

    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        """The conversation of an agent's run so far; empty for other runs."""
        from holdfast.reports.conversation_reader import read_conversation

        return await read_conversation(await self._provider.store(), run_id)

    async def tree(self, run_id: str) -> RunTree:
        """The tree of runs that a run belongs to, from its topmost ancestor down, at most 500 of them."""
        from holdfast.reports.run_tree import read_run_tree

        return await read_run_tree(await self._provider.store(), run_id)

    async def plan(self, run_id: str) -> Plan:
        """The plan of an agent's run and its progress; empty until the agent has written one."""
        from holdfast.reports.plans import read_plan

        return await read_plan(await self._provider.store(), run_id)

    async def usage(self, run_id: str) -> Usage:
        """What the model calls of a run have used so far, including those of the runs that it started."""
        usage = (await (await self._provider.store()).get_usages([run_id])).get(run_id)
        if usage is not None:
            return usage.used
        await self._provider.read(run_id)  # raises if there is no such run
        return Usage()

    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used, with the budgets above it and the runs that it started."""
        from holdfast.reports.budgets import read_budget

        return await read_budget(await self._provider.store(), run_id)

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Replace the budget that a run was started with. The run continues if the old one was used up."""
        await run_control.set_budget(self._provider, run_id, budget)

    async def export(self, run_id: str) -> Journal:
        """A run as it is now, with its whole journal, to ``replay`` it or to save it to a file."""
        from holdfast.services.journal_files import export_run

        return await export_run(await self._provider.store(), run_id)

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into a run. Sending it again with the same ``id`` changes nothing and returns false."""
        return await run_control.send_signal(self._provider, run_id, name, value, id, self.max_value)

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run. False when that was already requested. Raises ``RunEnded`` if it has ended."""
        return await run_control.cancel_run(self._provider, run_id)

    async def pause(self, run_id: str) -> bool:
        """Pause a run. False when it was already paused. Steps in flight may end, and are recorded."""
        return await run_control.pause_run(self._provider, run_id)

    async def resume(self, run_id: str) -> bool:
        """Resume a paused run. False when it was not paused."""
        return await run_control.resume_run(self._provider, run_id)

    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        """Continue a failed, cancelled, or dead run from where it went wrong.

        The records that ended it are removed from its journal, along with the records that followed from them. If a
        run that it started failed, that run is retried too. Raises ``RetryRefused`` if the run cannot continue.

        Args:
            run_id: the run.
            run_again: allow a ``once`` step to run a second time, if the retry needs that.
            version: continue with another version of the workflow; the runs that it started keep theirs.
        """
        await run_control.retry_run(self._provider, run_id, run_again=run_again, version=version)

    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        """Decide the outcome of a ``once`` step whose worker died in it. The run that failed because of it continues.

        ``output`` is what the step returned: it is recorded as the outcome, and the step does not run again. With
        ``happened=False``, the step did not happen and runs again; no other ``once`` step does. The worker checks the
        output: if the step cannot have returned it, the run fails as before and can be settled again.

        Args:
            run_id: the run of the step. If another run failed because this one did, retry that one afterwards.
            step: its number, as in ``holdfast show``, or its name.
            output: what it returned; ``None`` if it returns nothing.
            happened: whether it happened at all.
            by: who decides, kept with the record; default: the user of the operating system, or the server's key.

        Raises ``SettleRefused`` if the step's outcome is known, if something else ended the run, if the run has not
        ended, and if another ``once`` step that the run has reached since then would run a second time.
        """
        from holdfast.services.settlement import settle_step

        store = await self._provider.store()
        await settle_step(store, run_id, step, output=output, happened=happened, by=by, max_value=self.max_value)

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
        from holdfast.services import approvals

        return await approvals.list_approvals(
            self._provider, run_id, workflow=workflow, assignee=assignee, all=all, limit=limit
        )

    async def approval(self, id: str) -> ApprovalInfo:
        """One approval; an unambiguous beginning of its id is enough. Raises ``UnknownApproval``."""
        from holdfast.services.approvals import ApprovalInfo, find_approval

        return ApprovalInfo.from_row(await find_approval(self._provider, id))

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
        from holdfast.services import approvals

        return await approvals.approve(
            self._provider, id, value, arguments=arguments, by=by, reason=reason, run_id=run_id,
            max_value=self.max_value,
        )  # fmt: skip

    async def deny(self, id: str, *, by: str | None = None, reason: str = "", run_id: str | None = None) -> bool:
        """Answer an approval with no. Arguments and errors as for ``approve``."""
        from holdfast.services import approvals

        return await approvals.deny(self._provider, id, by=by, reason=reason, run_id=run_id, max_value=self.max_value)
