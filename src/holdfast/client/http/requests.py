"""``HttpRequests``: the requests that all parts of an HTTP client make, and the JSON of what they send."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.client.http.decoders import decode_list
from holdfast.client.http.transport import ServerResponse, Transport
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.services.run_start import generate_id_suffix
from holdfast.services.wire_values import encoded_to_wire

T = TypeVar("T")

PAGE_SIZE = 500
"""The largest page that a server returns."""

_any_codec = codec_for(Any)


class HttpRequests:
    """Requests to a server.

    Args:
        transport: sends them.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(self, transport: Transport, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        self._transport = transport
        self.max_value = max_value

    async def _get(self, path: str, **query: Any) -> Any:
        return (await self._transport.request("GET", path, query=query)).unwrap()

    async def _put(self, path: str, body: Mapping[str, Any]) -> Any:
        return (await self._transport.request("PUT", path, body=dict(body))).unwrap()

    async def _create_once(self, path: str, body: Mapping[str, Any]) -> ServerResponse:
        """Create a run. The server creates it once, however often the request is sent: its id ends with this key."""
        key = generate_id_suffix(time.time())
        return await self._transport.request("POST", path, body=drop_none(body), idempotency_key=key)

    async def _change(self, path: str, body: Any = None, *, method: str = "POST") -> bool:
        """Make a change that has no further effect when it is repeated. Returns whether it changed something."""
        return bool((await self._transport.request(method, path, body=body)).unwrap()["changed"])

    async def _get_pages(
        self, kind: type[T], path: str, limit: int, before: str | None = None, **query: Any
    ) -> list[T]:
        """The items of as many pages as ``limit`` needs."""
        found: list[T] = []
        position: dict[str, str | None] = {"before": before}
        while len(found) < limit:
            page = await self._get(path, **query, **position, limit=min(PAGE_SIZE, limit - len(found)))
            found += decode_list(kind, page)
            if page["next"] is None:
                break
            position = {"cursor": str(page["next"])}
        return found

    def _value_to_wire(self, value: Any, label: str) -> Any:
        """The JSON of a value. Raises ``UnrecordableValue`` and ``ValueTooLarge``."""
        return encoded_to_wire(validate_size(encode_value(value, label), label, self.max_value))


def encode_value(value: Any, label: str) -> bytes:
    """A value in its recorded form. Raises ``UnrecordableValue``."""
    return _any_codec.encode(value, label)


def quote_segment(text: str) -> str:
    """A text as one segment of a path, even if it contains slashes or is ``..``."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def drop_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given."""
    return {name: value for name, value in body.items() if value is not None}


def budget_to_json(budget: Budget | None) -> dict[str, Any] | None:
    """The JSON of a budget."""
    if budget is None:
        return None
    limits = {"usd": budget.usd, "tokens": budget.tokens, "turns": budget.turns, "seconds": budget.seconds}
    return {name: limit if isinstance(limit, int) else float(limit) for name, limit in drop_none(limits).items()}


def queue_to_json(queue: str | Queue | None) -> Any:
    """The JSON of a queue: its name, with the limits of a ``Queue``."""
    if not isinstance(queue, Queue):
        return queue
    limits = queue.limits
    return drop_none(
        {
            "name": queue.name,
            "concurrency": limits.concurrency,
            "rate": [str(rate) for rate in limits.rates] or None,
            "key_concurrency": limits.key_concurrency,
            "key_rate": [str(rate) for rate in limits.key_rates] or None,
            "key": queue.key,
        }
    )
