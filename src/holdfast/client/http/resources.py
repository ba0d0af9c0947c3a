"""Memory, schedules, queues, addresses, policies, and API keys of a server."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import override

from holdfast.admission.queue_limits import validate_queue_name
from holdfast.admission.rates import Rate
from holdfast.client.http.decoders import decode, decode_list
from holdfast.client.http.requests import (
    PAGE_SIZE,
    HttpRequests,
    budget_to_json,
    drop_none,
    encode_value,
    queue_to_json,
    quote_segment,
)
from holdfast.client.http.transport import Transport
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for
from holdfast.services.addresses import AddressInfo
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.memories import (
    MemoryEntry,
    build_put,
    check_limit,
    check_location,
    check_prefix,
    check_query,
    validate_memory_namespace,
)
from holdfast.services.policies import Policy, PolicyInfo
from holdfast.services.queues import QueueInfo
from holdfast.services.run_start import validate_run_id
from holdfast.services.schedules import ScheduleInfo, ScheduleRequest
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import encoded_to_wire, to_wire
from holdfast.sync_methods import SyncRunner


class HttpResource(HttpRequests):
    """A part of an HTTP client, with methods for code without an event loop."""

    def __init__(self, transport: Transport, run_sync: SyncRunner, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        super().__init__(transport, max_value)
        self._run_sync = run_sync


class HttpMemory(HttpResource, ClientMemory):
    """Memory of a server."""

    @override
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        change = build_put(namespace, key, value, text, 0.0, self.max_value)
        body = {"value": encoded_to_wire(change.value)} | ({} if text is None else {"text": change.text})
        await self._put(_memory_path(namespace, key), body)

    @override
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        subject = check_location(namespace, key)
        entry = await self.get_entry(namespace, key)
        if entry is None:
            return default
        return entry.value if type is Any else codec_for(type).decode(encode_value(entry.value, subject), subject)

    @override
    async def get_entry(self, namespace: str, key: str) -> MemoryEntry | None:
        check_location(namespace, key)
        response = await self._transport.request("GET", _memory_path(namespace, key))
        if response.status == 404 and response.data is not None and response.data.get("type") == "memory-not-found":
            return None
        return decode(MemoryEntry, response.unwrap())

    @override
    async def search(self, namespace: str, query: str, *, limit: int = 10) -> builtins.list[MemoryEntry]:
        validate_memory_namespace(namespace)
        check_query(query)
        check_limit(limit)
        return decode_list(MemoryEntry, await self._get(_memory_path(namespace), q=query, limit=limit))

    @override
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[MemoryEntry]:
        validate_memory_namespace(namespace)
        check_limit(limit)
        found: list[MemoryEntry] = []
        last_key: str | None = after or None
        while True:
            page = await self._get(_memory_path(namespace), after=last_key, limit=min(PAGE_SIZE, limit - len(found)))
            found += decode_list(MemoryEntry, page)
            last_key = page["next"]
            if last_key is None or len(found) >= limit:
                return found

    @override
    async def delete(self, namespace: str, key: str) -> None:
        check_location(namespace, key)
        (await self._transport.request("DELETE", _memory_path(namespace, key))).unwrap()

    @override
    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        check_prefix(prefix)
        check_limit(limit)
        found: list[str] = []
        last: str | None = after or None
        while True:
            size = min(PAGE_SIZE, limit - len(found))
            page = await self._get("/v1/memories", prefix=prefix or None, after=last, limit=size)
            found += decode_list(str, page)
            last = page["next"]
            if last is None or len(found) >= limit:
                return found


def _memory_path(namespace: str, key: str | None = None) -> str:
    path = f"/v1/memories/{quote_segment(namespace)}"
    return path if key is None else f"{path}/{quote_segment(key)}"


class HttpSchedules(HttpResource, ClientSchedules):
    """Schedules of a server."""

    @override
    async def _create(self, request: ScheduleRequest) -> ScheduleInfo:
        start = request.start if isinstance(request.start, datetime) else to_datetime(request.start)
        body: dict[str, Any] = {
            "workflow": request.workflow,
            "cron": request.cron,
            "every": request.every.total_seconds() if isinstance(request.every, timedelta) else request.every,
            "zone": request.zone,
            "start": None if start is None else start.isoformat(),
            "args": [to_wire(value, f"argument {number}") for number, value in enumerate(request.args, 1)],
            "kwargs": {name: to_wire(value, f"argument {name!r}") for name, value in (request.kwargs or {}).items()},
            "catch_up": request.catch_up,
            "max_catch_up": request.max_catch_up,
            "overlap": request.overlap,
            "queue": queue_to_json(request.queue),
            "key": request.key,
            "priority": request.priority,
            "tags": list(request.tags),
            "budget": budget_to_json(request.budget),
            "max_deliveries": request.max_deliveries,
            "replace": request.replace,
        }
        return decode(ScheduleInfo, await self._put(_schedule_path(request.name), drop_none(body)))

    @override
    async def list(self) -> builtins.list[ScheduleInfo]:
        return decode_list(ScheduleInfo, await self._get("/v1/schedules"))

    @override
    async def get(self, name: str) -> ScheduleInfo:
        return decode(ScheduleInfo, await self._get(_schedule_path(name)))

    @override
    async def pause(self, name: str) -> bool:
        return await self._change(f"{_schedule_path(name)}/pause")

    @override
    async def resume(self, name: str) -> bool:
        return await self._change(f"{_schedule_path(name)}/resume")

    @override
    async def delete(self, name: str) -> bool:
        return await self._change(_schedule_path(name), method="DELETE")

    @override
    async def trigger(self, name: str, *, id: str | None = None) -> str:
        body = {"id": None if id is None else validate_run_id(id)}
        response = await self._create_once(f"{_schedule_path(name)}/trigger", body)
        return str(response.unwrap()["run_id"])


def _schedule_path(name: str) -> str:
    return f"/v1/schedules/{quote_segment(name)}"


class HttpQueues(HttpResource, ClientQueues):
    """Queues with limits of a server."""

    @override
    async def list(self) -> builtins.list[QueueInfo]:
        return decode_list(QueueInfo, await self._get("/v1/queues"))

    @override
    async def names(self) -> builtins.list[str]:
        return [str(name) for name in (await self._get("/v1/queues"))["names"]]

    @override
    async def get(self, name: str) -> QueueInfo:
        return decode(QueueInfo, await self._get(_queue_path(name)))

    @override
    async def _set(self, name: str, limits: Mapping[str, Any]) -> bool:
        body = {word: _limit_to_json(limit) for word, limit in limits.items()}
        return await self._change(_queue_path(name), body, method="PATCH")

    @override
    async def reset(self, name: str) -> bool:
        return await self._change(f"{_queue_path(name)}/reset")

    @override
    async def pause(self, name: str, *, allow_unknown: bool = False) -> bool:
        return await self._change(f"{_queue_path(name)}/pause", {"allow_unknown": True} if allow_unknown else None)

    @override
    async def resume(self, name: str) -> bool:
        return await self._change(f"{_queue_path(name)}/resume")


def _queue_path(name: str) -> str:
    return f"/v1/queues/{quote_segment(validate_queue_name(name))}"


def _limit_to_json(limit: Any) -> Any:
    if limit is None or isinstance(limit, str | int):
        return limit
    return str(limit) if isinstance(limit, Rate) else [str(one) for one in limit]


class HttpAddresses(HttpResource, ClientAddresses):
    """Addresses of a server."""

    @override
    async def list(self) -> builtins.list[AddressInfo]:
        return decode_list(AddressInfo, await self._get("/v1/addresses"))

    @override
    async def _set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        return decode(AddressInfo, await self._put(f"/v1/addresses/{quote_segment(name)}", settings))

    @override
    async def delete(self, name: str) -> bool:
        return await self._change(f"/v1/addresses/{quote_segment(name)}", method="DELETE")


class HttpPolicies(HttpResource, ClientPolicies):
    """Policies of a server."""

    @override
    async def list(self) -> builtins.list[PolicyInfo]:
        return decode_list(PolicyInfo, await self._get("/v1/policies"))

    @override
    async def _set(self, name: str, policy: Policy) -> None:
        await self._put(_policy_path(name), asdict(policy))

    @override
    async def delete(self, name: str) -> bool:
        return await self._change(_policy_path(name), method="DELETE")


def _policy_path(name: str) -> str:
    return f"/v1/agents/{quote_segment(name)}/policy"


class HttpKeys(HttpResource, ClientKeys):
    """API keys of a server: those of the caller's namespace."""

    @override
    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        body = {"name": name, "scopes": [*scopes]}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        # Sent once: if the answer is lost, the key exists, and no caller has its token.
        response = await self._transport.request("POST", "/v1/keys", body=body, give_up_after_s=0.0)
        return decode(CreatedApiKey, response.unwrap())

    @override
    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        found = decode_list(ApiKey, await self._get("/v1/keys"))
        return [key for key in found if namespace in (None, key.namespace)]

    @override
    async def revoke(self, id: str) -> bool:
        return await self._change(f"/v1/keys/{quote_segment(id)}", method="DELETE")
