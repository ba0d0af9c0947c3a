"""Memories in PostgreSQL: a table, and an index of their words that is changed with it.

The words are made by ``stores.text_search``. PostgreSQL's own text search has other words, and ranks by none of the
measures that the other stores rank by, so the words are rows here, and BM25 is reckoned from them: the weight of a word
comes from the number of memories that have it, in all namespaces, which is the length of a stretch of the index. How
many memories there are, and how many words they have together, is kept in ``memory_totals``.

Whoever changes a memory locks its row first, then changes its words, and at the very end of the transaction the
totals: that row is shared with others, and is locked for the length of a commit only.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.stores.memories import Memory, MemoryChange, PutMemory
from holdfast.stores.text_search import tokenize

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import PgDatabase

TOTALS_SLOT_COUNT = 64
"""In so many rows the totals are kept."""
_MAX_WORD_LENGTH = 200
"""In characters. What an index can hold is limited, and a text may be a picture in letters."""


@dataclass(frozen=True, slots=True)
class TotalsDelta:
    """By how much a transaction changes them."""

    memory_count: int = 0
    size: int = 0

    def __add__(self, other: TotalsDelta) -> TotalsDelta:
        return TotalsDelta(self.memory_count + other.memory_count, self.size + other.size)

    def __bool__(self) -> bool:
        return (self.memory_count, self.size) != (0, 0)

    def to_row(self) -> tuple[int, int, int]:
        """The values of ``ADD_MEMORY_TOTALS``."""
        return (os.getpid() % TOTALS_SLOT_COUNT, self.memory_count, self.size)


def apply_change(db: PgDatabase, op: MemoryChange) -> TotalsDelta:
    """Keep or forget a value, in the caller's transaction."""
    if not isinstance(op, PutMemory):
        rows = db.query(db.sql.DELETE_MEMORY, (op.namespace, op.key))
        for number, size in rows:
            db.write(db.sql.DELETE_MEMORY_WORDS, [(number,)])
            return TotalsDelta(-1, -size)
        return TotalsDelta()
    row = (op.namespace, op.key, op.value, op.text, op.at, op.at)
    [(number, before)] = db.query(db.sql.PUT_MEMORY, row)
    counts = Counter(map(_to_index_word, [*tokenize(op.key), *tokenize(op.text)]))
    namespace_word, size = _hash_namespace(op.namespace), counts.total() + 1
    if before:
        db.write(db.sql.DELETE_MEMORY_WORDS, [(number,)])
    if counts:
        db.write(db.sql.PUT_MEMORY_WORDS, [(word, namespace_word, number, count) for word, count in counts.items()])
    db.write(db.sql.SET_MEMORY_SIZE, [(size, number)])
    return TotalsDelta(0 if before else 1, size - before)


def search(db: PgDatabase, namespace: str, terms: Sequence[str], limit: int) -> list[Memory]:
    """The memories of a namespace that have one of these words, the best match first."""
    values = {
        "words": db.to_list_parameter(map(_to_index_word, terms)),
        "namespace_word": _hash_namespace(namespace),
        "namespace": namespace,
        "limit": limit,
    }
    return [Memory(*row) for row in db.query(db.sql.SEARCH_MEMORIES, values)]


def _hash_namespace(namespace: str) -> bytes:
    """What stands for a namespace. Should two of them share it, the rows tell them apart."""
    return hashlib.blake2b(namespace.encode(), digest_size=8).digest()


def _to_index_word(word: str) -> str:
    """A word as it stands in the index; words are compared as a whole, so that a hash will do for a long one."""
    return word if len(word) <= _MAX_WORD_LENGTH else f"#{hashlib.blake2b(word.encode(), digest_size=16).hexdigest()}"
