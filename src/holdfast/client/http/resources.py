"""Memory, schedules, queues, addresses, policies and keys behind a server."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import override

from holdfast.admission.queue_limits import Queue, validate_queue_name
from holdfast.admission.rates import Rate
from holdfast.client.http.decoders import decode, decode_list, decode_schedule
from holdfast.client.http.runs import PAGE_SIZE, budget_to_json, quote_segment
from holdfast.client.http.transport import Transport
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.codec import codec_for
from holdfast.errors import UsageError
from holdfast.services.addresses import AddressInfo
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.memories import (
    MemoryEntry,
    build_put,
    check_limit,
    check_location,
    check_query,
    validate_memory_namespace,
)
from holdfast.services.policies import Policy, PolicyInfo
from holdfast.services.queues import QueueInfo
from holdfast.services.schedules import ScheduleInfo, ScheduleRequest
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import encoded_to_wire, to_wire
from holdfast.sync_methods import SyncRunner


class HttpMemory(ClientMemory):
    """Memory behind a server."""

    def __init__(self, transport: Transport, run_sync: SyncRunner, max_value: int) -> None:
        super().__init__(run_sync)
        self._transport = transport
        self._max_value = max_value

    @override
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        change = build_put(namespace, key, value, text, 0.0, self._max_value)
        body = {"value": encoded_to_wire(change.value)} | ({} if text is None else {"text": change.text})
        (await self._transport.request("PUT", _memory_path(namespace, key), body=body)).unwrap()

    @override
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        what = check_location(namespace, key)
        answer = await self._transport.request("GET", _memory_path(namespace, key))
        if answer.status == 404 and answer.data is not None and answer.data.get("type") == "memory-not-found":
            return default
        value = decode(MemoryEntry, answer.unwrap()).value
        if type is Any:
            return value
        return codec_for(type).decode(codec_for(Any).encode(value, what), what)

    @override
    async def search(self, namespace: str, query: str, *, limit: int = 10) -> builtins.list[MemoryEntry]:
        validate_memory_namespace(namespace)
        check_query(query)
        check_limit(limit)
        path = f"/v1/memories/{quote_segment(namespace)}"
        answer = await self._transport.request("GET", path, query={"q": query, "limit": limit})
        return decode_list(MemoryEntry, answer.unwrap())

    @override
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[MemoryEntry]:
        validate_memory_namespace(namespace)
        check_limit(limit)
        found: list[MemoryEntry] = []
        place: str | None = after or None
        while True:
            query = {"after": place, "limit": min(PAGE_SIZE, limit - len(found))}
            told = (
                await self._transport.request("GET", f"/v1/memories/{quote_segment(namespace)}", query=query)
            ).unwrap()
            found += decode_list(MemoryEntry, told)
            place = told["next"]
            if place is None or len(found) >= limit:
                return found

    @override
    async def delete(self, namespace: str, key: str) -> None:
        check_location(namespace, key)
        (await self._transport.request("DELETE", _memory_path(namespace, key))).unwrap()


def _memory_path(namespace: str, key: str) -> str:
    return f"/v1/memories/{quote_segment(namespace)}/{quote_segment(key)}"


class HttpSchedules(ClientSchedules):
    """Schedules behind a server."""

    def __init__(self, transport: Transport, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._transport = transport

    @override
    async def _create(self, request: ScheduleRequest) -> ScheduleInfo:
        if isinstance(request.tags, str):
            raise UsageError(f"tags is a collection of words, not one string: tags=[{request.tags!r}]")
        start = request.start
        if start is not None and not isinstance(start, datetime):
            start = to_datetime(start)
        elif start is not None and start.tzinfo is None:
            raise UsageError(f"start={start!r} has no time zone: give one, as in datetime(..., tzinfo=UTC)")
        body: dict[str, Any] = {
            "workflow": request.workflow,
            "cron": request.cron,
            "every": request.every.total_seconds() if isinstance(request.every, timedelta) else request.every,
            "zone": request.zone,
            "start": None if start is None else start.isoformat(),
            "args": [to_wire(one, f"argument {number}") for number, one in enumerate(request.args, 1)],
            "kwargs": {name: to_wire(one, f"argument {name!r}") for name, one in (request.kwargs or {}).items()},
            "catch_up": request.catch_up,
            "max_catch_up": request.max_catch_up,
            "overlap": request.overlap,
            "queue": queue_to_json(request.queue),
            "key": request.key,
            "priority": request.priority,
            "tags": list(request.tags),
            "budget": None if request.budget is None else budget_to_json(request.budget),
            "max_deliveries": request.max_deliveries,
            "replace": request.replace,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return decode_schedule(
            (await self._transport.request("PUT", _schedule_path(request.name), body=given)).unwrap()
        )

    @override
    async def list(self) -> builtins.list[ScheduleInfo]:
        return decode_list(ScheduleInfo, (await self._transport.request("GET", "/v1/schedules")).unwrap())

    @override
    async def get(self, name: str) -> ScheduleInfo:
        return decode_schedule((await self._transport.request("GET", _schedule_path(name))).unwrap())

    @override
    async def pause(self, name: str) -> bool:
        return await _send_change(self._transport, "POST", f"{_schedule_path(name)}/pause")

    @override
    async def resume(self, name: str) -> bool:
        return await _send_change(self._transport, "POST", f"{_schedule_path(name)}/resume")

    @override
    async def delete(self, name: str) -> bool:
        return await _send_change(self._transport, "DELETE", _schedule_path(name))

    @override
    async def trigger(self, name: str, *, id: str | None = None) -> str:
        body = {} if id is None else {"id": id}
        answer = await self._transport.request(
            "POST", f"{_schedule_path(name)}/trigger", body=body, idempotency_key=secrets.token_hex(16)
        )
        return str(answer.unwrap()["run_id"])


def _schedule_path(name: str) -> str:
    return f"/v1/schedules/{quote_segment(name)}"


class HttpQueues(ClientQueues):
    """Queues with limits behind a server."""

    def __init__(self, transport: Transport, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._transport = transport

    @override
    async def list(self) -> builtins.list[QueueInfo]:
        return decode_list(QueueInfo, (await self._transport.request("GET", "/v1/queues")).unwrap())

    @override
    async def names(self) -> builtins.list[str]:
        return [str(name) for name in (await self._transport.request("GET", "/v1/queues")).unwrap()["names"]]

    @override
    async def get(self, name: str) -> QueueInfo:
        return decode(QueueInfo, (await self._transport.request("GET", _queue_path(name))).unwrap())

    @override
    async def _set(self, name: str, limits: Mapping[str, Any]) -> bool:
        body = {word: _limit_to_json(limit) for word, limit in limits.items()}
        return await _send_change(self._transport, "PATCH", _queue_path(name), body)

    @override
    async def reset(self, name: str) -> bool:
        return await _send_change(self._transport, "POST", f"{_queue_path(name)}/reset")

    @override
    async def pause(self, name: str) -> bool:
        return await _send_change(self._transport, "POST", f"{_queue_path(name)}/pause")

    @override
    async def resume(self, name: str) -> bool:
        return await _send_change(self._transport, "POST", f"{_queue_path(name)}/resume")


def _queue_path(name: str) -> str:
    return f"/v1/queues/{quote_segment(validate_queue_name(name))}"


def _limit_to_json(limit: Any) -> Any:
    if limit is None or isinstance(limit, str | int):
        return limit
    return str(limit) if isinstance(limit, Rate) else [str(one) for one in limit]


def queue_to_json(queue: str | Queue | None) -> Any:
    """A queue as it is sent: its name, with the limits that it was given."""
    if not isinstance(queue, Queue):
        return queue
    limits = queue.limits
    told = {
        "name": queue.name,
        "concurrency": limits.concurrency,
        "rate": [str(rate) for rate in limits.rates] or None,
        "key_concurrency": limits.key_concurrency,
        "key_rate": [str(rate) for rate in limits.key_rates] or None,
        "key": queue.key,
    }
    return {name: value for name, value in told.items() if value is not None}


class HttpAddresses(ClientAddresses):
    """Addresses behind a server."""

    def __init__(self, transport: Transport, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._transport = transport

    @override
    async def list(self) -> builtins.list[AddressInfo]:
        return decode_list(AddressInfo, (await self._transport.request("GET", "/v1/addresses")).unwrap())

    @override
    async def _set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        answer = await self._transport.request("PUT", f"/v1/addresses/{quote_segment(name)}", body=dict(settings))
        return decode(AddressInfo, answer.unwrap())

    @override
    async def delete(self, name: str) -> bool:
        return await _send_change(self._transport, "DELETE", f"/v1/addresses/{quote_segment(name)}")


class HttpPolicies(ClientPolicies):
    """Policies behind a server."""

    def __init__(self, transport: Transport, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._transport = transport

    @override
    async def list(self) -> builtins.list[PolicyInfo]:
        return decode_list(PolicyInfo, (await self._transport.request("GET", "/v1/policies")).unwrap())

    @override
    async def _set(self, name: str, policy: Policy) -> None:
        (await self._transport.request("PUT", _policy_path(name), body=asdict(policy))).unwrap()

    @override
    async def delete(self, name: str) -> bool:
        return await _send_change(self._transport, "DELETE", _policy_path(name))


def _policy_path(name: str) -> str:
    return f"/v1/agents/{quote_segment(name)}/policy"


class HttpKeys(ClientKeys):
    """API keys behind a server: those of the caller's namespace."""

    def __init__(self, transport: Transport, run_sync: SyncRunner) -> None:
        super().__init__(run_sync)
        self._transport = transport

    @override
    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        body = {"name": name, "scopes": [*scopes]}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        # Not sent again: a key whose answer got lost would be there, and nobody would have it.
        return decode(
            CreatedApiKey, (await self._transport.request("POST", "/v1/keys", body=body, give_up_after_s=0.0)).unwrap()
        )

    @override
    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        found = decode_list(ApiKey, (await self._transport.request("GET", "/v1/keys")).unwrap())
        return [key for key in found if namespace in (None, key.namespace)]

    @override
    async def revoke(self, id: str) -> bool:
        return await _send_change(self._transport, "DELETE", f"/v1/keys/{quote_segment(id)}")


async def _send_change(transport: Transport, method: str, path: str, body: Any = None) -> bool:
    return bool((await transport.request(method, path, body=body)).unwrap()["changed"])
