"""A client over a Holdfast server."""

from __future__ import annotations

import builtins
import json
import os
import secrets
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, TypeVar

import httpx2
from typing_extensions import override

from holdfast.admission.durations import MAX_DURATION_S, Duration, duration_to_seconds, timeout_to_seconds
from holdfast.client.client import Client
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff, Timing
from holdfast.client.http.decoders import decode, decode_list, decode_run, get_items
from holdfast.client.http.listener import HttpListenerRegistry
from holdfast.client.http.resources import (
    HttpAddresses,
    HttpKeys,
    HttpMemory,
    HttpPolicies,
    HttpQueues,
    HttpSchedules,
    queue_to_json,
)
from holdfast.client.http.runs import PAGE_SIZE, HttpRuns, budget_to_json, encode_value, quote_segment
from holdfast.client.http.server_endpoint import ServerEndpoint, make_namespace_error
from holdfast.client.http.transport import TransientError, Transport
from holdfast.client.listener import Listener
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption, validate_size
from holdfast.core.states import RunState, parse_run_states
from holdfast.errors import NotAllowed, RetryRefused, RunConflict, SettleRefused, UsageError
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.formatting import format_iso
from holdfast.reports.run_info import RunInfo
from holdfast.reports.tail import FOLLOWING_KIND, SeenEvents, TailEvent, TailFilter
from holdfast.reports.usage_report import UsageReport, to_utc_date
from holdfast.services.addresses import validate_address_name
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import BATCH_SIZE, CallArguments, check_bulk_options, split_call
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.journal_files import Journal
from holdfast.services.retention import PruneReport
from holdfast.services.run_start import StartOptions
from holdfast.services.settlement import check_settlement
from holdfast.services.wire_values import encoded_to_wire
from holdfast.services.workers import WorkerInfo
from holdfast.stores.contract import RunFilter
from holdfast.stores.urls import redact_url

T = TypeVar("T")

PRUNE_TIMEOUT_S = 600.0
"""Seconds that deleting runs may take."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of inputs that are sent at once: servers take some more."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server, and who it takes the caller for."""

    version: str
    now: datetime
    """By its clock."""
    key_id: str | None
    """The id of the caller's key; none where none is needed."""
    key_name: str
    namespace: str
    scopes: tuple[str, ...]


