"""Memories: values that outlive runs, kept by namespace and key, and found by the words in them.

The namespace in the path is one of memories, within the namespace that the caller's key is bound to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name, Text
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.memories import (
    MAX_LIMIT,
    MAX_SEARCH_TEXT_LENGTH,
    MemoryEntry,
    build_put,
    check_location,
    check_query,
    entry_from_row,
    validate_memory_namespace,
)
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.memories import Memory

router = Router()


class MemoriesQuery(RequestModel):
    """Which memories: those behind a key, or those with words in them."""

    after: Annotated[Name | None, Field(description="Those behind this key.")] = None
    q: Annotated[Text | None, Field(description="Those with some of these words in them, the best match first.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="At most so many.")] = 100


class MemoryPage(BaseModel):
    """Memories, and where to go on."""

    items: list[MemoryEntry]
    next: Annotated[
        str | None, Field(description="Hand it in as `after` for the next page; null: there is none, or `q` was given.")
    ]


@router("GET", "/v1/memories/{namespace}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_memories(call: Call, namespace: str, query: MemoriesQuery) -> MemoryPage:
    """Memories of a namespace: in the order of their keys, or, with `q`, by the words in them."""
    store = await call.store()
    validate_memory_namespace(namespace)
    if query.q is not None:
        check_query(query.q)
        found = await store.memories.search(namespace, query.q, limit=query.limit)
        return MemoryPage(items=await _decode_memories(call, found), next=None)
    most = min(query.limit, MAX_LIMIT - 1)
    found = await store.memories.list(namespace, after=query.after or "", limit=most + 1)
    page = found[:most]
    more = len(found) > most
    return MemoryPage(items=await _decode_memories(call, page), next=page[-1].key if more else None)


@router("GET", "/v1/memories/{namespace}/{key}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_memory(call: Call, namespace: str, key: str) -> MemoryEntry:
    """One memory."""
    place = check_location(namespace, key)
    found = await (await call.store()).memories.get(namespace, key)
    if found is None:
        raise Problem(404, "memory-not-found", "There is no such memory", f"Nothing is kept as {place}.")
    [told] = await _decode_memories(call, [found])
    return told


class MemoryBody(RequestModel):
    """A value to be kept."""

    value: Any
    text: Annotated[
        str | None,
        Field(
            max_length=MAX_SEARCH_TEXT_LENGTH, description="What it is found by; the words in the value unless given."
        ),
    ] = None


@router("PUT", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def put_memory(call: Call, namespace: str, key: str, body: MemoryBody) -> None:
    """Keep a value, in place of the one that is there."""
    now, most = (await call.store()).now(), call.client.max_value
    value = await call.prepare_value(body.value)
    change = await call.run_body_work(0, lambda: build_put(namespace, key, value, body.text, now, most))
    await call.tenant.connection.change_memory(change)


@router("DELETE", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE)
async def delete_memory(call: Call, namespace: str, key: str) -> None:
    """Forget a value; harmless if there is none."""
    await call.client.memory.delete(namespace, key)


async def _decode_memories(call: Call, found: Sequence[Memory]) -> list[MemoryEntry]:
    return await call.run_body_work(sum(len(one.value) for one in found), lambda: [*map(entry_from_row, found)])
