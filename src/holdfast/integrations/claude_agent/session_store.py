"""``HoldfastSessionStore``: the transcripts of sessions in a Holdfast store, from where any process can resume them.

A transcript is a list of entries that the SDK appends in batches. Here, each batch is a value in memory, and an *index*
value for each transcript has the number of its next batch. An append first raises that number, and then puts the batch
under it. So an append that was cut off leaves a gap, and never replaces a batch. The key of a batch also has a random
part: two processes that append to one session at the same time may take the same number.

The index values of a project's sessions share a namespace, as do those of a session's subagents, so they can be listed.
Names of namespaces are digests, because the SDK's own names may be longer than those of memory.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from hashlib import blake2b
from typing import Any, cast

from claude_agent_sdk import fold_session_summary
from claude_agent_sdk.types import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
)
from typing_extensions import override

from holdfast.errors import StoreNotFound
from holdfast.services.memories import AsyncMemory, MemoryEntry

PAGE_SIZE = 100
"""Values in one read: a batch may be large."""


class _Appends:
    """The appends of this process to a transcript, which wait for each other."""

    __slots__ = ("lock", "next_number")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.next_number = 0


class HoldfastSessionStore(SessionStore):
    """Sessions of the SDK in a store: ``ClaudeAgentOptions(session_store=HoldfastSessionStore(client.memory))``.

    Args:
        memory: the memory of a ``Client``.
        namespace: the beginning of the names under which sessions are stored.
    """

    def __init__(self, memory: AsyncMemory, namespace: str = "claude-agent") -> None:
        self._memory = memory
        self._namespace = namespace
        self._appends: dict[str, _Appends] = {}
        """By namespace of a transcript."""

    @override
    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        if not entries:
            return
        home, name = self._get_index(key)
        batches = self._get_batches(key)
        appends = self._appends.setdefault(batches, _Appends())
        async with appends.lock:
            index = await self._read_index(home, name) or {**key, "next": 0, "summary": None}
            # Another process may have put an older number back.
            number = max(index["next"], appends.next_number)
            appends.next_number = number + 1
            if "subpath" not in key:
                # The fold never looks at the time, and the store has the time of the index value itself.
                previous = {"session_id": key["session_id"], "mtime": 0, "data": index["summary"]}
                folded = fold_session_summary(
                    cast("SessionSummaryEntry", previous) if index["summary"] is not None else None, key, entries
                )
                index["summary"] = folded["data"]
            await self._memory.put(home, name, {**index, "next": number + 1}, text="")
            # As JSON text: whatever the SDK can write, it can read again.
            batch = f"{number:012}-{secrets.token_hex(8)}"
            await self._memory.put(batches, batch, json.dumps(entries), text="")

    @override
    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        entries: list[SessionStoreEntry] = []
        seen: set[str] = set()
        async for batch in self._list(self._get_batches(key)):
            for entry in json.loads(batch.value):
                uuid: str | None = entry.get("uuid")  # an append that is repeated has the same ones
                if uuid is None or uuid not in seen:
                    entries.append(entry)
                if uuid is not None:
                    seen.add(uuid)
        return entries or None

    @override
    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        return [
            {"session_id": index.value["session_id"], "mtime": _get_milliseconds(index)}
            async for index in self._list(self._get_namespace("sessions", project_key))
        ]

    @override
    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return [
            {
                "session_id": index.value["session_id"],
                "mtime": _get_milliseconds(index),
                "data": index.value["summary"],
            }
            async for index in self._list(self._get_namespace("sessions", project_key))
        ]

    @override
    async def delete(self, key: SessionKey) -> None:
        if "subpath" not in key:
            for subpath in await self.list_subkeys(key):
                await self.delete({**key, "subpath": subpath})
        batches = self._get_batches(key)
        async for batch in self._list(batches):
            await self._memory.delete(batches, batch.key)
        self._appends.pop(batches, None)
        await self._memory.delete(*self._get_index(key))  # last, so that a deletion that was cut off can be repeated

    @override
    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        namespace = self._get_namespace("subagents", key["project_key"], key["session_id"])
        return [index.value["subpath"] async for index in self._list(namespace)]

    # Where things are

    def _get_index(self, key: SessionKey) -> tuple[str, str]:
        """The namespace and the key of a transcript's index value."""
        if "subpath" in key:
            namespace = self._get_namespace("subagents", key["project_key"], key["session_id"])
            return namespace, _digest(key["subpath"])
        return self._get_namespace("sessions", key["project_key"]), _digest(key["session_id"])

    def _get_batches(self, key: SessionKey) -> str:
        """The namespace of a transcript's batches."""
        return self._get_namespace("entries", key["project_key"], key["session_id"], key.get("subpath", ""))

    def _get_namespace(self, kind: str, *names: str) -> str:
        return f"{self._namespace}/{kind}/{_digest(*names)}"

    async def _read_index(self, namespace: str, key: str) -> dict[str, Any] | None:
        try:
            return await self._memory.get(namespace, key)
        except StoreNotFound:  # the first append creates it
            return None

    async def _list(self, namespace: str) -> AsyncGenerator[MemoryEntry]:
        after = ""
        try:
            while page := await self._memory.list(namespace, after=after, limit=PAGE_SIZE):
                for entry in page:
                    yield entry
                after = page[-1].key
        except StoreNotFound:
            return


def _digest(*names: str) -> str:
    return blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()


def _get_milliseconds(entry: MemoryEntry) -> int:
    return int(entry.updated_at.timestamp() * 1000)
