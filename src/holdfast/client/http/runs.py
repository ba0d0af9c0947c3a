"""Operations on runs over a server."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from holdfast.admission.usage import Budget, Usage
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff
from holdfast.client.http.decoders import (
    decode,
    decode_approval,
    decode_event,
    decode_message,
    decode_plan,
    decode_report,
    decode_run,
    decode_usage,
    get_items,
)
from holdfast.client.http.problems import error_from_response
from holdfast.client.http.transport import TransientError, Transport
from holdfast.client.run_operations import RunOperations
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.core.states import RunState
from holdfast.errors import InputError, UnknownApproval
from holdfast.reports.agent_result import FINISH_STOP, AgentResult
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.events import Event, check_not_in_workflow
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo, to_json_data
from holdfast.services.run_outcome import EndedRun, make_unsuccessful_error
from holdfast.services.wire_values import encoded_to_wire, from_wire

LONG_POLL_S = 25.0
"""Seconds that the server is asked to wait for what is to come: proxies cut off what is silent for a minute."""
PAGE_SIZE = 500
"""As many as a server gives at once."""

_any_codec = codec_for(Any)


def encode_value(value: Any, label: str) -> bytes:
    """A value as it would be recorded. Raises ``UnrecordableValue``."""
    return _any_codec.encode(value, label)


def quote_segment(text: str) -> str:
    """A part of a path: whatever is in it, slashes included."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


