"""``HoldfastStore``: LangGraph's store interface over a client's memory.

The items of a LangGraph namespace are entries of the memory ``langgraph/store/<its labels, joined by periods>``.
LangGraph allows no periods in labels. A search with a query finds the words in an item, not its meaning: there are no
vectors.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
    validate_op_namespace,
)
from typing_extensions import override

from holdfast.client.client import Client
from holdfast.errors import UsageError
from holdfast.integrations.langgraph_checkpoints.connection import Connection
from holdfast.integrations.langgraph_checkpoints.layout import ROOT
from holdfast.services.memories import MAX_LIMIT, MemoryEntry
from holdfast.sync_methods import sync_method

Namespace = tuple[str, ...]

PREFIX: Final = f"{ROOT}/store/"
_COMPARISONS: Final = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class HoldfastStore(BaseStore):
    """A store that keeps the long-term memory of graphs in Holdfast's database.

    Items never expire, and a search finds words. It connects when it is first used, for code with and without
    ``await``.

    Args:
        target: the URL of a store, such as ``sqlite:///agents.db``, or of a server; or an open client, which the caller
            closes. Default: ``HOLDFAST_URL``, else the default file.
        index: refused; it is here so that the error says why.
    """

    __slots__ = ("_connection",)

    def __init__(self, target: str | Client | None = None, *, index: IndexConfig | None = None) -> None:
        if index is not None:
            raise UsageError(
                "HoldfastStore(index=...): there is no vector search. `search(query=...)` finds words without an "
                "index; for embeddings, use a store that has them, such as LangGraph's PostgresStore"
            )
        self._connection = Connection(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.aclose()

    def _run_sync(self, coroutine: Coroutine[Any, Any, Any], /) -> Any:
        return self._connection.run(coroutine)

    @override
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of operations. Reads come before writes; of two writes to the same item, the later one stays."""
        all_ops = [*ops]
        for op in all_ops:
            _check(op)
        reads = [op for op in all_ops if not isinstance(op, PutOp)]
        read = iter(await asyncio.gather(*map(self._read, reads)))
        writes = {(op.namespace, op.key): op for op in all_ops if isinstance(op, PutOp)}
        await asyncio.gather(*map(self._write, writes.values()))
        return [None if isinstance(op, PutOp) else next(read) for op in all_ops]

    batch = sync_method(abatch)  # pyright: ignore[reportAssignmentType]

    async def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            entry = await self._connection.find(_to_memory(op.namespace), op.key)
            return None if entry is None else Item(**_to_item(op.namespace, entry))
        if isinstance(op, SearchOp):
            return await self._search(op)
        return await self._list_namespaces(cast(ListNamespacesOp, op))

    async def _write(self, op: PutOp) -> None:
        if op.value is None:
            await self._connection.delete(_to_memory(op.namespace), [op.key])
        else:
            value, subject = dict(op.value), f"item {op.key!r} of {op.namespace}"
            text = _get_text(value, op.index)
            await self._connection.put(_to_memory(op.namespace), op.key, value, text=text, subject=subject)

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        """Items under a namespace, by namespace and key; with a query, the best matches of each namespace first."""
        found: list[SearchItem] = []
        skipped = 0
        entries = self._find_words(op) if op.query else self._iterate(op.namespace_prefix)
        async for namespace, entry in entries:
            if len(found) >= op.limit:
                break
            if not _matches(entry.value, op.filter or {}):
                continue
            if skipped < op.offset:
                skipped += 1
                continue
            found.append(SearchItem(**_to_item(namespace, entry)))
        return found

    async def _iterate(self, prefix: Namespace) -> AsyncGenerator[tuple[Namespace, MemoryEntry]]:
        for namespace in await self._find_namespaces(prefix):
            async for entry in self._connection.iterate(_to_memory(namespace)):
                yield namespace, entry

    async def _find_words(self, op: SearchOp) -> AsyncGenerator[tuple[Namespace, MemoryEntry]]:
        """Items with words of the query: the best of each namespace, then the second best of each, and so on."""
        namespaces = await self._find_namespaces(op.namespace_prefix)
        limit = MAX_LIMIT if op.filter else min(MAX_LIMIT, op.offset + op.limit)
        searches = (self._connection.search(_to_memory(namespace), op.query or "", limit) for namespace in namespaces)
        found = await asyncio.gather(*searches)
        ranks = range(max(map(len, found), default=0))
        for rank in ranks:
            for namespace, entries in zip(namespaces, found, strict=True):
                if rank < len(entries):
                    yield namespace, entries[rank]

    async def _find_namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """Namespaces that begin with these labels and have items, in order."""
        start = _to_memory(prefix)
        known = [_from_memory(name) for name in await self._connection.list_namespaces(start)]
        return sorted(namespace for namespace in known if namespace[: len(prefix)] == prefix)

    async def _list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        conditions = op.match_conditions or ()
        known = await self._find_namespaces()
        found = {namespace[: op.max_depth] for namespace in known if all(_fits(namespace, one) for one in conditions)}
        return sorted(found)[op.offset : op.offset + op.limit]


def _check(op: Op) -> None:
    validate_op_namespace(op)
    if isinstance(op, PutOp) and op.ttl is not None:
        raise UsageError(
            f"put({op.namespace}, {op.key!r}, ttl={op.ttl}): items in a HoldfastStore do not expire. Leave out "
            f"ttl, and delete items when they are no longer wanted"
        )


def _to_memory(namespace: Sequence[str]) -> str:
    return PREFIX + ".".join(namespace)


def _from_memory(name: str) -> Namespace:
    return tuple(name.removeprefix(PREFIX).split("."))


def _to_item(namespace: Namespace, entry: MemoryEntry) -> dict[str, Any]:
    times = {"created_at": entry.created_at or entry.updated_at, "updated_at": entry.updated_at}
    return {"namespace": namespace, "key": entry.key, "value": entry.value, **times}


def _get_text(value: Mapping[str, Any], index: Sequence[str] | bool | None) -> str | None:
    """What an item is found by: the words of these fields, or all of them (``None``)."""
    if index is None or index is True:
        return None
    return "\n".join(text for path in index or () for text in get_text_at_path(value, path))


def _fits(namespace: Namespace, condition: MatchCondition) -> bool:
    path = condition.path
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :] if path else ()
    return len(labels) == len(path) and all(wanted in ("*", label) for label, wanted in zip(labels, path, strict=True))


def _matches(value: Any, wanted: Any) -> bool:
    """Whether a value has what a filter wants: equal values, nested ones, or comparisons such as ``{"$gt": 4}``."""
    if not isinstance(wanted, Mapping):
        return value == (list(cast("tuple[Any, ...]", wanted)) if isinstance(wanted, tuple) else wanted)
    conditions = cast("Mapping[str, Any]", wanted)
    if any(name.startswith("$") for name in conditions):
        return all(_compare(value, name, operand) for name, operand in conditions.items())
    if not isinstance(value, Mapping):
        return False
    fields = cast("Mapping[str, Any]", value)
    return all(_matches(fields.get(name), one) for name, one in conditions.items())


def _compare(value: Any, name: str, operand: Any) -> bool:
    if name not in _COMPARISONS:
        raise UsageError(f"filter: {name!r} is not one of {', '.join(_COMPARISONS)}")
    try:
        return bool(_COMPARISONS[name](value, operand))
    except TypeError:  # they have no order, such as a missing field and a number
        return False
