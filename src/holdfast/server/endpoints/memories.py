"""Memories: values that outlive runs, kept by namespace and key, and found by the words in them.

The namespace in the path is one of memories, within the namespace that the caller's key is bound to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name, Text
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import Api, Body
from holdfast.services.memories import (
    LONGEST_TEXT,
    MOST,
    Remembered,
    check_namespace,
    check_place,
    check_words,
    remembered,
    to_put,
)
from holdfast.services.wire_values import VALUES
from holdfast.stores.memories import Memory

api = Api()


class MemoriesQuery(Body):
    """Which memories: those behind a key, or those with words in them."""

    after: Annotated[Name | None, Field(description="Those behind this key.")] = None
    q: Annotated[Text | None, Field(description="Those with some of these words in them, the best match first.")] = None
    limit: Annotated[int, Field(ge=1, le=MOST, description="At most so many.")] = 100


class MemoryPage(BaseModel):
    """Memories, and where to go on."""

    items: list[Remembered]
    next: Annotated[
        str | None, Field(description="Hand it in as `after` for the next page; null: there is none, or `q` was given.")
    ]


@api("GET", "/v1/memories/{namespace}", scope=Scope.READ, headers=(VALUES,))
async def list_memories(call: Call, namespace: str, query: MemoriesQuery) -> MemoryPage:
    """Memories of a namespace: in the order of their keys, or, with `q`, by the words in them."""
    store = await call.store()
    check_namespace(namespace)
    if query.q is not None:
        check_words(query.q)
        found = await store.search_memories(namespace, query.q, limit=query.limit)
        return MemoryPage(items=await _told(call, found), next=None)
    most = min(query.limit, MOST - 1)
    found = await store.list_memories(namespace, after=query.after or "", limit=most + 1)
    page = found[:most]
    more = len(found) > most
    return MemoryPage(items=await _told(call, page), next=page[-1].key if more else None)


@api("GET", "/v1/memories/{namespace}/{key}", scope=Scope.READ, headers=(VALUES,))
async def get_memory(call: Call, namespace: str, key: str) -> Remembered:
    """One memory."""
    place = check_place(namespace, key)
    found = await (await call.store()).get_memory(namespace, key)
    if found is None:
        raise Problem(404, "memory-not-found", "There is no such memory", f"Nothing is kept as {place}.")
    [told] = await _told(call, [found])
    return told


class MemoryBody(Body):
    """A value to be kept."""

    value: Any
    text: Annotated[
        str | None,
        Field(max_length=LONGEST_TEXT, description="What it is found by; the words in the value unless given."),
    ] = None


@api("PUT", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE, headers=(VALUES,))
async def put_memory(call: Call, namespace: str, key: str, body: MemoryBody) -> None:
    """Keep a value, in place of the one that is there."""
    now, most = (await call.store()).now(), call.client.max_value
    value = await call.take(body.value)
    change = await call.off_loop(0, lambda: to_put(namespace, key, value, body.text, now, most))
    await call.tenant.connection.remember(change)


@api("DELETE", "/v1/memories/{namespace}/{key}", scope=Scope.OPERATE)
async def delete_memory(call: Call, namespace: str, key: str) -> None:
    """Forget a value; harmless if there is none."""
    await call.client.memory.delete(namespace, key)


async def _told(call: Call, found: Sequence[Memory]) -> list[Remembered]:
    def tell() -> list[Remembered]:
        return [replace(one, value=call.out(one.value)) for one in map(remembered, found)]

    return await call.off_loop(sum(len(one.value) for one in found), tell)
