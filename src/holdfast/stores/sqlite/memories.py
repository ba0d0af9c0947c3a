"""Memories in a SQLite file: a table, and an index of their words that is changed with it.

The words are made by ``stores.text_search``; FTS5 keeps them, finds them and ranks by them. So what somebody looks for
never meets FTS5's query language: all that reaches it is letters and digits in quotes. A namespace is one word in a
column of its own, so that a search reads nothing of others.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

from holdfast.stores.memories import Memory, MemoryChange, PutMemory
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.text_search import tokenize


def apply_change(connection: sqlite3.Connection, op: MemoryChange) -> None:
    """Keep or forget a value, in the caller's transaction."""
    if isinstance(op, PutMemory):
        row = (op.namespace, op.key, op.value, op.text, op.at, op.at)
        [(number,)] = connection.execute(sql.PUT_MEMORY, row).fetchall()
        found = " ".join([*tokenize(op.key), *tokenize(op.text)])
        connection.execute(sql.PUT_MEMORY_WORDS, (number, _hash_namespace(op.namespace), found))
        return
    for (number,) in connection.execute(sql.DELETE_MEMORY, (op.namespace, op.key)).fetchall():
        connection.execute(sql.DELETE_MEMORY_WORDS, (number,))


def search(connection: sqlite3.Connection, namespace: str, terms: Sequence[str], limit: int) -> list[Memory]:
    """The memories of a namespace that have one of these words, the best match first."""
    either = " OR ".join(f'"{word}"' for word in terms)
    match = f'namespace_word : "{_hash_namespace(namespace)}" AND words : ({either})'
    return [Memory(*row) for row in connection.execute(sql.SEARCH_MEMORIES, (match, namespace, limit))]


def _hash_namespace(namespace: str) -> str:
    """A namespace as one word. Should two of them share it, the rows tell them apart."""
    return hashlib.blake2b(namespace.encode(), digest_size=12).hexdigest()
