"""Memory: values that outlive runs, kept by namespace and key, and found by the words in them.

Here is what a value looks like in the store, and the way to it from outside of runs. How workflow code and agents use
it is in ``authoring.memory`` and ``agents.memory_tools``.
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
"""Values that are read at once."""

MAX_SEARCH_TEXT_LENGTH = 100_000
"""Characters that a value is found by; what comes after them is kept, but not searched."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A value that was put into memory."""

    key: str
    value: UserValue
    """As plain data; ``memory.get(..., type=...)`` gives it back as what it was."""
    updated_at: UtcDatetime


def build_put(
    namespace: str, key: str, value: Any, text: str | None, at: float, max_value: int = DEFAULT_MAX_VALUE_BYTES
) -> PutMemory:
    """The change that keeps a value. Raises ``InputError`` or ``UnrecordableValue``."""
    place = check_location(namespace, key)
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{place}: text is what the value is found by, a str, and not {text!r}")
    is_declared = isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))
    kind: Any = type(value) if is_declared else Any  # pyright: ignore[reportUnknownVariableType]
    encoded = codec_for(kind).encode(value, place)
    words = text if text is not None else " ".join(_iter_words(decode_plain(encoded)))
    return PutMemory(namespace, key, validate_size(encoded, place, max_value), words[:MAX_SEARCH_TEXT_LENGTH], at)


def build_delete(namespace: str, key: str) -> DeleteMemory:
    """The change that forgets a value."""
    check_location(namespace, key)
    return DeleteMemory(namespace, key)


def decode_value(memory: Memory, type: Any = Any) -> Any:
    """The value of a memory, as ``type``."""
    return codec_for(type).decode(memory.value, f"memory {memory.key!r} of namespace {memory.namespace!r}")


def entry_from_row(row: Memory) -> MemoryEntry:
    """A memory as users see it."""
    return MemoryEntry(row.key, decode_plain(row.value), to_datetime(row.updated_at))


async def read_value(store: Store, namespace: str, key: str, default: Any, type: Any) -> Any:
    """One value, or ``default``."""
    check_location(namespace, key)
    found = await store.memories.get(namespace, key)
    return default if found is None else decode_value(found, type)


async def search_values(store: Store, namespace: str, query: str, limit: int) -> list[MemoryEntry]:
    """What has some of these words in it, the best match first."""
    validate_memory_namespace(namespace)
    check_query(query)
    check_limit(limit)
    return [entry_from_row(found) for found in await store.memories.search(namespace, query, limit=limit)]


async def list_values(store: Store, namespace: str, after: str, limit: int) -> list[MemoryEntry]:
    """What a namespace has, in the order of the keys."""
    validate_memory_namespace(namespace)
    check_limit(limit)
    return [entry_from_row(found) for found in await store.memories.list(namespace, after=after, limit=limit)]


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
    """Refuse what cannot be the name of one."""
    return _validate_name(namespace, subject)


def check_location(namespace: object, key: object) -> str:
    """Refuse what cannot be the place of a memory; else, that place in words."""
    namespace, key = validate_memory_namespace(namespace), _validate_name(key, "memory: a key")
    return f"memory {key!r} of namespace {namespace!r}"


def _validate_name(name: object, subject: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        shown = repr(name)[:80]
        raise InputError(f"{subject} is a printable text of 1 to {MAX_NAME_LENGTH} characters, not {shown}")
    return name


def check_query(query: object) -> None:
    """Refuse what cannot be looked for."""
    if not isinstance(query, str):
        raise InputError(f"memory.search: the words to look for are a str, not {query!r}")


def check_limit(limit: object) -> None:
    """Refuse what is no number of values to be read at once."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InputError(f"memory: limit={limit!r} must be a whole number from 1 to {MAX_LIMIT}")


def _iter_words(plain: Any) -> Iterator[str]:
    """The words in plain data: texts and numbers, and the names of fields, without JSON's signs."""
    if isinstance(plain, dict):
        for name, value in cast("dict[Any, Any]", plain).items():
            yield str(name)
            yield from _iter_words(value)
    elif isinstance(plain, list):
        for value in cast("list[Any]", plain):
            yield from _iter_words(value)
    elif plain is not None and not isinstance(plain, bool):
        yield str(plain)
