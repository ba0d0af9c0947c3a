"""The capabilities of an encrypted store that handle encrypted values; the others are those of the store it wraps."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from holdfast.codec.encrypted_values import is_encrypted_value
from holdfast.core.records import Attempt, Signal
from holdfast.errors import CodecError, UsageError
from holdfast.stores.archives import ArchivedRun, Archives, RunExtras
from holdfast.stores.claims import Claims, EventFactory, NewSignals, RunRequests
from holdfast.stores.contract import MAX_INLINE_BYTES, History
from holdfast.stores.documents import Document, Documents
from holdfast.stores.encrypted.encrypted_fields import ValueTransform
from holdfast.stores.memories import Memories, Memory
from holdfast.stores.operations import LiveEvent, OpStatus, Run
from holdfast.stores.schedules import Schedule, ScheduleDefinition, Schedules
from holdfast.stores.step_transactions import StepTransaction, StepTransactions

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")


class _EncryptedCapability(Generic[T]):
    """A capability of the wrapped store, and how values are encrypted and decrypted."""

    def __init__(self, inner: T, encrypt: ValueTransform, decrypt: ValueTransform) -> None:
        self._inner = inner
        self._encrypt = encrypt
        self._decrypt = decrypt


class EncryptedClaims(_EncryptedCapability[Claims], Claims):
    """Claims, with decrypted runs and signals."""

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        runs = await self._inner.claim(
            worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
        )
        return await decrypt_runs(self._decrypt, runs)

    @property
    def appends_events(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.appends_events

    @property
    def server_change_count(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.server_change_count

    async def claim_each(
        self,
        workers: Sequence[int],
        *,
        workflows: Collection[str],
        suspect_delay_s: float | None = 0.0,
        make_event: EventFactory | None = None,
    ) -> list[Run]:
        def make_encrypted(run: Run) -> LiveEvent:
            assert make_event is not None
            return self._encrypt.transform_live_event(make_event(run))

        runs = await self._inner.claim_each(
            workers,
            workflows=workflows,
            suspect_delay_s=suspect_delay_s,
            make_event=None if make_event is None else make_encrypted,
        )
        return await decrypt_runs(self._decrypt, runs)

    async def take_histories(self, keys: Sequence[int]) -> list[History] | None:
        found = await self._inner.take_histories(keys)
        return None if found is None else await decrypt_histories(self._decrypt, found)

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self._inner.get_next_wake_at(workflows=workflows, queues=queues)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        found = await self._inner.get_new_signals(worker, after)
        decrypted = [(key, self._decrypt_signal(key, signal)) for key, signal in found.signals]
        return found._replace(signals=[(key, signal) for key, signal in decrypted if signal is not None])

    def _decrypt_signal(self, key: int, signal: Signal) -> Signal | None:
        """A signal for a held run. One that cannot be decrypted is left out, as the contract says."""
        decrypted = self._decrypt.transform_signal(signal)
        if is_encrypted_value(decrypted.payload):
            log.warning("signal %d (%r) to the run with key %d cannot be opened", signal.id, signal.name, key)
            return None
        return decrypted

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        return await self._inner.get_run_requests(worker)

    async def expire_runs(self, limit: int = 100) -> list[str]:
        return await self._inner.expire_runs(limit)


class EncryptedSchedules(_EncryptedCapability[Schedules], Schedules):
    """Schedules, with encrypted inputs."""

    async def put(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        encrypted = [*map(self._encrypt.transform_new_schedule, schedules)]
        stored = await self._inner.put(encrypted, worker=worker, replace=replace)
        return [*map(self._decrypt.transform_schedule, stored)]

    async def advance(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        return await self._inner.advance(name, expected_fired_up_to, fired_up_to, run_id=run_id, skipped_at=skipped_at)

    async def pause(self, name: str) -> bool:
        return await self._inner.pause(name)

    async def resume(self, name: str) -> bool:
        return await self._inner.resume(name)

    async def delete(self, name: str) -> bool:
        return await self._inner.delete(name)

    async def list(self, names: Collection[str] | None = None) -> list[Schedule]:
        return [*map(self._decrypt.transform_schedule, await self._inner.list(names))]


class EncryptedMemories(_EncryptedCapability[Memories], Memories):
    """Memories, with decrypted values. They cannot be searched."""

    def __init__(self, inner: Memories, encrypt: ValueTransform, decrypt: ValueTransform, url: str) -> None:
        super().__init__(inner, encrypt, decrypt)
        self._url = url

    async def get(self, namespace: str, key: str) -> Memory | None:
        memory = await self._inner.get(namespace, key)
        return None if memory is None else self._decrypt.transform_memory(memory)

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        raise UsageError(
            f"memories in {self._url} cannot be searched: they are encrypted, and a database that could find their "
            f"words would have to know them. Read them by their keys (`memory.get`), or go through them "
            f"(`memory.list`)."
        )

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        found = await self._inner.list(namespace, after=after, limit=limit)
        return [*map(self._decrypt.transform_memory, found)]

    async def namespaces(self, prefix: str = "", *, after: str = "", limit: int = 100) -> builtins.list[str]:
        return await self._inner.namespaces(prefix, after=after, limit=limit)


class EncryptedDocuments(_EncryptedCapability[Documents], Documents):
    """Documents, encrypted."""

    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        document = await self._inner.put(kind, name, self._encrypt.transform_bytes(data), if_version=if_version)
        return None if document is None else self._decrypt.transform_document(document)

    async def delete(self, kind: str, name: str) -> bool:
        return await self._inner.delete(kind, name)

    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        found = await self._inner.list(kind, names, after=after, limit=limit)
        return [*map(self._decrypt.transform_document, found)]


class EncryptedArchives(_EncryptedCapability[Archives], Archives):
    """Runs from other stores, encrypted."""

    async def get_extras(self, key: int) -> RunExtras:
        return await self._inner.get_extras(key)

    async def restore(self, archived: ArchivedRun) -> bool:
        return await self._inner.restore(await asyncio.to_thread(self._encrypt.transform_archived, archived))

    async def mark_restored(self, source: str) -> int:
        return await self._inner.mark_restored(source)

    async def activate(self, archived: ArchivedRun) -> None:
        await self._inner.activate(archived)  # it writes none of the run's values


class EncryptedStepTransactions(_EncryptedCapability[StepTransactions], StepTransactions):
    """Transactions of steps, with encrypted outcomes."""

    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        encrypted = self._encrypt.transform_attempt(attempt)
        transaction = await self._inner.begin(run, encrypted, is_sync=is_sync, timeout_s=timeout_s)
        return None if transaction is None else EncryptedStepTransaction(transaction, self._encrypt)


class EncryptedStepTransaction(StepTransaction):
    """The transaction of an attempt, with an encrypted outcome."""

    def __init__(self, inner: StepTransaction, encrypt: ValueTransform) -> None:
        self._inner = inner
        self._encrypt = encrypt
        self.connection = inner.connection

    @property
    def is_lost(self) -> bool:
        return self._inner.is_lost

    async def commit(self, outcome: bytes) -> OpStatus:
        try:
            encrypted = self._encrypt.transform_bytes(outcome)
        except CodecError:  # it can never be encrypted, so nothing is committed
            await self._inner.roll_back()
            raise
        return await self._inner.commit(encrypted)

    async def roll_back(self) -> None:
        await self._inner.roll_back()

    async def abandon(self) -> None:
        await self._inner.abandon()


async def decrypt_runs(decrypt: ValueTransform, runs: Sequence[Run]) -> list[Run]:
    """Decrypt rows of runs."""
    values = (value for run in runs for value in (run.inputs, run.output, run.error))
    return await run_in_thread_if_large(values, lambda: [*map(decrypt.transform_run, runs)])


async def decrypt_histories(decrypt: ValueTransform, histories: Sequence[History]) -> list[History]:
    """Decrypt histories of runs."""
    values = (item.payload for history in histories for item in (*history.records, *history.signals))
    return await run_in_thread_if_large(values, lambda: [*map(decrypt.transform_history, histories)])


async def run_in_thread_if_large(values: Iterable[bytes | None], work: Callable[[], T]) -> T:
    """Do work on values: in a thread if they are large, else inline."""
    size = sum(len(value) for value in values if value is not None)
    return await asyncio.to_thread(work) if size > MAX_INLINE_BYTES else work()
