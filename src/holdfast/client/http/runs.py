"""Operations on runs of a server."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from typing_extensions import override

from holdfast.admission.usage import Budget, Usage
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff
from holdfast.client.http.decoders import decode, decode_list, decode_message, get_items
from holdfast.client.http.problems import error_from_response
from holdfast.client.http.requests import (
    PAGE_SIZE,
    HttpRequests,
    budget_to_json,
    drop_none,
    quote_segment,
)
from holdfast.client.http.results import ResultReader
from holdfast.client.http.transport import ServerResponse, TransientError
from holdfast.client.run_operations import RunOperations
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, InputError, RetryRefused, SettleRefused, UnknownApproval
from holdfast.reports.agent_result import FINISH_STOP, AgentResult
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.events import Event, check_not_in_workflow
from holdfast.reports.plans import Plan, PlanItem
from holdfast.reports.report_reader import check_limit
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo, to_json_data
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.journal_files import Journal
from holdfast.services.run_outcome import EndedRun, make_unsuccessful_error
from holdfast.services.settlement import check_settlement
from holdfast.services.wire_values import from_wire


def run_path(run_id: str, operation: str = "") -> str:
    """The path of a run, or of an operation on it."""
    path = f"/v1/runs/{quote_segment(run_id)}"
    return f"{path}/{operation}" if operation else path


class HttpRuns(HttpRequests, RunOperations):
    """Operations on runs of a server."""

    _results: ResultReader

    @override
    async def _wait_for_result(self, run_id: str) -> Any:
        return _decode_result(await self._results.wait(run_id))

    @override
    async def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        check_not_in_workflow(run_id)
        if not follow:
            async for event in self._read_events(run_id, after):
                yield event
            return
        backoff = Backoff(self._transport.timing, None)
        while True:
            retry_after_s: float | None = None
            try:
                async with aclosing(self._stream_events(run_id, after)) as events:
                    async for event in events:
                        after = event.offset
                        backoff.reset()
                        yield event
                        if event.kind == "ended":
                            return
                if await self._is_stream_complete(run_id, after):
                    return
            except TransientError as error:
                retry_after_s = error.retry_after_s
            await backoff.wait(retry_after_s)

    async def _stream_events(self, run_id: str, after: str | None) -> AsyncGenerator[Event]:
        path = run_path(run_id, "events")
        async with self._transport.stream(path, last_event_id=after) as stream, aclosing(aiter(stream)) as received:
            async for message in received:
                data = json.loads(message.data)
                if message.event == "problem":
                    error = error_from_response(
                        int(data.get("status", 500)), data, self._transport.endpoint.url, f"GET {path}"
                    )
                    if data.get("status") == 503:
                        raise TransientError(str(error), error, is_sent=False)
                    raise error
                yield decode(Event, data)

    async def _is_stream_complete(self, run_id: str, after: str | None) -> bool:
        """Whether a stream ended because the run did, and not because its server was about to stop."""
        response = await self._transport.request("GET", run_path(run_id), give_up_after_s=None)
        if not decode(RunInfo, response.unwrap()).state.is_terminal:
            return False
        async with aclosing(self._read_events(run_id, after, give_up_after_s=None)) as events:
            return await anext(events, None) is None

    async def _read_events(
        self, run_id: str, after: str | None, *, give_up_after_s: float | None = GIVE_UP_AFTER_S
    ) -> AsyncGenerator[Event]:
        path = run_path(run_id, "events")
        while True:
            query = {"after": after, "limit": PAGE_SIZE}
            response = await self._transport.request("GET", path, query=query, give_up_after_s=give_up_after_s)
            events = decode_list(Event, response.unwrap())
            if not events:
                return
            for event in events:
                yield event
            after = events[-1].offset

    @override
    async def get(self, run_id: str) -> RunInfo:
        return decode(RunInfo, await self._get(run_path(run_id)))

    @override
    async def usage(self, run_id: str) -> Usage:
        return decode(Usage, await self._get(run_path(run_id, "usage")))

    @override
    async def plan(self, run_id: str) -> Plan:
        return Plan(tuple(decode_list(PlanItem, await self._get(run_path(run_id, "plan")))))

    @override
    async def describe(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        check_limit(limit)
        first = latest = await self._fetch_page(run_id, after, limit, full)
        journal = list(first.journal)
        while latest.has_more and latest.journal and (limit is None or len(journal) < limit):
            left = None if limit is None else limit - len(journal)
            latest = await self._fetch_page(run_id, journal[-1].seq, left, full)
            journal += latest.journal
        related = {**first.related_runs_by_id, **latest.related_runs_by_id}
        return replace(latest, journal=tuple(journal), related_runs=tuple(related.values()))

    async def _fetch_page(self, run_id: str, after: int | None, limit: int | None, full: bool) -> RunReport:
        size, values = PAGE_SIZE if limit is None else min(limit, PAGE_SIZE), "full" if full else "brief"
        return decode(RunReport, await self._get(run_path(run_id, "report"), after=after, limit=size, values=values))

    @override
    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        return [decode_message(item) for item in get_items(await self._get(run_path(run_id, "conversation")))]

    @override
    async def tree(self, run_id: str) -> RunTree:
        return decode(RunTree, await self._get(run_path(run_id, "tree")))

    @override
    async def budget(self, run_id: str) -> BudgetInfo:
        return decode(BudgetInfo, await self._get(run_path(run_id, "budget")))

    @override
    async def set_budget(self, run_id: str, budget: Budget) -> None:
        await self._change(run_path(run_id, "budget"), budget_to_json(budget), method="PUT")

    @override
    async def export(self, run_id: str) -> Journal:
        journal = await self._get(run_path(run_id, "journal"))
        return Journal.from_json(journal, f"what {self._transport.endpoint.url} tells of run {run_id!r}")

    @override
    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        body = {
            "name": name,
            "value": self._value_to_wire(value, f"signal {name!r}"),
            "id": id or f"sent-{secrets.token_hex(10)}",
        }
        is_new = await self._change(run_path(run_id, "signals"), body)
        return is_new or id is None  # a generated id was never used before: an earlier try of this request sent it

    @override
    async def cancel(self, run_id: str) -> bool:
        return await self._change(run_path(run_id, "cancel"))

    @override
    async def pause(self, run_id: str) -> bool:
        return await self._change(run_path(run_id, "pause"))

    @override
    async def resume(self, run_id: str) -> bool:
        return await self._change(run_path(run_id, "resume"))

    @override
    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        body = drop_none({"run_again": run_again, "version": version})
        response = await self._transport.request("POST", run_path(run_id, "retry"), body=body)
        await self._check_reopened(response, run_id, RetryRefused)

    @override
    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        check_settlement(output, happened)
        body = drop_none({"step": step, "by": by})
        if happened:
            body["output"] = self._value_to_wire(output, f"the output of step {step!r}")
        else:
            body["happened"] = False
        response = await self._transport.request("POST", run_path(run_id, "settle"), body=body)
        await self._check_reopened(response, run_id, SettleRefused)

    async def _check_reopened(self, response: ServerResponse, run_id: str, refusal: type[HoldfastError]) -> None:
        """Raise the error of a retry or a settlement, unless an earlier try of the same request reopened the run."""
        is_refused = response.has_unconfirmed_attempt and isinstance(response.error, refusal)
        if not is_refused or (await self.get(run_id)).state.is_terminal:
            response.unwrap()

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
        return await self._get_pages(
            ApprovalInfo, "/v1/approvals", limit, run_id=run_id, workflow=workflow, assignee=assignee,
            include_closed=all or None,
        )  # fmt: skip

    @override
    async def approval(self, id: str) -> ApprovalInfo:
        return decode(ApprovalInfo, await self._get(_approval_path(id)))

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
        body: dict[str, Any] = {"reason": reason}
        if value is not None:
            body["value"] = self._answer_to_wire(value, f"the answer to approval {id}")
        if arguments is not None:
            if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputError(
                    f"the arguments for approval {id} are an object, with a value for each, not {arguments!r}"
                )
            body["arguments"] = {
                name: self._answer_to_wire(argument, f"argument {name!r} for approval {id}")
                for name, argument in arguments.items()
            }
        return await self._answer(id, "approve", body, by, run_id)

    def _answer_to_wire(self, value: Any, label: str) -> Any:
        return self._value_to_wire(to_json_data(value, label), label)

    @override
    async def deny(self, id: str, *, by: str | None = None, reason: str = "", run_id: str | None = None) -> bool:
        return await self._answer(id, "deny", {"reason": reason}, by, run_id)

    async def _answer(self, id: str, action: str, body: dict[str, Any], by: str | None, run_id: str | None) -> bool:
        if run_id is not None:
            found = await self.approval(id)
            if found.run_id != run_id:
                raise UnknownApproval(
                    f"approval {found.id} was asked for by run {found.run_id!r}, not by run {run_id!r}", found.id
                )
        return await self._change(f"{_approval_path(id)}/{action}", drop_none({**body, "by": by}))


def _approval_path(id: str) -> str:
    return f"/v1/approvals/{quote_segment(id.strip() or '-')}"


def _decode_result(body: Mapping[str, Any]) -> Any:
    """The result of an ended run. Raises the error of a run that has none."""
    run_id, state = str(body["run_id"]), RunState(body["state"])
    if state is RunState.COMPLETED:
        output = from_wire(body.get("output"), "the result")
        usage = body.get("usage")
        if usage is None:
            return output
        finish_reason, refusal = body.get("finish_reason") or FINISH_STOP, body.get("refusal") or ""
        return AgentResult(output, decode(Usage, usage), run_id, finish_reason, refusal)
    error: Mapping[str, Any] | None = body.get("error")
    payload = None if error is None else _encode_error(str(error["type"]), str(error["message"]))
    ended = EndedRun(run_id, str(body["workflow"]), state, None, payload)
    raise make_unsuccessful_error(ended, undone=not body.get("retryable", True))


def _encode_error(type: str, message: str) -> bytes:
    """The recorded form of an exception of which only the type and the message are known."""
    name = type.rpartition(".")[2]
    error: dict[str, Any] = {"type": type, "qualname": name, "message": message, "args": [message], "attributes": {}}
    return json.dumps(error).encode()
