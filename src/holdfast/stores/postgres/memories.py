"""Memories in PostgreSQL: a table, and an index of their words that changes with it.

``stores.text_search`` finds the words. PostgreSQL's own text search splits words differently and does not rank as the
other stores do. So the words are rows here, and a query computes BM25 from them: the weight of a word comes from the
number of memories that have it, in all namespaces, which is the length of a range of the index. ``memory_totals`` has
the number of memories and the number of their words.

A change of a memory locks its row first, then changes its words, and at the very end of the transaction the totals:
other transactions share that row, so it is locked only during a commit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.stores.memories import Memory, MemoryChange, PutMemory
from holdfast.stores.text_search import tokenize

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import PgDatabase

TOTALS_SLOT_COUNT = 64
"""The totals are spread over this many rows."""
_MAX_WORD_LENGTH = 200
"""In characters. An index entry has a maximum size, and a text may be an image encoded as letters."""


def apply_change(db: PgDatabase, op: MemoryChange) -> tuple[int, int]:
    """Put or delete a value in the caller's transaction. Returns by how much the totals change: memories and words."""
    if not isinstance(op, PutMemory):
        for number, size in db.query(db.sql.DELETE_MEMORY, (op.namespace, op.key)):
            db.write(db.sql.DELETE_MEMORY_WORDS, [(number,)])
            return -1, -size
        return 0, 0
    row = (op.namespace, op.key, op.value, op.text, op.at, op.at)
    [(number, before)] = db.query(db.sql.PUT_MEMORY, row)
    counts = Counter(map(_to_index_word, [*tokenize(op.key), *tokenize(op.text)]))
    namespace_word, size = _hash_namespace(op.namespace), counts.total() + 1
    if before:
        db.write(db.sql.DELETE_MEMORY_WORDS, [(number,)])
    if counts:
        db.write(db.sql.PUT_MEMORY_WORDS, [(word, namespace_word, number, count) for word, count in counts.items()])
    db.write(db.sql.SET_MEMORY_SIZE, [(size, number)])
    return 0 if before else 1, size - before


def search(db: PgDatabase, namespace: str, terms: Sequence[str], limit: int) -> list[Memory]:
    """The memories of a namespace that have one of these words, best match first."""
    values = {
        "words": db.to_list_parameter(map(_to_index_word, terms)),
        "namespace_word": _hash_namespace(namespace),
        "namespace": namespace,
        "limit": limit,
    }
    return [Memory(*row) for row in db.query(db.sql.SEARCH_MEMORIES, values)]


def _hash_namespace(namespace: str) -> bytes:
    """A short stand-in for a namespace in the index. If two namespaces share it, the rows tell them apart."""
    return hashlib.blake2b(namespace.encode(), digest_size=8).digest()


def _to_index_word(word: str) -> str:
    """A word as it is written to the index. Words are compared as a whole, so a hash replaces a long one."""
    return word if len(word) <= _MAX_WORD_LENGTH else f"#{hashlib.blake2b(word.encode(), digest_size=16).hexdigest()}"
