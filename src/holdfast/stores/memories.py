"""Memories: values that outlive runs, stored under a namespace and a key, and found by the words in them.

Access depends only on the namespace: a caller that knows it may read and change its memories. The last put wins. A
step's change is part of the transaction that appends the step's record. So it has happened exactly if the record
exists, and a repeated append does not change the memory again, whatever others have written since. A retry that removes
the record leaves the memory as it is.

Namespaces and keys are compared exactly; keys are listed in the order of their code points.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.stores.utf8 import check_encodable, is_encodable, replace_surrogates


@dataclass(frozen=True, slots=True)
class Memory:
    """A stored memory."""

    namespace: str
    key: str
    value: bytes
    """The encoded value."""
    text: str
    """A search finds the words in this text and in the key: see ``text_search``."""
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class PutMemory:
    """Write a value, replacing an existing one.

    Raises ``UsageError`` for a namespace or key that no store can keep. Half characters (lone surrogates) in ``text``
    become question marks.
    """

    namespace: str
    key: str
    value: bytes
    text: str
    at: float

    def __post_init__(self) -> None:
        _check_memory_key(self.namespace, self.key)
        if not is_encodable(self.text):
            object.__setattr__(self, "text", replace_surrogates(self.text))


@dataclass(frozen=True, slots=True)
class DeleteMemory:
    """Delete a value, if it exists. Raises ``UsageError`` like ``PutMemory``."""

    namespace: str
    key: str

    def __post_init__(self) -> None:
        _check_memory_key(self.namespace, self.key)


MemoryChange = PutMemory | DeleteMemory


def _check_memory_key(namespace: str, key: str) -> None:
    if not key:
        raise UsageError(f"a memory in {namespace!r} needs a key that is not empty")
    check_encodable(namespace, "the namespace of a memory")
    check_encodable(key, "the key of a memory")


class Memories(ABC):
    """Reading memories. Operations of a commit change them."""

    @abstractmethod
    async def get(self, namespace: str, key: str) -> Memory | None:
        """A memory, if it exists."""

    @abstractmethod
    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        """Memories of a namespace that have at least one of these words in their key or text, best match first.

        ``text_search`` splits the words. They are compared as a whole, without case and accents, and only the first
        ``text_search.MAX_QUERY_WORDS`` different words of a long query count. ``words`` is plain text, not a query
        language; without a word in it, nothing is found. A better match has more of the words, rarer words, more often,
        in a shorter text (BM25); of equal matches, the smaller key comes first.
        """

    @abstractmethod
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        """The memories of a namespace with a key after ``after``, ordered by key."""

    @abstractmethod
    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        """The namespaces with memories that begin with ``prefix`` and come after ``after``, in order."""