class HttpClient(HttpRuns, Client):
    """A client over a Holdfast server.

    Args, in addition to those of ``Client``:
        timing: clock and random source.
        http_transport: sends requests instead of the network.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        encryption: Encryption | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        timing: Timing | None = None,
        http_transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        url = url or os.environ.get("HOLDFAST_URL") or ""
        if namespace is not None:
            raise make_namespace_error(namespace, f"Client(namespace={namespace!r})")
        if encryption is not None:
            raise UsageError(
                f"Client(encryption=...) is for a store, and {redact_url(url)} is a server, which seals what it "
                f"keeps with keys of its own: give it those with HOLDFAST_ENCRYPTION_KEYS where it runs"
            )
        endpoint = ServerEndpoint(
            url,
            api_key if api_key is not None else os.environ.get("HOLDFAST_API_KEY") or None,
            insecure=insecure or os.environ.get("HOLDFAST_INSECURE", "") not in ("", "0"),
        )
        super().__init__(Transport(endpoint, timing=timing, http_transport=http_transport), max_value)
        self.url = endpoint.url
        self.memory = HttpMemory(self._transport, self._run_sync, max_value)
        self.schedules = HttpSchedules(self._transport, self._run_sync)
        self.queues = HttpQueues(self._transport, self._run_sync)
        self.addresses = HttpAddresses(self._transport, self._run_sync)
        self.policies = HttpPolicies(self._transport, self._run_sync)
        self.keys = HttpKeys(self._transport, self._run_sync)
        self._listeners = HttpListenerRegistry(self._transport)

    @override
    async def open(self, timeout: Duration | None = None) -> None:
        give_up_after_s = GIVE_UP_AFTER_S if timeout is None else timeout_to_seconds(timeout)
        try:
            (await self._transport.request("GET", "/v1/whoami", give_up_after_s=give_up_after_s)).unwrap()
        except NotAllowed:
            pass  # the server knows the key, which may not read

    async def get_server_info(self) -> ServerInfo:
        """What the server tells of itself, and of the caller."""
        health, who = await self._get("/v1/health"), await self._get("/v1/whoami")
        return decode(ServerInfo, {**health, **who, "key_name": who["name"]})

    @override
    async def close(self) -> None:
        await self._listeners.close()
        await self._transport.close()

    @override
    def _create_listener(self, address: str, *, concurrency: int, name: str | None) -> Listener:
        return self._listeners.create(address, concurrency=concurrency, name=name)

    # Starting

    @override
    async def _start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        inputs, _ = self._encode_inputs(workflow, args, kwargs)
        body = {"workflow": workflow, "id": self._options.id, **inputs, **_options_to_json(self._options)}
        answer = await self._transport.request(
            "POST", "/v1/runs", body=_drop_none(body), idempotency_key=secrets.token_hex(16)
        )
        return str(answer.unwrap()["id"])

    @override
    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> builtins.list[str]:
        check_bulk_options(workflow, self._options)
        ids: list[str] = []
        inputs = (self._encode_inputs(workflow, *split_call(call)) for call in calls)
        for some in _split_batches(inputs):
            body = _drop_none({"workflow": workflow, "calls": some, **_options_to_json(self._options)})
            # Under the same key the server starts none of them twice, however often it is asked.
            answer = await self._transport.request(
                "POST", "/v1/runs/batch", body=body, idempotency_key=secrets.token_hex(16)
            )
            ids += answer.unwrap()["ids"]
        return ids

    @override
    async def _send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        body = _drop_none({"id": options.id, "deadline": deadline_s, **_options_to_json(options)})
        body["payload"] = self._value_to_wire(payload, f"what is sent to address {address!r}")
        path = f"/v1/addresses/{quote_segment(validate_address_name(address))}/send"
        answer = await self._transport.request("POST", path, body=body, idempotency_key=secrets.token_hex(16))
        return str(answer.unwrap()["id"])

    def _encode_inputs(
        self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """The inputs as they are sent, and how many bytes they are."""
        of = f"of workflow {workflow!r}"
        by_position = [encode_value(one, f"argument {number} {of}") for number, one in enumerate(args, 1)]
        by_name = {name: encode_value(one, f"argument {name!r} {of}") for name, one in kwargs.items()}
        size = sum(map(len, by_position)) + sum(map(len, by_name.values()))
        if size > self.max_value:
            validate_size(b"".join([*by_position, *by_name.values()]), f"the inputs {of}", self.max_value)
        sent = {
            "args": [encoded_to_wire(one) for one in by_position],
            "kwargs": {name: encoded_to_wire(one) for name, one in by_name.items()},
        }
        return sent, size

    # Many runs

    @override
    async def _list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        query = {
            "state": [str(one) for one in run_filter.states],
            "workflow": run_filter.workflow,
            "tag": run_filter.tag,
            "text": run_filter.text,
            "parent": run_filter.parent,
            "id_prefix": run_filter.id_prefix,
            "created_after": format_iso(run_filter.created_after),
            "created_before": format_iso(run_filter.created_before),
        }
        return [decode_run(one) for one in await self._fetch_pages("/v1/runs", query, limit, before)]

    @override
    async def _tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        query = {
            "workflow": tail_filter.workflow,
            "tag": tail_filter.tag,
            "state": [str(one) for one in tail_filter.states],
        }
        left, told = Backoff(self._transport.timing, None), SeenEvents()
        place = None if since is None else since.isoformat()
        while True:
            wait: float | None = None
            try:
                async with (
                    self._transport.stream("/v1/events", query={**query, "since": place}) as stream,
                    aclosing(aiter(stream)) as received,
                ):
                    async for one in received:
                        left.reset()
                        place = one.id or place
                        if one.event == FOLLOWING_KIND:
                            since = since or datetime.fromisoformat(json.loads(one.data)["since"])
                            continue
                        happening = decode(TailEvent, json.loads(one.data))
                        if told.add_if_new(happening) and (since is None or happening.at >= since):
                            yield happening
            except TransientError as passing:
                wait = passing.retry_after_s
            await left.wait(wait)  # its server is about to stop: another one, or it itself, goes on from this place

    @override
    async def export(self, run_id: str) -> Journal:
        told = await self._get(f"/v1/runs/{quote_segment(run_id)}/journal")
        return Journal.from_json(told, f"what {self.url} tells of run {run_id!r}")

    @override
    async def budget(self, run_id: str) -> BudgetInfo:
        return decode(BudgetInfo, await self._get(f"/v1/runs/{quote_segment(run_id)}/budget"))

    @override
    async def dead(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        found = await self._fetch_pages("/v1/dead-runs", {"workflow": workflow}, limit, before)
        return [decode(DeadRun, one) for one in found]

    async def _fetch_pages(
        self, path: str, query: dict[str, Any], limit: int, before: str | None
    ) -> builtins.list[Any]:
        found: list[Any] = []
        place: dict[str, str | None] = {"before": before}
        while len(found) < limit:
            told = await self._get(path, **query, **place, limit=min(PAGE_SIZE, limit - len(found)))
            found += get_items(told)
            if told["next"] is None:
                break
            place = {"cursor": str(told["next"])}
        return found

    @override
    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        body = _drop_none({"run_again": run_again, "version": version})
        answer = await self._transport.request("POST", f"/v1/runs/{quote_segment(run_id)}/retry", body=body)
        is_refused = isinstance(answer.error, RetryRefused)
        if answer.has_unconfirmed_attempt and is_refused and not (await self.get(run_id)).state.is_terminal:
            return  # our first try has been heard: it goes on
        answer.unwrap()

    @override
    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        check_settlement(output, happened)
        body = _drop_none({"step": step, "by": by})
        if happened:
            body["output"] = self._value_to_wire(output, f"the output of step {step!r}")
        else:
            body["happened"] = False
        answer = await self._transport.request("POST", f"/v1/runs/{quote_segment(run_id)}/settle", body=body)
        is_refused = isinstance(answer.error, SettleRefused)
        if answer.has_unconfirmed_attempt and is_refused and not (await self.get(run_id)).state.is_terminal:
            return  # our first try has been heard: it goes on
        answer.unwrap()

    @override
    async def _fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        if with_output is not NOT_GIVEN and at is None:
            raise UsageError("fork: with_output is the output of a step: say which with `at`")
        body = _drop_none({"at": at, "id": id})
        if with_output is not NOT_GIVEN:
            body["output"] = self._value_to_wire(with_output, f"the output of step {at!r}")
        path = f"/v1/runs/{quote_segment(run_id)}/fork"
        answer = await self._transport.request("POST", path, body=body, idempotency_key=secrets.token_hex(16))
        is_taken = isinstance(answer.error, RunConflict)
        if (
            answer.has_unconfirmed_attempt
            and is_taken
            and id is not None
            and (await self.get(id)).forked_from == run_id
        ):
            return id  # our first try has been heard
        return str(answer.unwrap()["id"])

    @override
    async def prune(
        self,
        older_than: Duration,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        keep: int = 0,
        unclaimed: bool = False,
        run_ids: Collection[str] | None = None,
        dry_run: bool = False,
        report: PruneReport | None = None,
    ) -> PruneReport:
        body = {
            "older_than": duration_to_seconds(older_than, "older_than", may_be_zero=True),
            "state": [str(one) for one in parse_run_states(state)],
            "workflow": workflow,
            "keep": keep,
            "unclaimed": unclaimed,
            "run_ids": None if run_ids is None else [*run_ids],
            "dry_run": dry_run,
        }
        answer = await self._transport.request("POST", "/v1/prune", body=_drop_none(body), timeout_s=PRUNE_TIMEOUT_S)
        found = decode(PruneReport, answer.unwrap())
        if report is None:
            return found
        for field in fields(found):
            setattr(report, field.name, getattr(found, field.name))
        return report

    # Agents and workflows

    @override
    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        first, last = (None if day is None else to_utc_date(day).isoformat() for day in (since, until))
        told = await self._get("/v1/usage", since=first, until=last, workflow=workflow)
        return decode(UsageReport, told)

    @override
    async def workers(self) -> builtins.list[WorkerInfo]:
        return decode_list(WorkerInfo, await self._get("/v1/workers"))

    @override
    async def health(self) -> builtins.list[Health]:
        return decode_list(Health, await self._get("/v1/agents"))

    @override
    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        return decode(Health, await self._get(f"/v1/agents/{quote_segment(workflow)}")).inputs_schema

    @override
    async def disable(self, workflow: str, *, reason: str = "", by: str | None = None) -> bool:
        return await self._send_change(f"/v1/agents/{quote_segment(workflow)}/disable", {"reason": reason, "by": by})

    @override
    async def enable(self, workflow: str) -> bool:
        return await self._send_change(f"/v1/agents/{quote_segment(workflow)}/enable")

    @override
    async def audit(self, limit: int = 100) -> builtins.list[AuditEntry]:
        return [decode(AuditEntry, one) for one in await self._fetch_pages("/v1/audit", {}, limit, None)]

    @override
    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        return {one.name: one for one in decode_list(DisabledWorkflow, await self._get("/v1/disabled"))}


def _options_to_json(options: StartOptions) -> dict[str, Any]:
    """How a run is started, as it is sent."""
    most = options.max_debounce_s
    return {
        "queue": queue_to_json(options.queue),
        "key": options.key,
        "dedup": options.dedup,
        "debounce": options.debounce_s,
        "max_debounce": None if most == MAX_DURATION_S else most,
        "delay": max(0.0, options.delay_s) or None,
        "priority": options.priority or None,
        "tags": [*options.tags] or None,
        "budget": None if options.budget is None else budget_to_json(options.budget),
        "max_deliveries": options.max_deliveries,
        "version": options.version,
    }


def _drop_none(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _split_batches(inputs: Iterable[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    """So many at once as a server takes in one request."""
    some: list[dict[str, Any]] = []
    size = 0
    for one, more in inputs:
        if some and (len(some) >= BATCH_SIZE or size + more > MAX_BATCH_BYTES):
            yield some
            some, size = [], 0
        some.append(one)
        size += more
    if some:
        yield some
