"""Memories: values that outlive runs, stored by namespace and key, and found by the words in them.

The namespace in the path is a namespace of memories, within the namespace that the caller's key is bound to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name, Text
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
from holdfast.services.problems import Problem
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.memories import Memory

router = Router()


class MemoryNamespacesQuery(RequestModel):
    """Which namespaces of memories."""

    prefix: Annotated[Name | None, Field(description="Those that begin like this.")] = None
    after: Annotated[Name | None, Field(description="Those after this one.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Maximum number of results.")] = 100


class MemoryNamespacePage(BaseModel):
    """A page of namespaces of memories."""

    items: list[str]
    next: Annotated[str | None, Field(description="Send it as `after` to get the next page; null: there is none.")]


@router("GET", "/v1/memories", scope=Scope.READ)
async def list_memory_namespaces(call: Call, query: MemoryNamespacesQuery) -> MemoryNamespacePage:
    """Namespaces that have memories, in order."""
    limit = min(query.limit, MAX_LIMIT - 1)
    found = await call.store.memories.namespaces(query.prefix or "", after=query.after or "", limit=limit + 1)
    return MemoryNamespacePage(items=found[:limit], next=found[limit - 1] if len(found) > limit else None)


class MemoriesQuery(RequestModel):
    """Which memories: those after a key, or those that contain words."""

    after: Annotated[Name | None, Field(description="Those after this key.")] = None
    q: Annotated[Text | None, Field(description="Those that contain some of these words, the best match first.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Maximum number of results.")] = 100


class MemoryPage(BaseModel):
    """A page of memories."""

    items: list[MemoryEntry]
    next: Annotated[
        str | None, Field(description="Send it as `after` to get the next page; null: there is none, or `q` was given.")
    ]


@router("GET", "/v1/memories/{namespace}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_memories(call: Call, namespace: str, query: MemoriesQuery) -> MemoryPage:
    """Memories of a namespace, by key, or with `q`, by the words in them."""
    memories = call.store.memories
    validate_memory_namespace(namespace)
    if query.q is not None:
        check_query(query.q)
        found = await memories.search(namespace, query.q, limit=query.limit)
        return MemoryPage(items=await _decode_memories(call, found), next=None)
    limit = min(query.limit, MAX_LIMIT - 1)
    found = await memories.list(namespace, after=query.after or "", limit=limit + 1)
    page = found[:limit]
    next_key = page[-1].key if len(found) > limit else None
    return MemoryPage(items=await _decode_memories(call, page), next=next_key)


@router("GET", "/v1/memories/{namespace}/{key}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_memory(call: Call, namespace: str, key: str) -> MemoryEntry:
    """One memory."""
    location = check_location(namespace, key)
    found = await call.store.memories.get(namespace, key)
    if found is None:
        raise Problem(404, "memory-not-found", "There is no such memory", f"Nothing is kept as {location}.")
    [entry] = await _decode_memories(call, [found])
    return entry


class MemoryBody(RequestModel):
    """A value to store."""

    value: Any
    text: Annotated[
        str | None,
        Field(max_length=MAX_SEARCH_TEXT_LENGTH, description="The text that `q` searches; default: that of the value."),
    ] = None


@router("PUT", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE, headers=(VALUES_HEADER,))
async def put_memory(call: Call, namespace: str, key: str, body: MemoryBody) -> None:
    """Store a value, in place of an existing one."""
    now, max_value = call.store.now(), call.client.max_value
    value = await call.prepare_value(body.value)
    change = await call.run_body_work(0, lambda: build_put(namespace, key, value, body.text, now, max_value))
    await call.tenant.connections.change_memory(change)


@router("DELETE", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE)
async def delete_memory(call: Call, namespace: str, key: str) -> None:
    """Delete a value, if there is one."""
    await call.client.memory.delete(namespace, key)


async def _decode_memories(call: Call, rows: Sequence[Memory]) -> list[MemoryEntry]:
    return await call.run_body_work(sum(len(row.value) for row in rows), lambda: [*map(entry_from_row, rows)])
