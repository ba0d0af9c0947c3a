"""Memory: values that outlive runs, kept by namespace and key, and found by the words in them.

Here is what a value looks like in the store, and the way to it from outside of runs. How workflow code and agents use
it is in ``authoring.memory`` and ``agents.memory_tools``.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from pydantic import BaseModel

from holdfast.codec import LARGEST, check_size, codec_for, to_plain
from holdfast.errors import InputError
from holdfast.services.timestamps import moment
from holdfast.stores.contract import Store
from holdfast.stores.memories import DeleteMemory, Memory, PutMemory

if TYPE_CHECKING:
    from holdfast.client.backend import MemoryBackend
    from holdfast.client.sync_methods import InSync

T = TypeVar("T")

LONGEST_NAME = 200
"""Characters of a namespace or a key."""

MOST = 1000
"""Values that are read at once."""

LONGEST_TEXT = 100_000
"""Characters that a value is found by; what comes after them is kept, but not searched."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A value that was put into memory."""

    key: str
    value: Any
    """As plain data; ``memory.get(..., type=...)`` gives it back as what it was."""
    updated_at: datetime


def to_put(namespace: str, key: str, value: Any, text: str | None, at: float, max_value: int = LARGEST) -> PutMemory:
    """The change that keeps a value. Raises ``InputError`` or ``UnrecordableValue``."""
    place = check_place(namespace, key)
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{place}: text is what the value is found by, a str, and not {text!r}")
    is_declared = isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))
    kind: Any = type(value) if is_declared else Any  # pyright: ignore[reportUnknownVariableType]
    encoded = codec_for(kind).encode(value, place)
    words = text if text is not None else " ".join(_words_of(to_plain(encoded)))
    return PutMemory(namespace, key, check_size(encoded, place, max_value), words[:LONGEST_TEXT], at)


def to_delete(namespace: str, key: str) -> DeleteMemory:
    """The change that forgets a value."""
    check_place(namespace, key)
    return DeleteMemory(namespace, key)


def value_of(found: Memory, type: Any = Any) -> Any:
    """The value of a memory, as ``type``."""
    return codec_for(type).decode(found.value, f"memory {found.key!r} of namespace {found.namespace!r}")


def remembered(found: Memory) -> Remembered:
    """A memory as users see it."""
    return Remembered(found.key, to_plain(found.value), moment(found.updated_at))


async def read_value(store: Store, namespace: str, key: str, default: Any, type: Any) -> Any:
    """One value, or ``default``."""
    check_place(namespace, key)
    found = await store.get_memory(namespace, key)
    return default if found is None else value_of(found, type)


async def search(store: Store, namespace: str, words: str, limit: int) -> list[Remembered]:
    """What has some of these words in it, the best match first."""
    check_namespace(namespace)
    check_words(words)
    check_limit(limit)
    return [remembered(found) for found in await store.search_memories(namespace, words, limit=limit)]


async def list_values(store: Store, namespace: str, after: str, limit: int) -> list[Remembered]:
    """What a namespace has, in the order of the keys."""
    check_namespace(namespace)
    check_limit(limit)
    return [remembered(found) for found in await store.list_memories(namespace, after=after, limit=limit)]


class MemoryFace:
    """Memory as those see it who can wait for an answer: a client, or code of a workflow (``authoring.memory``)."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        """Keep a value under a key, in place of the one that is there."""
        await self._backend.put(namespace, key, value, text)

    @overload
    async def get(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, or ``default``."""
        return await self._backend.get(namespace, key, default, type)

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> builtins.list[Remembered]:
        """Values that have some of these words in them, the best match first."""
        return await self._backend.search(namespace, words, limit)

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[Remembered]:
        """Values in the order of their keys, those behind the key ``after``."""
        return await self._backend.list(namespace, after, limit)

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value; harmless if there is none."""
        await self._backend.delete(namespace, key)


class ClientMemory(MemoryFace):
    """Memory as a client sees it: also for code without an event loop."""

    def __init__(self, backend: MemoryBackend, in_sync: InSync) -> None:
        super().__init__(backend)
        self._sync = in_sync

    def put_sync(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        """``put`` without an event loop."""
        self._sync(self.put(namespace, key, value, text=text))

    @overload
    def get_sync(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    def get_sync(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    def get_sync(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """``get`` without an event loop."""
        return self._sync(self.get(namespace, key, default, type=type))

    def search_sync(self, namespace: str, words: str, *, limit: int = 10) -> builtins.list[Remembered]:
        """``search`` without an event loop."""
        return self._sync(self.search(namespace, words, limit=limit))

    def list_sync(self, namespace: str, *, after: str = "", limit: int = 100) -> builtins.list[Remembered]:
        """``list`` without an event loop."""
        return self._sync(self.list(namespace, after=after, limit=limit))

    def delete_sync(self, namespace: str, key: str) -> None:
        """``delete`` without an event loop."""
        self._sync(self.delete(namespace, key))


def check_namespace(namespace: object, what: str = "memory: a namespace") -> str:
    """Refuse what cannot be the name of one."""
    return _check_name(namespace, what)


def check_place(namespace: object, key: object) -> str:
    """Refuse what cannot be the place of a memory; else, that place in words."""
    namespace, key = check_namespace(namespace), _check_name(key, "memory: a key")
    return f"memory {key!r} of namespace {namespace!r}"


def _check_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        shown = repr(name)[:80]
        raise InputError(f"{what} is a printable text of 1 to {LONGEST_NAME} characters, not {shown}")
    return name


def check_words(words: object) -> None:
    """Refuse what cannot be looked for."""
    if not isinstance(words, str):
        raise InputError(f"memory.search: the words to look for are a str, not {words!r}")


def check_limit(limit: object) -> None:
    """Refuse what is no number of values to be read at once."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InputError(f"memory: limit={limit!r} must be a whole number from 1 to {MOST}")


def _words_of(plain: Any) -> Iterator[str]:
    """The words in plain data: texts and numbers, and the names of fields, without JSON's signs."""
    if isinstance(plain, dict):
        for name, value in cast("dict[Any, Any]", plain).items():
            yield str(name)
            yield from _words_of(value)
    elif isinstance(plain, list):
        for value in cast("list[Any]", plain):
            yield from _words_of(value)
    elif plain is not None and not isinstance(plain, bool):
        yield str(plain)
