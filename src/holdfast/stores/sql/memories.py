"""Reading memories. Each database has its own index of their words."""

from __future__ import annotations

import builtins

from holdfast.stores.memories import Memories, Memory
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.text_search import tokenize_query
from holdfast.stores.utf8 import is_encodable


class SqlMemories(SqlCapability, Memories):
    """The table ``memories``."""

    async def get(self, namespace: str, key: str) -> Memory | None:
        if not (is_encodable(namespace) and is_encodable(key)):
            return None
        row = await self._database.read(lambda db: db.query_one(db.sql.GET_MEMORY, namespace, key))
        return None if row is None else Memory(*row)

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        wanted = tokenize_query(words)
        if not wanted or not is_encodable(namespace):
            return []
        return await self._database.read_for_client(lambda db: db.search_memories(namespace, wanted, limit))

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        if not (is_encodable(namespace) and is_encodable(after)):
            return []
        rows = await self._database.read_for_client(
            lambda db: db.query(db.sql.LIST_MEMORIES, (namespace, after, limit))
        )
        return [Memory(*row) for row in rows]

    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        if not (is_encodable(prefix) and is_encodable(after)):
            return []
        bounds = {"after": after, "first": prefix, "last": prefix + chr(0x10FFFF), "max_rows": limit}
        rows = await self._database.read_for_client(lambda db: db.query(db.sql.LIST_MEMORY_NAMESPACES, bounds))
        return [namespace for (namespace,) in rows]
