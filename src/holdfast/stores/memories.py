"""What outlives runs: values that are kept under a namespace and a key, and found by the words in them.

Each has an owner only by its namespace: whoever knows that may read and change it. The last one to put a value wins.
What a step changes is changed in the transaction that appends the step's record: so it has happened exactly if the
record is there, and a repeated append does not change it a second time, whatever others have made of it since. A retry
that takes the record back leaves the memory as it is.

Namespaces and keys are compared exactly; keys are listed in the order of their code points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.stores.utf8 import check_encodable, is_encodable, replace_surrogates


@dataclass(frozen=True, slots=True)
class Memory:
    """One of them."""

    namespace: str
    key: str
    value: bytes
    """Encoded."""
    text: str
    """The words that it is found by, with those of its key: see ``text_search``."""
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class PutMemory:
    """Keep a value, in place of the one that is there.

    Raises ``UsageError`` for a place that no store can keep. Halves of characters in ``text`` become question marks.
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
    """Forget a value; harmless if there is none. Raises ``UsageError`` as ``PutMemory`` does."""

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
    """The memories that a store keeps. They are changed by operations of a commit."""

    @abstractmethod
    async def get(self, namespace: str, key: str) -> Memory | None:
        """One memory."""

    @abstractmethod
    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        """Memories of a namespace that have at least one of these words in their key or text, the best match first.

        Words are those of the module ``text_search``: they are compared without regard to case and accents, as a whole,
        and of a long text only the first ``text_search.MAX_QUERY_WORDS`` different ones are looked for. Whatever stands
        in ``words`` is text to be found, no query language; without a word in it, nothing is found. The best match is
        the one with more of the words, the rarer ones, more often, in a shorter text (BM25); of equal ones, the smaller
        key comes first.
        """

    @abstractmethod
    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        """The memories of a namespace in the order of their keys, those behind the key ``after``."""
