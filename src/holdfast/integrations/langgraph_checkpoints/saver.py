"""``HoldfastSaver``: LangGraph's checkpointer interface over a client's memory.

What LangGraph demands of a checkpointer is in its own conformance suite. Beyond it:

- Processes may write to the same thread at the same time. Each checkpoint is an entry of its own, and the newest one,
  by its id, is the thread's state.
- The first writes of a task stay: a process that was believed dead does not replace those of its successor. They are
  one entry, so if both write in the same instant, what stays is all from one process.
- Pruning keeps the checkpoints from which a ``DeltaChannel`` is put together.
"""

from __future__ import annotations

import asyncio
import builtins
import heapq
import random
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import override

from holdfast.client.client import Client
from holdfast.errors import UnreadableRecord, UsageError
from holdfast.integrations.langgraph_checkpoints.connection import PAGE_SIZE, Connection
from holdfast.integrations.langgraph_checkpoints.layout import (
    CHECKPOINTS,
    KINDS,
    LARGE_VALUE_BYTES,
    ROOT,
    CheckpointRecord,
    Place,
    TaskWrites,
    checkpoint_key,
    digest,
    run_namespace,
    value_key,
)
from holdfast.sync_methods import sync_method

T = TypeVar("T")

MAX_REMEMBERED_CHECKPOINTS = 1000
"""Checkpoints of which a saver remembers who owns their large values."""

