"""Memory: values that outlive runs, stored by namespace and key, and found by the words in them.

This module has the stored form of a value, and access from outside of runs. ``authoring.memory`` and
``agents.memory_tools`` have the access of workflow code and agents.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar, cast, overload

from pydantic import BaseModel

from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, decode_plain, validate_size
from holdfast.errors import InputError
from holdfast.services.json_form import UserValue, UtcDatetime
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.memories import DeleteMemory, Memory, PutMemory

T = TypeVar("T")

MAX_NAME_LENGTH = 200
"""Characters of a namespace or a key."""

MAX_LIMIT = 1000
"""Maximum number of values per read."""

MAX_SEARCH_TEXT_LENGTH = 100_000
"""Characters of the text that a value is found by. The rest is not searched."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A value in memory."""

    key: str
    value: UserValue
    """Plain data; ``memory.get(..., type=...)`` returns the original type."""
    updated_at: UtcDatetime
    created_at: UtcDatetime | None = None
    """``None`` in results that a workflow recorded before entries had this field."""


def build_put(
    namespace: str, key: str, value: Any, text: str | None, at: float, max_value: int = DEFAULT_MAX_VALUE_BYTES
) -> PutMemory:
    """The operation that puts a value. Raises ``InputError`` or ``UnrecordableValue``."""
    location = check_location(namespace, key)
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{location}: text is what the value is found by, a str, and not {text!r}")
    is_declared = isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))
    kind: Any = type(value) if is_declared else Any  # pyright: ignore[reportUnknownVariableType]
    encoded = codec_for(kind).encode(value, location)
    words = text if text is not None else " ".join(_iter_words(decode_plain(encoded)))
    return PutMemory(namespace, key, validate_size(encoded, location, max_value), words[:MAX_SEARCH_TEXT_LENGTH], at)


def build_delete(namespace: str, key: str) -> DeleteMemory:
    """The operation that deletes a value."""
    check_location(namespace, key)
    return DeleteMemory(namespace, key)


def decode_value(memory: Memory, type: Any = Any) -> Any:
    """The value of a memory, as ``type``."""
    return codec_for(type).decode(memory.value, f"memory {memory.key!r} of namespace {memory.namespace!r}")


def entry_from_row(row: Memory) -> MemoryEntry:
    """A memory as users see it."""
    return MemoryEntry(row.key, decode_plain(row.value), to_datetime(row.updated_at), to_datetime(row.created_at))


async def read_value(store: Store, namespace: str, key: str, default: Any, type: Any) -> Any:
    """The value under a key, or ``default``."""
    check_location(namespace, key)
    found = await store.memories.get(namespace, key)
    return default if found is None else decode_value(found, type)


async def find_entry(store: Store, namespace: str, key: str) -> MemoryEntry | None:
    """The value under a key, with its times."""
    check_location(namespace, key)
    found = await store.memories.get(namespace, key)
    return None if found is None else entry_from_row(found)


async def search_values(store: Store, namespace: str, query: str, limit: int) -> list[MemoryEntry]:
    """Values that contain some of these words, the best match first."""
    validate_memory_namespace(namespace)
    check_query(query)
    check_limit(limit)
    return [entry_from_row(found) for found in await store.memories.search(namespace, query, limit=limit)]


async def list_values(store: Store, namespace: str, after: str, limit: int) -> list[MemoryEntry]:
    """Values of a namespace, in the order of their keys."""
    validate_memory_namespace(namespace)
    check_limit(limit)
    return [entry_from_row(found) for found in await store.memories.list(namespace, after=after, limit=limit)]


async def list_namespaces(store: Store, prefix: str, after: str, limit: int) -> list[str]:
    """Namespaces with values, in order."""
    check_prefix(prefix)
    check_limit(limit)
    return await store.memories.namespaces(prefix, after=after, limit=limit)


class AsyncMemory(ABC):
    """Values that outlive runs, for async code: outside of runs (``client``) and inside (``authoring.memory``)."""

    @abstractmethod
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        """Put a value under a key, in place of the current one."""

    @overload
    async def get(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    @abstractmethod
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, or ``default``."""

    @abstractmethod
    async def search(self, namespace: str, query: str, *, limit: int = 10) -> builtins.list[MemoryEntry]:
        """Values that contain some of these words, the best match first."""

    @abstractmethod
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[MemoryEntry]:
        """Values in the order of their keys, starting after the key ``after``."""

    @abstractmethod
    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if there is one."""


def validate_memory_namespace(namespace: object, subject: str = "memory: a namespace") -> str:
    """The namespace, if it is valid. Raises ``InputError``."""
    return _validate_name(namespace, subject)


def check_location(namespace: object, key: object) -> str:
    """The location of a memory in words. Raises ``InputError`` for an invalid namespace or key."""
    namespace, key = validate_memory_namespace(namespace), _validate_name(key, "memory: a key")
    return f"memory {key!r} of namespace {namespace!r}"


def _validate_name(name: object, subject: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        shown = repr(name)[:80]
        raise InputError(f"{subject} is a printable text of 1 to {MAX_NAME_LENGTH} characters, not {shown}")
    return name


def check_prefix(prefix: object) -> None:
    """Raise ``InputError`` for an invalid prefix of namespaces."""
    if not isinstance(prefix, str):
        raise InputError(f"memory.namespaces: a prefix is a str, not {prefix!r}")


def check_query(query: object) -> None:
    """Raise ``InputError`` for an invalid query."""
    if not isinstance(query, str):
        raise InputError(f"memory.search: the words to look for are a str, not {query!r}")


def check_limit(limit: object) -> None:
    """Raise ``InputError`` for an invalid limit."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InputError(f"memory: limit={limit!r} must be a whole number from 1 to {MAX_LIMIT}")


def _iter_words(plain: Any) -> Iterator[str]:
    """The words in plain data: strings, numbers, and names of fields."""
    if isinstance(plain, dict):
        for name, value in cast("dict[Any, Any]", plain).items():
            yield str(name)
            yield from _iter_words(value)
    elif isinstance(plain, list):
        for value in cast("list[Any]", plain):
            yield from _iter_words(value)
    elif plain is not None and not isinstance(plain, bool):
        yield str(plain)
