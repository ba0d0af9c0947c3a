"""Runs behind a server, one by one: what a handle asks for."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from holdfast.admission.usage import Budget, Usage
from holdfast.client.backend import RunBackend
from holdfast.client.http.backoff import LIMIT, Patience
from holdfast.client.http.decoders import (
    items_of,
    read,
    read_approval,
    read_event,
    read_plan,
    read_run,
    read_said,
    read_story,
    read_usage,
)
from holdfast.client.http.problems import error_of
from holdfast.client.http.transport import Passing, Transport
from holdfast.codec import LARGEST, check_size, codec_for
from holdfast.core.states import RunState
from holdfast.errors import InputError, UnknownApproval
from holdfast.reports.agent_result import FINISHED, AgentResult
from holdfast.reports.conversations import Said
from holdfast.reports.events import Event, refuse_in_workflow
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import Family
from holdfast.reports.types import Story
from holdfast.services.approvals import ApprovalInfo, json_data
from holdfast.services.run_outcome import Ended, unsuccessful
from holdfast.services.wire_values import encoded_to_wire, from_wire

WAIT = 25.0
"""Seconds that the server is asked to wait for what is to come: proxies cut off what is silent for a minute."""
PAGE = 500
"""As many as a server gives at once."""

_values = codec_for(Any)


def encoded(value: Any, what: str) -> bytes:
    """A value as it would be recorded. Raises ``UnrecordableValue``."""
    return _values.encode(value, what)


def part(text: str) -> str:
    """A part of a path: whatever is in it, slashes included."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