Owners = dict[str, tuple[Any, str]]
"""By channel: the version of a large value, and the id of the checkpoint that owns it."""


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """A checkpointer that keeps the threads of graphs in Holdfast's database.

    It connects when it is first used, for code with and without ``await``. Use it as ``with HoldfastSaver() as saver:``
    or ``async with``, or leave it open as long as the process.

    Args:
        target: the URL of a store, such as ``sqlite:///agents.db``, or of a server; or an open client, which the caller
            closes. Default: ``HOLDFAST_URL``, else the default file.
        serde: how values are serialized; default: LangGraph's ``JsonPlusSerializer``.
    """

    def __init__(self, target: str | Client | None = None, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._connection = Connection(target)
        self._owners: dict[tuple[Place, str], Owners] = {}
        self._owners_lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.aclose()

    def _run_sync(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        return self._connection.run(coroutine)

    @override
    def get_next_version(self, current: Any, channel: None) -> Any:
        """Version after ``current``, in the form that LangGraph's own checkpointers have, so that threads can move."""
        if isinstance(current, int | float):
            return current + 1
        number = int(current.partition(".")[0]) + 1 if current else 1
        return f"{number:032}.{random.random():016}"

    # Reading

    @override
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = Place.of(*_read_location(config))
        if checkpoint_id := get_checkpoint_id(config):
            found = await self._connection.get(place.checkpoints, checkpoint_key(checkpoint_id))
            record = CheckpointRecord(**found) if found else None
        else:
            record = await anext(self._iterate_records(place, page_size=1), None)
        return None if record is None else await self._load(record)

    @override
    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Checkpoints that match, newest first: see ``BaseCheckpointSaver.list``."""
        remaining = limit
        async for record in self._iterate_newest(config, get_checkpoint_id(before) if before else None, limit):
            if remaining is not None and remaining <= 0:
                return
            if filter:
                metadata = self._loads(record.metadata)
                if any(metadata.get(name) != value for name, value in filter.items()):
                    continue
            if (found := await self._load(record)) is not None:
                remaining = None if remaining is None else remaining - 1
                yield found

    async def _iterate_newest(
        self, config: RunnableConfig | None, before: str | None, limit: int | None
    ) -> AsyncGenerator[CheckpointRecord]:
        """Checkpoints of a thread, or of all threads, newest first."""
        checkpoint_id = get_checkpoint_id(config) if config else None
        page_size = PAGE_SIZE if limit is None else max(1, min(PAGE_SIZE, limit))
        readers = [self._iterate_records(place, before, page_size) for place in await self._find_places(config)]
        heads: list[tuple[_Descending, int, CheckpointRecord]] = []
        for number, reader in enumerate(readers):
            if (newest := await anext(reader, None)) is not None:
                heads.append((_Descending(newest.id), number, newest))
        heapq.heapify(heads)
        while heads:
            _, number, record = heads[0]
            if checkpoint_id is None or record.id == checkpoint_id:
                yield record
            if (following := await anext(readers[number], None)) is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (_Descending(following.id), number, following))

    async def _iterate_records(
        self, place: Place, before: str | None = None, page_size: int = PAGE_SIZE
    ) -> AsyncGenerator[CheckpointRecord]:
        """Checkpoints of a place that are older than ``before``, newest first."""
        after = "" if before is None else checkpoint_key(before)
        async for entry in self._connection.iterate(place.checkpoints, after, page_size):
            yield CheckpointRecord(**entry.value)

    async def _find_places(self, config: RunnableConfig | None) -> builtins.list[Place]:
        if config is None:
            return await self._list_places()
        thread_id, _ = _read_location(config)
        checkpoint_ns = config.get("configurable", {}).get("checkpoint_ns")
        if checkpoint_ns is not None:
            return [Place.of(thread_id, checkpoint_ns)]
        return await self._list_places(thread_id)

    async def _list_places(self, thread_id: str | None = None) -> builtins.list[Place]:
        """Where there are checkpoints, of a thread or of all."""
        prefix = f"{ROOT}/{CHECKPOINTS}/" + ("" if thread_id is None else f"{digest(thread_id)}/")
        return [*map(Place.parse, await self._connection.list_namespaces(prefix))]

    async def _load(self, record: CheckpointRecord) -> CheckpointTuple | None:
        """A checkpoint with all that belongs to it; ``None`` if it has just been deleted."""
        place = record.place
        channels = [*record.owners]
        keys = [value_key(record.owners[channel], channel) for channel in channels]
        pending, large = await asyncio.gather(
            self._load_writes(place, record.id),
            asyncio.gather(*(self._connection.get(place.values, key) for key in keys)),
        )
        missing = [channel for channel, value in zip(channels, large, strict=True) if value is None]
        if missing:
            if await self._connection.get(place.checkpoints, checkpoint_key(record.id)) is None:
                return None
            raise UnreadableRecord(
                f"thread {record.thread_id!r}: checkpoint {record.id} refers to the value of channel {missing[0]!r}, "
                f"which does not exist anymore: an older checkpoint that owned it was deleted while this one was "
                f"written. Continue from another checkpoint of the thread (`get_state_history`)"
            )
        typed: Mapping[str, Any] = {**record.values, **dict(zip(channels, large, strict=True))}
        checkpoint: Any = self._loads(record.checkpoint)
        checkpoint["channel_values"] = {name: self._loads(value) for name, value in typed.items()}
        versions = checkpoint["channel_versions"]
        self._remember(record.place, record.id, {name: (versions.get(name), record.owners[name]) for name in channels})
        return CheckpointTuple(
            config=_make_config(record, record.id),
            checkpoint=checkpoint,
            metadata=self._loads(record.metadata),
            parent_config=None if record.parent_id is None else _make_config(record, record.parent_id),
            pending_writes=pending,
        )

    def _loads(self, typed: Any) -> Any:
        return self.serde.loads_typed(tuple(typed))  # a list after it was read

    async def _load_writes(self, place: Place, checkpoint_id: str) -> builtins.list[PendingWrite]:
        """What tasks have written after a checkpoint, in the order in which it is applied."""
        found: list[tuple[tuple[str, str, int], PendingWrite]] = []
        async for entry in self._connection.iterate(place.writes(checkpoint_id)):
            task = TaskWrites(**entry.value)
            for index, channel, value in task.writes:
                write = (task.task_id, channel, self._loads(value))
                found.append((writes_sort_key(task.task_path, task.task_id, index), write))
        return [write for _, write in sorted(found, key=lambda one: one[0])]

    # Writing

    @override
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, checkpoint_ns = _read_location(config)
        place, parent_id = Place.of(thread_id, checkpoint_ns), get_checkpoint_id(config)
        known = self._owners.get((place, parent_id), {}) if parent_id else {}
        values, large, owners = self._split_values(checkpoint, known)
        all_metadata = get_checkpoint_metadata(config, metadata)
        run_id = all_metadata.get("run_id")
        record = CheckpointRecord(
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            id=checkpoint["id"],
            parent_id=parent_id,
            run_id=None if run_id is None else str(run_id),
            checkpoint=self.serde.dumps_typed({**checkpoint, "channel_values": {}}),
            metadata=self.serde.dumps_typed(all_metadata),
            values=values,
            owners={channel: owner for channel, (_, owner) in owners.items()},
        )
        await asyncio.gather(*(self._put_value(record, *item) for item in large.items()), self._put_in_run(record))
        await self._put_record(record)
        self._remember(place, record.id, owners)
        return _make_config(record, record.id)

    def _split_values(
        self, checkpoint: Checkpoint, known: Owners
    ) -> tuple[dict[str, tuple[str, bytes]], dict[str, tuple[str, bytes]], Owners]:
        """The small values of a checkpoint, the large ones that are new, and the owners of all large ones."""
        small: dict[str, tuple[str, bytes]] = {}
        large: dict[str, tuple[str, bytes]] = {}
        owners: Owners = {}
        for channel, value in checkpoint["channel_values"].items():
            version = checkpoint["channel_versions"].get(channel)
            if version is not None and channel in known and known[channel][0] == version:
                owners[channel] = known[channel]
                continue
            typed = self.serde.dumps_typed(value)
            if len(typed[1]) < LARGE_VALUE_BYTES:
                small[channel] = typed
            else:
                large[channel] = typed
                owners[channel] = (version, checkpoint["id"])
        return small, large, owners

    async def _put_value(self, record: CheckpointRecord, channel: str, value: tuple[str, bytes]) -> None:
        """Write a large value that a checkpoint owns."""
        subject = f"thread {record.thread_id!r}: the value of channel {channel!r} in checkpoint {record.id}"
        await self._connection.put(record.place.values, value_key(record.id, channel), value, subject=subject)

    async def _put_in_run(self, record: CheckpointRecord) -> None:
        """Note a checkpoint under the run id in its metadata, if there is one."""
        if record.run_id is not None:
            namespace, key = run_namespace(record.run_id), record.place.run_key(record.id)
            await self._connection.put(namespace, key, record.id, subject=f"checkpoint {record.id}")

    async def _put_record(self, record: CheckpointRecord) -> None:
        subject = f"thread {record.thread_id!r}: checkpoint {record.id}"
        key = checkpoint_key(record.id)
        await self._connection.put(record.place.checkpoints, key, record.to_plain(), subject=subject)

    def _remember(self, place: Place, checkpoint_id: str, owners: Owners) -> None:
        with self._owners_lock:
            self._owners[place, checkpoint_id] = owners
            if len(self._owners) > MAX_REMEMBERED_CHECKPOINTS:
                del self._owners[next(iter(self._owners))]

    @override
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is None:
            raise UsageError("put_writes: the config has no checkpoint_id, so it is not known what the writes follow")
        thread_id, checkpoint_ns = _read_location(config)
        entries = _Entries(
            Place.of(thread_id, checkpoint_ns).writes(checkpoint_id), f"thread {thread_id!r}: writes of task {task_id}"
        )
        key, task = digest(task_id), TaskWrites(task_id, task_path)
        all_writes = [
            (WRITES_IDX_MAP.get(channel, number), channel, self.serde.dumps_typed(value))
            for number, (channel, value) in enumerate(writes)
        ]
        special = [write for write in all_writes if write[0] < 0]  # the last one of its kind stays
        puts = [self._put_task(entries, f"{key}:{write[0]}", replace(task, writes=[write])) for write in special]
        if regular := [write for write in all_writes if write[0] >= 0]:
            puts.append(self._put_first(entries, key, replace(task, writes=regular)))
        await asyncio.gather(*puts)

    async def _put_first(self, entries: _Entries, key: str, new: TaskWrites) -> None:
        """Write what a task has written, except what it has written before."""
        if found := await self._connection.get(entries.namespace, key):
            before = TaskWrites(**found)
            known = {index for index, _, _ in before.writes}
            added = [write for write in new.writes if write[0] not in known]
            if not added:
                return
            new = replace(before, writes=[*before.writes, *added])
        await self._put_task(entries, key, new)

    async def _put_task(self, entries: _Entries, key: str, task: TaskWrites) -> None:
        await self._connection.put(entries.namespace, key, task.to_plain(), subject=entries.subject)

    # Deleting and copying

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        thread_id = str(thread_id)
        self._owners.clear()
        for place in await self._list_places(thread_id):
            async for record in self._iterate_records(place):
                await self._forget_run(record)
        for kind in KINDS:
            for namespace in await self._connection.list_namespaces(f"{ROOT}/{kind}/{digest(thread_id)}/"):
                await self._connection.delete_all(namespace)

    @override
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        for run_id in map(str, run_ids):
            by_place: dict[Place, set[str]] = {}
            async for entry in self._connection.iterate(run_namespace(run_id)):
                place = Place(*entry.key.split("/")[:2])
                by_place.setdefault(place, set()).add(entry.value)
            for place, checkpoint_ids in by_place.items():
                await self._delete_checkpoints(place, checkpoint_ids)

    @override
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"prune: strategy={strategy!r} must be 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
                continue
            for place in await self._list_places(str(thread_id)):
                await self._delete_checkpoints(place, await self._find_unneeded(place))

    async def _find_unneeded(self, place: Place) -> set[str]:
        """All checkpoints but the newest, and those that its ``DeltaChannel`` values are put together from."""
        unneeded: set[str] = set()
        needed_id, incomplete = None, set[str]()
        is_newest = True
        async for record in self._iterate_records(place):
            if is_newest:
                incomplete = {*self._loads(record.metadata).get("counters_since_delta_snapshot", {})}
                is_newest = False
            elif not incomplete or record.id != needed_id:
                unneeded.add(record.id)
                continue
            incomplete -= {*record.values, *record.owners}
            needed_id = record.parent_id
        return unneeded

    async def _delete_checkpoints(self, place: Place, ids: set[str]) -> None:
        """Delete checkpoints of a place, their writes, and those of their values that no other one refers to."""
        self._owners.clear()
        deleted: list[CheckpointRecord] = []
        used: set[str] = set()
        async for record in self._iterate_records(place):
            if record.id in ids:
                deleted.append(record)
            else:
                used |= record.list_value_keys()
        for record in deleted:
            await self._connection.delete(place.checkpoints, [checkpoint_key(record.id)])
            await self._connection.delete_all(place.writes(record.id))
            await self._forget_run(record)
        unused = set[str]().union(*(record.list_value_keys() for record in deleted)) - used
        await self._connection.delete(place.values, unused)

    async def _forget_run(self, record: CheckpointRecord) -> None:
        if record.run_id is not None:
            await self._connection.delete(run_namespace(record.run_id), [record.place.run_key(record.id)])

    @override
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = str(source_thread_id), str(target_thread_id)
        for kind in KINDS:
            prefix = f"{ROOT}/{kind}/{digest(source)}/"
            for namespace in await self._connection.list_namespaces(prefix):
                if kind != CHECKPOINTS:
                    new_namespace = f"{ROOT}/{kind}/{digest(target)}/{namespace.removeprefix(prefix)}"
                    await self._connection.copy_all(namespace, new_namespace)
                    continue
                async for record in self._iterate_records(Place.parse(namespace)):
                    await self._put_copy(record, target)

    async def _put_copy(self, record: CheckpointRecord, thread_id: str) -> None:
        copy = replace(record, thread_id=thread_id)
        await self._put_in_run(copy)
        await self._put_record(copy)

    # Without ``await``

    get_tuple = sync_method(aget_tuple)  # pyright: ignore[reportAssignmentType]
    put = sync_method(aput)  # pyright: ignore[reportAssignmentType]
    put_writes = sync_method(aput_writes)  # pyright: ignore[reportAssignmentType]
    delete_thread = sync_method(adelete_thread)  # pyright: ignore[reportAssignmentType]
    delete_for_runs = sync_method(adelete_for_runs)  # pyright: ignore[reportAssignmentType]
    copy_thread = sync_method(acopy_thread)  # pyright: ignore[reportAssignmentType]
    prune = sync_method(aprune)  # pyright: ignore[reportAssignmentType]

    @override
    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match, newest first."""
        return self._connection.iterate_sync(self.alist(config, filter=filter, before=before, limit=limit))


class _Entries(NamedTuple):
    """Where the writes of a task are kept."""

    namespace: str
    subject: str
    """The start of errors."""


class _Descending(str):
    """A text that sorts the other way round."""

    def __lt__(self, other: str) -> bool:
        return str(self) > str(other)


def _read_location(config: RunnableConfig) -> tuple[str, str]:
    """The thread and the checkpoint namespace of a config."""
    configurable = config.get("configurable", {})
    if configurable.get("thread_id") is None:
        raise UsageError(
            'a checkpointer needs to know the thread: pass config={"configurable": {"thread_id": "..."}} to the graph'
        )
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _make_config(record: CheckpointRecord, checkpoint_id: str) -> RunnableConfig:
    location = {"thread_id": record.thread_id, "checkpoint_ns": record.checkpoint_ns}
    return {"configurable": {**location, "checkpoint_id": checkpoint_id}}
