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
from holdfast.stores.text_search import words

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import PgDatabase

SLOTS = 64
"""In so many rows the totals are kept."""
_LONGEST_WORD = 200
"""In characters. What an index can hold is limited, and a text may be a picture in letters."""


@dataclass(frozen=True, slots=True)
class Totals:
    """By how much a transaction changes them."""

    memories: int = 0
    size: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.memories + other.memories, self.size + other.size)

    def __bool__(self) -> bool:
        return (self.memories, self.size) != (0, 0)

    def row(self) -> tuple[int, int, int]:
        """The values of ``ADD_TOTALS``."""
        return (os.getpid() % SLOTS, self.memories, self.size)


def change(db: PgDatabase, op: MemoryChange) -> Totals:
    """Keep or forget a value, in the caller's transaction."""
    if not isinstance(op, PutMemory):
        rows = db.ask(db.sql.DELETE_MEMORY, (op.namespace, op.key))
        for number, size in rows:
            db.write(db.sql.DELETE_WORDS, [(number,)])
            return Totals(-1, -size)
        return Totals()
    row = (op.namespace, op.key, op.value, op.text, op.at, op.at)
    [(number, before)] = db.ask(db.sql.PUT_MEMORY, row)
    counts = Counter(map(_kept, [*words(op.key), *words(op.text)]))
    space, size = _space(op.namespace), counts.total() + 1
    if before:
        db.write(db.sql.DELETE_WORDS, [(number,)])
    if counts:
        db.write(db.sql.PUT_WORDS, [(word, space, number, times) for word, times in counts.items()])
    db.write(db.sql.PUT_SIZE, [(size, number)])
    return Totals(0 if before else 1, size - before)


def search(db: PgDatabase, namespace: str, wanted: Sequence[str], limit: int) -> list[Memory]:
    """The memories of a namespace that have one of these words, the best match first."""
    values = {
        "words": db.listed(map(_kept, wanted)),
        "space": _space(namespace),
        "namespace": namespace,
        "limit": limit,
    }
    return [Memory(*row) for row in db.ask(db.sql.SEARCH_MEMORIES, values)]


def _space(namespace: str) -> bytes:
    """What stands for a namespace. Should two of them share it, the rows tell them apart."""
    return hashlib.blake2b(namespace.encode(), digest_size=8).digest()


def _kept(word: str) -> str:
    """A word as it stands in the index; words are compared as a whole, so that a hash will do for a long one."""
    return word if len(word) <= _LONGEST_WORD else f"#{hashlib.blake2b(word.encode(), digest_size=16).hexdigest()}"
