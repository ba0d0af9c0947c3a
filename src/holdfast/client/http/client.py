"""A client over a Holdfast server."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
from typing_extensions import override

from holdfast.admission.durations import MAX_DURATION_S, Duration, timeout_to_seconds
from holdfast.client.client import Client
from holdfast.client.http.admin import HttpAdmin
from holdfast.client.http.backoff import GIVE_UP_AFTER_S, Backoff, Timing
from holdfast.client.http.decoders import decode
from holdfast.client.http.listener import HttpListener, HttpListenerRegistry
from holdfast.client.http.requests import HttpRequests, budget_to_json, encode_value, queue_to_json, quote_segment
from holdfast.client.http.resources import (
    HttpAddresses,
    HttpKeys,
    HttpMemory,
    HttpPolicies,
    HttpQueues,
    HttpSchedules,
)
from holdfast.client.http.results import ResultReader
from holdfast.client.http.runs import HttpRuns, run_path
from holdfast.client.http.server_endpoint import ServerEndpoint, make_namespace_error
from holdfast.client.http.transport import TransientError, Transport
from holdfast.client.loop_thread import SyncLoop
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption, validate_size
from holdfast.errors import NotAllowed, RunConflict, UsageError
from holdfast.reports.formatting import format_iso
from holdfast.reports.run_info import RunInfo
from holdfast.reports.tail import FOLLOWING_KIND, SeenEvents, TailEvent, TailFilter
from holdfast.services.addresses import validate_address_name
from holdfast.services.bulk_start import BATCH_SIZE, CallArguments, check_bulk_options, split_call
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.run_start import StartOptions, validate_run_id
from holdfast.services.wire_values import encoded_to_wire
from holdfast.stores.contract import RunFilter
from holdfast.stores.urls import redact_url

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Maximum bytes of inputs in one request; a server accepts somewhat more."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server, and the caller as the server knows it."""

    version: str
    now: datetime
    """The time of its clock."""
    key_id: str | None
    """The id of the caller's key; ``None`` if the server needs no key."""
    key_name: str
    namespace: str
    scopes: tuple[str, ...]


