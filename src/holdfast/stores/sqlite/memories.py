"""Memories in a SQLite file: a table, and an index of their words that changes with it.

``stores.text_search`` makes the words; FTS5 stores, finds, and ranks them. A user's query never reaches FTS5's query
language: only letters and digits in quotes do. A namespace is one word in its own column, so a search reads nothing of
other namespaces.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

from holdfast.stores.memories import Memory, MemoryChange, PutMemory
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.text_search import tokenize


def apply_change(connection: sqlite3.Connection, op: MemoryChange) -> None:
    """Write or delete a memory, in the caller's transaction."""
    if isinstance(op, PutMemory):
        row = (op.namespace, op.key, op.value, op.text, op.at, op.at)
        [(number,)] = connection.execute(sql.PUT_MEMORY, row).fetchall()
        words = " ".join([*tokenize(op.key), *tokenize(op.text)])
        connection.execute(sql.PUT_MEMORY_WORDS, (number, _hash_namespace(op.namespace), words))
        return
    for (number,) in connection.execute(sql.DELETE_MEMORY, (op.namespace, op.key)).fetchall():
        connection.execute(sql.DELETE_MEMORY_WORDS, (number,))


def search(connection: sqlite3.Connection, namespace: str, terms: Sequence[str], limit: int) -> list[Memory]:
    """The memories of a namespace that have one of these words, best match first."""
    any_term = " OR ".join(f'"{word}"' for word in terms)
    match = f'namespace_word : "{_hash_namespace(namespace)}" AND words : ({any_term})'
    return [Memory(*row) for row in connection.execute(sql.SEARCH_MEMORIES, (match, namespace, limit))]


def _hash_namespace(namespace: str) -> str:
    """A namespace as one word. If two namespaces had the same word, their rows would still differ."""
    return hashlib.blake2b(namespace.encode(), digest_size=12).hexdigest()