class HttpRuns(RunBackend):
    """Runs behind a server.

    Args:
        transport: the way to it.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(self, transport: Transport, max_value: int = LARGEST) -> None:
        self.max_value = max_value
        self._transport = transport

    # Asking

    async def _get(self, path: str, **query: Any) -> Any:
        return (await self._transport.ask("GET", path, query=query)).checked()

    async def _changes(self, path: str, body: Any = None, *, method: str = "POST", key: str | None = None) -> bool:
        """Carry out what changes nothing when it is done twice; whether it has changed something."""
        return bool((await self._transport.ask(method, path, body=body, key=key)).checked()["changed"])

    def _wire(self, value: Any, what: str) -> Any:
        """A value as it is sent."""
        return encoded_to_wire(check_size(encoded(value, what), what, self.max_value))

    # One run

    async def result(self, run_id: str) -> Any:
        """The run's result, once it has ended."""
        path = f"/v1/runs/{part(run_id)}/result"
        left = Patience(self._transport.pace, None)
        while True:
            asked_at = self._transport.pace.clock()
            answer = await self._transport.ask("GET", path, wait=WAIT, patience=None)
            told = answer.checked()
            if answer.status != 202:
                return _result(told)
            if self._transport.pace.clock() - asked_at < 1.0:
                await left.wait()  # it did not wait: it is about to stop
            else:
                left.renew()

    async def events(self, run_id: str, after: str | None, *, follow: bool) -> AsyncGenerator[Event]:
        """What happens in the run."""
        refuse_in_workflow(run_id)
        if not follow:
            async for event in self._so_far(run_id, after):
                yield event
            return
        left = Patience(self._transport.pace, None)
        while True:
            wait: float | None = None
            try:
                async with aclosing(self._stream(run_id, after)) as events:
                    async for event in events:
                        after = event.offset
                        left.renew()
                        yield event
                        if event.kind == "ended":
                            return
                if await self._is_over(run_id, after):
                    return
            except Passing as passing:
                wait = passing.wait
            await left.wait(wait)

    async def _stream(self, run_id: str, after: str | None) -> AsyncGenerator[Event]:
        path = f"/v1/runs/{part(run_id)}/events"
        async with self._transport.stream(path, last=after) as stream, aclosing(aiter(stream)) as received:
            async for one in received:
                data = json.loads(one.data)
                if one.event == "problem":
                    error = error_of(int(data.get("status", 500)), data, self._transport.place.url, f"GET {path}")
                    if data.get("status") == 503:
                        raise Passing(str(error), error, sent=False)
                    raise error
                yield read_event(data)

    async def _is_over(self, run_id: str, after: str | None) -> bool:
        """Whether a stream that has come to its end had told everything, or its server was about to stop."""
        answer = await self._transport.ask("GET", f"/v1/runs/{part(run_id)}", patience=None)
        if not read_run(answer.checked()).state.is_terminal:
            return False
        async with aclosing(self._so_far(run_id, after, patience=None)) as events:
            return await anext(events, None) is None

    async def _so_far(self, run_id: str, after: str | None, *, patience: float | None = LIMIT) -> AsyncGenerator[Event]:
        path = f"/v1/runs/{part(run_id)}/events"
        while True:
            query = {"after": after, "limit": PAGE}
            found = items_of((await self._transport.ask("GET", path, query=query, patience=patience)).checked())
            if not found:
                return
            for one in found:
                event = read_event(one)
                after = event.offset
                yield event

    async def info(self, run_id: str) -> RunInfo:
        """What can be told of the run now."""
        return read_run(await self._get(f"/v1/runs/{part(run_id)}"))

    async def usage(self, run_id: str) -> Usage:
        """What its model calls have used so far."""
        return read_usage(await self._get(f"/v1/runs/{part(run_id)}/usage"))

    async def plan(self, run_id: str) -> Plan:
        """Its plan."""
        return read_plan(await self._get(f"/v1/runs/{part(run_id)}/plan"))

    async def story(self, run_id: str, after: int | None, limit: int | None, *, full: bool) -> Story:
        """All that is known of it: page by page, if it is long."""
        story = await self._story(run_id, after, PAGE if limit is None else min(limit, PAGE), full)
        told, newest = list(story.journal), story
        while newest.more and newest.journal and (limit is None or len(told) < limit):
            room = PAGE if limit is None else min(limit - len(told), PAGE)
            newest = await self._story(run_id, told[-1].seq, room, full)
            told += newest.journal
        kin = {**story.kin, **newest.kin}
        return replace(newest, journal=tuple(told), children=tuple(kin.values()))

    async def _story(self, run_id: str, after: int | None, limit: int, full: bool) -> Story:
        values = "full" if full else "brief"
        return read_story(await self._get(f"/v1/runs/{part(run_id)}/story", after=after, limit=limit, values=values))

    async def conversation(self, run_id: str) -> list[Said]:
        """What was said in it."""
        return [read_said(one) for one in items_of(await self._get(f"/v1/runs/{part(run_id)}/conversation"))]

    async def family(self, run_id: str) -> Family:
        """The tree of runs that it is in."""
        return read(Family, await self._get(f"/v1/runs/{part(run_id)}/family"))

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give it another budget."""
        await self._changes(f"/v1/runs/{part(run_id)}/budget", budget_as_json(budget), method="PUT")

    async def signal(self, run_id: str, name: str, value: Any, id: str | None) -> bool:
        """Send a value into it."""
        body = {
            "name": name,
            "value": self._wire(value, f"signal {name!r}"),
            "id": id or f"sent-{secrets.token_hex(10)}",
        }
        is_new = await self._changes(f"/v1/runs/{part(run_id)}/signals", body)
        return is_new or id is None  # under an id of our own making, nobody but us can have sent it before

    async def cancel(self, run_id: str) -> bool:
        """Ask for it to be cancelled."""
        return await self._changes(f"/v1/runs/{part(run_id)}/cancel")

    async def pause(self, run_id: str) -> bool:
        """Keep it from going on."""
        return await self._changes(f"/v1/runs/{part(run_id)}/pause")

    async def resume(self, run_id: str) -> bool:
        """Let it go on."""
        return await self._changes(f"/v1/runs/{part(run_id)}/resume")

    # Questions

    async def approvals(
        self, run_id: str | None, *, workflow: str | None, asked_of: str | None, all: bool, limit: int
    ) -> list[ApprovalInfo]:
        """Questions that match."""
        found: list[ApprovalInfo] = []
        wanted = {"run_id": run_id, "workflow": workflow, "asked_of": asked_of, "all": all or None}
        cursor: str | None = None
        while len(found) < limit:
            most = min(PAGE, limit - len(found))
            page = await self._get("/v1/approvals", **wanted, limit=most, cursor=cursor)
            found += [read_approval(one) for one in items_of(page)]
            cursor = page.get("next")
            if cursor is None:
                break
        return found

    async def approval(self, id: str) -> ApprovalInfo:
        """One question."""
        return read_approval(await self._get(f"/v1/approvals/{part(id.strip() or '-')}"))

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
        body: dict[str, Any] = {"reason": reason}
        if value is not None:
            what = f"the answer to approval {id}"
            body["value"] = self._wire(json_data(value, what), what)
        if arguments is not None:
            body["arguments"] = {name: self._argument(id, name, one) for name, one in _named(id, arguments).items()}
        return await self._answer(id, "approve", body, by, of)

    def _argument(self, id: str, name: str, value: Any) -> Any:
        what = f"argument {name!r} for approval {id}"
        return self._wire(json_data(value, what), what)

    async def deny(self, id: str, *, by: str | None, reason: str, of: str | None = None) -> bool:
        """Say no to a question."""
        return await self._answer(id, "deny", {"reason": reason}, by, of)

    async def _answer(self, id: str, said: str, body: dict[str, Any], by: str | None, of: str | None) -> bool:
        path = f"/v1/approvals/{part(id.strip() or '-')}"
        if of is not None:
            found = read_approval(await self._get(path))
            if found.run_id != of:
                raise UnknownApproval(
                    f"approval {found.id} was asked for by run {found.run_id!r}, not by run {of!r}", found.id
                )
        return await self._changes(f"{path}/{said}", body if by is None else {**body, "by": by})


def _named(id: str, arguments: Any) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):
        raise InputError(f"the arguments for approval {id} are an object, with a value for each, not {arguments!r}")
    return arguments  # pyright: ignore[reportUnknownVariableType]


def _result(told: Mapping[str, Any]) -> Any:
    """What a run has ended with."""
    run_id, state = str(told["run_id"]), RunState(told["state"])
    if state is RunState.COMPLETED:
        output = from_wire(told.get("output"), "the result")
        usage = told.get("usage")
        if usage is None:
            return output
        ended = told.get("finish_reason") or FINISHED, told.get("refusal") or ""
        return AgentResult(output, read_usage(usage), run_id, *ended)
    error: Mapping[str, Any] | None = told.get("error")
    payload = None if error is None else _error_payload(str(error["type"]), str(error["message"]))
    ended = Ended(run_id, str(told["workflow"]), state, None, payload)
    raise unsuccessful(ended, undone=not told.get("retryable", True))


def _error_payload(type: str, message: str) -> bytes:
    """An exception of which only type and message are known, as it would be recorded."""
    name = type.rpartition(".")[2]
    told: dict[str, Any] = {"type": type, "qualname": name, "message": message, "args": [message], "attributes": {}}
    return json.dumps(told).encode()


def budget_as_json(budget: Budget) -> dict[str, Any]:
    """A budget as it is sent."""
    given = {"usd": budget.usd, "tokens": budget.tokens, "turns": budget.turns, "seconds": budget.seconds}
    return {
        name: value if isinstance(value, int) else float(value) for name, value in given.items() if value is not None
    }