class HttpClient(HttpRuns, HttpAdmin, Client):
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
        transport = Transport(endpoint, timing=timing, http_transport=http_transport)
        HttpRequests.__init__(self, transport, max_value)
        self._results = ResultReader(transport)
        self.url = endpoint.url
        self.memory = HttpMemory(transport, self._run_sync, max_value)
        self.schedules = HttpSchedules(transport, self._run_sync)
        self.queues = HttpQueues(transport, self._run_sync)
        self.addresses = HttpAddresses(transport, self._run_sync)
        self.policies = HttpPolicies(transport, self._run_sync)
        self.keys = HttpKeys(transport, self._run_sync)
        self._listeners = HttpListenerRegistry(transport)
        self._sync_loop = SyncLoop(transport.close)

    @override
    async def open(self, timeout: Duration | None = None) -> None:
        give_up_after_s = GIVE_UP_AFTER_S if timeout is None else timeout_to_seconds(timeout)
        try:
            (await self._transport.request("GET", "/v1/whoami", give_up_after_s=give_up_after_s)).unwrap()
        except NotAllowed:
            pass  # the server knows the key, which may not read

    async def get_server_info(self) -> ServerInfo:
        """The server, and the caller as the server knows it."""
        health, caller = await self._get("/v1/health"), await self._get("/v1/whoami")
        return decode(ServerInfo, {**health, **caller, "key_name": caller["name"]})

    @override
    async def close(self) -> None:
        await self._listeners.close()
        await self._transport.close()

    @override
    def _create_listener(self, address: str, *, concurrency: int, name: str | None) -> HttpListener:
        return self._listeners.create(address, concurrency=concurrency, name=name)

    # Starting

    @override
    async def _start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        inputs, _ = self._encode_inputs(workflow, args, kwargs)
        body = {"workflow": workflow, **inputs, **_options_to_json(self._options)}
        return str((await self._create_once("/v1/runs", body)).unwrap()["id"])

    @override
    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> builtins.list[str]:
        check_bulk_options(workflow, self._options)
        ids: list[str] = []
        inputs = (self._encode_inputs(workflow, *split_call(call)) for call in calls)
        for batch in _split_batches(inputs):
            body = {"workflow": workflow, "calls": batch, **_options_to_json(self._options)}
            ids += (await self._create_once("/v1/runs/batch", body)).unwrap()["ids"]
        return ids

    @override
    async def _send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        body = {"deadline": deadline_s, **_options_to_json(options)}
        body["payload"] = self._value_to_wire(payload, f"what is sent to address {address!r}")
        path = f"/v1/addresses/{quote_segment(validate_address_name(address))}/send"
        return str((await self._create_once(path, body)).unwrap()["id"])

    def _encode_inputs(
        self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """The JSON of the inputs, and their size in bytes."""
        of = f"of workflow {workflow!r}"
        by_position = [encode_value(value, f"argument {number} {of}") for number, value in enumerate(args, 1)]
        by_name = {name: encode_value(value, f"argument {name!r} {of}") for name, value in kwargs.items()}
        size = sum(map(len, by_position)) + sum(map(len, by_name.values()))
        if size > self.max_value:
            validate_size(b"".join([*by_position, *by_name.values()]), f"the inputs {of}", self.max_value)
        body = {
            "args": [encoded_to_wire(value) for value in by_position],
            "kwargs": {name: encoded_to_wire(value) for name, value in by_name.items()},
        }
        return body, size

    # Many runs

    @override
    async def _list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        return await self._get_pages(
            RunInfo,
            "/v1/runs",
            limit,
            before,
            state=[str(state) for state in run_filter.states],
            workflow=run_filter.workflow,
            tag=run_filter.tag,
            text=run_filter.text,
            parent=run_filter.parent,
            id_prefix=run_filter.id_prefix,
            created_after=format_iso(run_filter.created_after),
            created_before=format_iso(run_filter.created_before),
        )

    @override
    async def _tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        query = {
            "workflow": tail_filter.workflow,
            "tag": tail_filter.tag,
            "state": [str(state) for state in tail_filter.states],
        }
        backoff, seen = Backoff(self._transport.timing, None), SeenEvents()
        position = None if since is None else since.isoformat()
        while True:
            retry_after_s: float | None = None
            try:
                async with (
                    self._transport.stream("/v1/events", query={**query, "since": position}) as stream,
                    aclosing(aiter(stream)) as messages,
                ):
                    async for message in messages:
                        backoff.reset()
                        position = message.id or position
                        if message.event == FOLLOWING_KIND:
                            since = since or datetime.fromisoformat(json.loads(message.data)["since"])
                            continue
                        event = decode(TailEvent, json.loads(message.data))
                        if seen.add_if_new(event) and (since is None or event.at >= since):
                            yield event
            except TransientError as error:
                retry_after_s = error.retry_after_s
            await backoff.wait(retry_after_s)  # the server is about to stop; the next one continues from this position

    @override
    async def _fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        if with_output is not NOT_GIVEN and at is None:
            raise UsageError("fork: with_output is the output of a step: say which with `at`")
        body = {"at": at, "id": None if id is None else validate_run_id(id)}
        if with_output is not NOT_GIVEN:
            body["output"] = self._value_to_wire(with_output, f"the output of step {at!r}")
        response = await self._create_once(run_path(run_id, "fork"), body)
        is_taken = response.has_unconfirmed_attempt and isinstance(response.error, RunConflict)
        if is_taken and id is not None and (await self.get(id)).forked_from == run_id:
            return id  # an earlier try of this request created it
        return str(response.unwrap()["id"])


def _options_to_json(options: StartOptions) -> dict[str, Any]:
    return {
        "id": None if options.id is None else validate_run_id(options.id),
        "queue": queue_to_json(options.queue),
        "key": options.key,
        "dedup": options.dedup,
        "debounce": options.debounce_s,
        "max_debounce": None if options.max_debounce_s == MAX_DURATION_S else options.max_debounce_s,
        "delay": max(0.0, options.delay_s) or None,
        "priority": options.priority or None,
        "tags": [*options.tags] or None,
        "budget": budget_to_json(options.budget),
        "max_deliveries": options.max_deliveries,
        "version": options.version,
    }


def _split_batches(inputs: Iterable[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    """Batches that a server accepts in one request, of inputs and their sizes."""
    batch: list[dict[str, Any]] = []
    batch_bytes = 0
    for body, size in inputs:
        if batch and (len(batch) >= BATCH_SIZE or batch_bytes + size > MAX_BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(body)
        batch_bytes += size
    if batch:
        yield batch