class HttpRuns(RunOperations):
    """Runs behind a server.

    Args:
        transport: the way to it.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(self, transport: Transport, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        self.max_value = max_value
        self._transport = transport

    # Asking

    async def _get(self, path: str, **query: Any) -> Any:
        return (await self._transport.request("GET", path, query=query)).unwrap()

    async def _send_change(
        self, path: str, body: Any = None, *, method: str = "POST", idempotency_key: str | None = None
    ) -> bool:
        """Carry out what changes nothing when it is done twice; whether it has changed something."""
        return bool(
            (await self._transport.request(method, path, body=body, idempotency_key=idempotency_key)).unwrap()[
                "changed"
            ]
        )

    def _value_to_wire(self, value: Any, label: str) -> Any:
        """A value as it is sent."""
        return encoded_to_wire(validate_size(encode_value(value, label), label, self.max_value))

    # One run

    @override
    async def _wait_for_result(self, run_id: str) -> Any:
        path = f"/v1/runs/{quote_segment(run_id)}/result"
        left = Backoff(self._transport.timing, None)
        while True:
            asked_at = self._transport.timing.clock()
            answer = await self._transport.request("GET", path, wait_s=LONG_POLL_S, give_up_after_s=None)
            told = answer.unwrap()
            if answer.status != 202:
                return _decode_result(told)
            if self._transport.timing.clock() - asked_at < 1.0:
                await left.wait()  # it did not wait: it is about to stop
            else:
                left.reset()

    @override
    async def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        check_not_in_workflow(run_id)
        if not follow:
            async for event in self._read_events(run_id, after):
                yield event
            return
        left = Backoff(self._transport.timing, None)
        while True:
            wait: float | None = None
            try:
                async with aclosing(self._stream_events(run_id, after)) as events:
                    async for event in events:
                        after = event.offset
                        left.reset()
                        yield event
                        if event.kind == "ended":
                            return
                if await self._is_stream_complete(run_id, after):
                    return
            except TransientError as passing:
                wait = passing.retry_after_s
            await left.wait(wait)

    async def _stream_events(self, run_id: str, after: str | None) -> AsyncGenerator[Event]:
        path = f"/v1/runs/{quote_segment(run_id)}/events"
        async with self._transport.stream(path, last_event_id=after) as stream, aclosing(aiter(stream)) as received:
            async for one in received:
                data = json.loads(one.data)
                if one.event == "problem":
                    error = error_from_response(
                        int(data.get("status", 500)), data, self._transport.endpoint.url, f"GET {path}"
                    )
                    if data.get("status") == 503:
                        raise TransientError(str(error), error, is_sent=False)
                    raise error
                yield decode_event(data)

    async def _is_stream_complete(self, run_id: str, after: str | None) -> bool:
        """Whether a stream that has come to its end had told everything, or its server was about to stop."""
        answer = await self._transport.request("GET", f"/v1/runs/{quote_segment(run_id)}", give_up_after_s=None)
        if not decode_run(answer.unwrap()).state.is_terminal:
            return False
        async with aclosing(self._read_events(run_id, after, give_up_after_s=None)) as events:
            return await anext(events, None) is None

    async def _read_events(
        self, run_id: str, after: str | None, *, give_up_after_s: float | None = GIVE_UP_AFTER_S
    ) -> AsyncGenerator[Event]:
        path = f"/v1/runs/{quote_segment(run_id)}/events"
        while True:
            query = {"after": after, "limit": PAGE_SIZE}
            found = get_items(
                (await self._transport.request("GET", path, query=query, give_up_after_s=give_up_after_s)).unwrap()
            )
            if not found:
                return
            for one in found:
                event = decode_event(one)
                after = event.offset
                yield event

    @override
    async def get(self, run_id: str) -> RunInfo:
        return decode_run(await self._get(f"/v1/runs/{quote_segment(run_id)}"))

    @override
    async def usage(self, run_id: str) -> Usage:
        return decode_usage(await self._get(f"/v1/runs/{quote_segment(run_id)}/usage"))

    @override
    async def plan(self, run_id: str) -> Plan:
        return decode_plan(await self._get(f"/v1/runs/{quote_segment(run_id)}/plan"))

    @override
    async def describe(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        story = await self._fetch_report(run_id, after, PAGE_SIZE if limit is None else min(limit, PAGE_SIZE), full)
        told, newest = list(story.journal), story
        while newest.has_more and newest.journal and (limit is None or len(told) < limit):
            room = PAGE_SIZE if limit is None else min(limit - len(told), PAGE_SIZE)
            newest = await self._fetch_report(run_id, told[-1].seq, room, full)
            told += newest.journal
        kin = {**story.related_runs_by_id, **newest.related_runs_by_id}
        return replace(newest, journal=tuple(told), related_runs=tuple(kin.values()))

    async def _fetch_report(self, run_id: str, after: int | None, limit: int, full: bool) -> RunReport:
        values = "full" if full else "brief"
        return decode_report(
            await self._get(f"/v1/runs/{quote_segment(run_id)}/report", after=after, limit=limit, values=values)
        )

    @override
    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        return [
            decode_message(one) for one in get_items(await self._get(f"/v1/runs/{quote_segment(run_id)}/conversation"))
        ]

    @override
    async def tree(self, run_id: str) -> RunTree:
        return decode(RunTree, await self._get(f"/v1/runs/{quote_segment(run_id)}/tree"))

    @override
    async def set_budget(self, run_id: str, budget: Budget) -> None:
        await self._send_change(f"/v1/runs/{quote_segment(run_id)}/budget", budget_to_json(budget), method="PUT")

    @override
    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        body = {
            "name": name,
            "value": self._value_to_wire(value, f"signal {name!r}"),
            "id": id or f"sent-{secrets.token_hex(10)}",
        }
        is_new = await self._send_change(f"/v1/runs/{quote_segment(run_id)}/signals", body)
        return is_new or id is None  # under an id of our own making, nobody but us can have sent it before

    @override
    async def cancel(self, run_id: str) -> bool:
        return await self._send_change(f"/v1/runs/{quote_segment(run_id)}/cancel")

    @override
    async def pause(self, run_id: str) -> bool:
        return await self._send_change(f"/v1/runs/{quote_segment(run_id)}/pause")

    @override
    async def resume(self, run_id: str) -> bool:
        return await self._send_change(f"/v1/runs/{quote_segment(run_id)}/resume")

    # Questions

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
        found: list[ApprovalInfo] = []
        wanted = {"run_id": run_id, "workflow": workflow, "assignee": assignee, "include_closed": all or None}
        cursor: str | None = None
        while len(found) < limit:
            most = min(PAGE_SIZE, limit - len(found))
            page = await self._get("/v1/approvals", **wanted, limit=most, cursor=cursor)
            found += [decode_approval(one) for one in get_items(page)]
            cursor = page.get("next")
            if cursor is None:
                break
        return found

    @override
    async def approval(self, id: str) -> ApprovalInfo:
        return decode_approval(await self._get(f"/v1/approvals/{quote_segment(id.strip() or '-')}"))

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
            what = f"the answer to approval {id}"
            body["value"] = self._value_to_wire(to_json_data(value, what), what)
        if arguments is not None:
            body["arguments"] = {
                name: self._argument_to_wire(id, name, one) for name, one in _validate_arguments(id, arguments).items()
            }
        return await self._answer(id, "approve", body, by, run_id)

    def _argument_to_wire(self, id: str, name: str, value: Any) -> Any:
        what = f"argument {name!r} for approval {id}"
        return self._value_to_wire(to_json_data(value, what), what)

    @override
    async def deny(self, id: str, *, by: str | None = None, reason: str = "", run_id: str | None = None) -> bool:
        return await self._answer(id, "deny", {"reason": reason}, by, run_id)

    async def _answer(self, id: str, action: str, body: dict[str, Any], by: str | None, run_id: str | None) -> bool:
        path = f"/v1/approvals/{quote_segment(id.strip() or '-')}"
        if run_id is not None:
            found = decode_approval(await self._get(path))
            if found.run_id != run_id:
                raise UnknownApproval(
                    f"approval {found.id} was asked for by run {found.run_id!r}, not by run {run_id!r}", found.id
                )
        return await self._send_change(f"{path}/{action}", body if by is None else {**body, "by": by})


def _validate_arguments(id: str, arguments: Any) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):
        raise InputError(f"the arguments for approval {id} are an object, with a value for each, not {arguments!r}")
    return arguments  # pyright: ignore[reportUnknownVariableType]


def _decode_result(body: Mapping[str, Any]) -> Any:
    """What a run has ended with."""
    run_id, state = str(body["run_id"]), RunState(body["state"])
    if state is RunState.COMPLETED:
        output = from_wire(body.get("output"), "the result")
        usage = body.get("usage")
        if usage is None:
            return output
        ended = body.get("finish_reason") or FINISH_STOP, body.get("refusal") or ""
        return AgentResult(output, decode_usage(usage), run_id, *ended)
    error: Mapping[str, Any] | None = body.get("error")
    payload = None if error is None else _encode_error(str(error["type"]), str(error["message"]))
    ended = EndedRun(run_id, str(body["workflow"]), state, None, payload)
    raise make_unsuccessful_error(ended, undone=not body.get("retryable", True))


def _encode_error(type: str, message: str) -> bytes:
    """An exception of which only type and message are known, as it would be recorded."""
    name = type.rpartition(".")[2]
    told: dict[str, Any] = {"type": type, "qualname": name, "message": message, "args": [message], "attributes": {}}
    return json.dumps(told).encode()


def budget_to_json(budget: Budget) -> dict[str, Any]:
    """A budget as it is sent."""
    given = {"usd": budget.usd, "tokens": budget.tokens, "turns": budget.turns, "seconds": budget.seconds}
    return {
        name: value if isinstance(value, int) else float(value) for name, value in given.items() if value is not None
    }
