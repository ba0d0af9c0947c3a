"""Memory, schedules, queues, addresses, policies and keys behind a server."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from holdfast.admission.queue_limits import Queue, checked_queue_name
from holdfast.admission.rates import Rate
from holdfast.client.backend import (
    AddressBackend,
    KeyBackend,
    MemoryBackend,
    PolicyBackend,
    QueueBackend,
    ScheduleBackend,
)
from holdfast.client.http.decoders import read, read_all, read_schedule
from holdfast.client.http.runs import PAGE, budget_as_json, part
from holdfast.client.http.transport import Transport
from holdfast.codec import LARGEST, codec_for
from holdfast.errors import UsageError
from holdfast.services.addresses import AddressInfo
from holdfast.services.api_keys import Key, MadeKey
from holdfast.services.memories import Remembered, check_limit, check_namespace, check_place, check_words, to_put
from holdfast.services.policies import Policy, PolicyInfo
from holdfast.services.queues import QueueInfo
from holdfast.services.schedules import ScheduleInfo, WantedSchedule
from holdfast.services.timestamps import moment
from holdfast.services.wire_values import encoded_to_wire, to_wire


class HttpMemory(MemoryBackend):
    """Memory behind a server."""

    def __init__(self, transport: Transport, max_value: int = LARGEST) -> None:
        self._transport = transport
        self._max_value = max_value

    async def put(self, namespace: str, key: str, value: Any, text: str | None) -> None:
        """Keep a value."""
        change = to_put(namespace, key, value, text, 0.0, self._max_value)
        body = {"value": encoded_to_wire(change.value)} | ({} if text is None else {"text": change.text})
        (await self._transport.ask("PUT", _place(namespace, key), body=body)).checked()

    async def get(self, namespace: str, key: str, default: Any, type: Any) -> Any:
        """One value, as ``type``."""
        what = check_place(namespace, key)
        answer = await self._transport.ask("GET", _place(namespace, key))
        if answer.status == 404 and answer.data is not None and answer.data.get("type") == "memory-not-found":
            return default
        value = read(Remembered, answer.checked(), "value").value
        if type is Any:
            return value
        return codec_for(type).decode(codec_for(Any).encode(value, what), what)

    async def search(self, namespace: str, words: str, limit: int) -> builtins.list[Remembered]:
        """Values that have some of these words in them."""
        check_namespace(namespace)
        check_words(words)
        check_limit(limit)
        path = f"/v1/memories/{part(namespace)}"
        answer = await self._transport.ask("GET", path, query={"q": words, "limit": limit})
        return read_all(Remembered, answer.checked(), "value")

    async def list(self, namespace: str, after: str, limit: int) -> builtins.list[Remembered]:
        """Values in the order of their keys."""
        check_namespace(namespace)
        check_limit(limit)
        found: list[Remembered] = []
        place: str | None = after or None
        while True:
            query = {"after": place, "limit": min(PAGE, limit - len(found))}
            told = (await self._transport.ask("GET", f"/v1/memories/{part(namespace)}", query=query)).checked()
            found += read_all(Remembered, told, "value")
            place = told["next"]
            if place is None or len(found) >= limit:
                return found

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""
        check_place(namespace, key)
        (await self._transport.ask("DELETE", _place(namespace, key))).checked()


def _place(namespace: str, key: str) -> str:
    return f"/v1/memories/{part(namespace)}/{part(key)}"


class HttpSchedules(ScheduleBackend):
    """Schedules behind a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, wanted: WantedSchedule) -> ScheduleInfo:
        """Make one, or find that it is there."""
        if isinstance(wanted.tags, str):
            raise UsageError(f"tags is a collection of words, not one string: tags=[{wanted.tags!r}]")
        start = wanted.start
        if start is not None and not isinstance(start, datetime):
            start = moment(start)
        elif start is not None and start.tzinfo is None:
            raise UsageError(f"start={start!r} has no time zone: give one, as in datetime(..., tzinfo=UTC)")
        body: dict[str, Any] = {
            "workflow": wanted.workflow,
            "cron": wanted.cron,
            "every": wanted.every.total_seconds() if isinstance(wanted.every, timedelta) else wanted.every,
            "zone": wanted.zone,
            "start": None if start is None else start.isoformat(),
            "args": [to_wire(one, f"argument {number}") for number, one in enumerate(wanted.args, 1)],
            "kwargs": {name: to_wire(one, f"argument {name!r}") for name, one in (wanted.kwargs or {}).items()},
            "catch_up": wanted.catch_up,
            "most": wanted.most,
            "overlap": wanted.overlap,
            "queue": queue_as_json(wanted.queue),
            "key": wanted.key,
            "priority": wanted.priority,
            "tags": list(wanted.tags),
            "budget": None if wanted.budget is None else budget_as_json(wanted.budget),
            "max_deliveries": wanted.max_deliveries,
            "replace": wanted.replace,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return read_schedule((await self._transport.ask("PUT", _schedule(wanted.name), body=given)).checked())

    async def list(self) -> builtins.list[ScheduleInfo]:
        """All of them."""
        return read_all(ScheduleInfo, (await self._transport.ask("GET", "/v1/schedules")).checked(), "inputs")

    async def get(self, name: str) -> ScheduleInfo:
        """One of them."""
        return read_schedule((await self._transport.ask("GET", _schedule(name))).checked())

    async def pause(self, name: str) -> bool:
        """Keep it from firing."""
        return await _changed(self._transport, "POST", f"{_schedule(name)}/pause")

    async def resume(self, name: str) -> bool:
        """Let it fire again."""
        return await _changed(self._transport, "POST", f"{_schedule(name)}/resume")

    async def delete(self, name: str) -> bool:
        """Forget it."""
        return await _changed(self._transport, "DELETE", _schedule(name))

    async def trigger(self, name: str, id: str | None) -> str:
        """Start a run of it now."""
        body = {} if id is None else {"id": id}
        answer = await self._transport.ask("POST", f"{_schedule(name)}/trigger", body=body, key=secrets.token_hex(16))
        return str(answer.checked()["run_id"])


def _schedule(name: str) -> str:
    return f"/v1/schedules/{part(name)}"


class HttpQueues(QueueBackend):
    """Queues with limits behind a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[QueueInfo]:
        """All of them."""
        return read_all(QueueInfo, (await self._transport.ask("GET", "/v1/queues")).checked())

    async def names(self) -> builtins.list[str]:
        """All that something is known of."""
        return [str(name) for name in (await self._transport.ask("GET", "/v1/queues")).checked()["names"]]

    async def get(self, name: str) -> QueueInfo:
        """One of them."""
        return read(QueueInfo, (await self._transport.ask("GET", _queue(name))).checked())

    async def set(self, name: str, limits: Mapping[str, Any]) -> bool:
        """Set those of its limits that are given."""
        body = {word: _limit(limit) for word, limit in limits.items()}
        return await _changed(self._transport, "PATCH", _queue(name), body)

    async def reset(self, name: str) -> bool:
        """Let it have the limits that code says."""
        return await _changed(self._transport, "POST", f"{_queue(name)}/reset")

    async def pause(self, name: str) -> bool:
        """Let nothing of it begin or go on."""
        return await _changed(self._transport, "POST", f"{_queue(name)}/pause")

    async def resume(self, name: str) -> bool:
        """Let its runs begin again."""
        return await _changed(self._transport, "POST", f"{_queue(name)}/resume")


def _queue(name: str) -> str:
    return f"/v1/queues/{part(checked_queue_name(name))}"


def _limit(limit: Any) -> Any:
    if limit is None or isinstance(limit, str | int):
        return limit
    return str(limit) if isinstance(limit, Rate) else [str(one) for one in limit]


def queue_as_json(queue: str | Queue | None) -> Any:
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


class HttpAddresses(AddressBackend):
    """Addresses behind a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[AddressInfo]:
        """All of them."""
        return read_all(AddressInfo, (await self._transport.ask("GET", "/v1/addresses")).checked())

    async def set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        """Change those of its settings that are given."""
        answer = await self._transport.ask("PUT", f"/v1/addresses/{part(name)}", body=dict(settings))
        return read(AddressInfo, answer.checked())

    async def delete(self, name: str) -> bool:
        """Forget its settings."""
        return await _changed(self._transport, "DELETE", f"/v1/addresses/{part(name)}")


class HttpPolicies(PolicyBackend):
    """Policies behind a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[PolicyInfo]:
        """All of them."""
        return read_all(PolicyInfo, (await self._transport.ask("GET", "/v1/policies")).checked())

    async def set(self, name: str, policy: Policy) -> None:
        """Give somebody a policy."""
        (await self._transport.ask("PUT", _policy(name), body=asdict(policy))).checked()

    async def delete(self, name: str) -> bool:
        """Take it away."""
        return await _changed(self._transport, "DELETE", _policy(name))


def _policy(name: str) -> str:
    return f"/v1/agents/{part(name)}/policy"


class HttpKeys(KeyBackend):
    """API keys behind a server: those of the caller's namespace."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, scopes: Collection[str], expires_at: datetime | None) -> MadeKey:
        """Make one."""
        body = {"name": name, "scopes": [*scopes]}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        # Not sent again: a key whose answer got lost would be there, and nobody would have it.
        return read(MadeKey, (await self._transport.ask("POST", "/v1/keys", body=body, patience=0.0)).checked())

    async def list(self, namespace: str | None) -> builtins.list[Key]:
        """All of them; of another namespace than the caller's, none are known."""
        found = read_all(Key, (await self._transport.ask("GET", "/v1/keys")).checked())
        return [key for key in found if namespace in (None, key.namespace)]

    async def revoke(self, id: str) -> bool:
        """Let one open nothing any more."""
        return await _changed(self._transport, "DELETE", f"/v1/keys/{part(id)}")


async def _changed(transport: Transport, method: str, path: str, body: Any = None) -> bool:
    return bool((await transport.ask(method, path, body=body)).checked()["changed"])
