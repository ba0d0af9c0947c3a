"""The capabilities of an encrypted store that handle what is sealed; the others are those of the store it wraps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from holdfast.codec.encrypted_values import is_encrypted_value
from holdfast.core.records import Attempt, Signal
from holdfast.errors import CodecError, UsageError
from holdfast.stores.archives import ArchivedRun, Archives, RunExtras
from holdfast.stores.claims import Claims, NewSignals, RunRequests
from holdfast.stores.contract import MAX_INLINE_BYTES
from holdfast.stores.documents import Document, Documents
from holdfast.stores.encrypted import encrypted_fields
from holdfast.stores.encrypted.encrypted_fields import ValueTransform
from holdfast.stores.memories import Memories, Memory
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.schedules import Schedule, ScheduleDefinition, Schedules
from holdfast.stores.step_transactions import StepTransaction, StepTransactions

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")


class _EncryptedCapability(Generic[T]):
    """A capability of the wrapped store, with what seals and what opens."""

    def __init__(self, inner: T, encrypt: ValueTransform, decrypt: ValueTransform) -> None:
        self._inner = inner
        self._encrypt = encrypt
        self._decrypt = decrypt


class EncryptedClaims(_EncryptedCapability[Claims], Claims):
    """Claims, with runs and signals opened."""

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

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self._inner.get_next_wake_at(workflows=workflows, queues=queues)

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        found = await self._inner.get_new_signals(worker, after)
        opened = [(key, self._decrypt_signal(key, signal)) for key, signal in found.signals]
        return found._replace(signals=[(key, signal) for key, signal in opened if signal is not None])

    def _decrypt_signal(self, key: int, signal: Signal) -> Signal | None:
        """A signal for a held run; one that cannot be opened is left out, as the contract has it."""
        opened = encrypted_fields.transform_signal(signal, self._decrypt)
        if is_encrypted_value(opened.payload):
            log.warning("signal %d (%r) to the run with key %d cannot be opened", signal.id, signal.name, key)
            return None
        return opened

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        return await self._inner.get_run_requests(worker)

    async def expire_runs(self, limit: int = 100) -> list[str]:
        return await self._inner.expire_runs(limit)


class EncryptedSchedules(_EncryptedCapability[Schedules], Schedules):
    """Schedules, with their inputs sealed."""

    async def put(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        sealed = [encrypted_fields.transform_new_schedule(one, self._encrypt) for one in schedules]
        kept = await self._inner.put(sealed, worker=worker, replace=replace)
        return [encrypted_fields.transform_schedule(one, self._decrypt) for one in kept]

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
        return [encrypted_fields.transform_schedule(one, self._decrypt) for one in await self._inner.list(names)]


class EncryptedMemories(_EncryptedCapability[Memories], Memories):
    """Memories, with their values opened. They cannot be searched."""

    def __init__(self, inner: Memories, encrypt: ValueTransform, decrypt: ValueTransform, url: str) -> None:
        super().__init__(inner, encrypt, decrypt)
        self._url = url

    async def get(self, namespace: str, key: str) -> Memory | None:
        memory = await self._inner.get(namespace, key)
        return None if memory is None else encrypted_fields.transform_memory(memory, self._decrypt)

    async def search(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        raise UsageError(
            f"memories in {self._url} cannot be searched: they are encrypted, and a database that could find their "
            f"words would have to know them. Read them by their keys (`memory.get`), or go through them "
            f"(`memory.list`)."
        )

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        found = await self._inner.list(namespace, after=after, limit=limit)
        return [encrypted_fields.transform_memory(memory, self._decrypt) for memory in found]


class EncryptedDocuments(_EncryptedCapability[Documents], Documents):
    """Documents, sealed."""

    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        kept = await self._inner.put(kind, name, self._encrypt.transform_bytes(data), if_version=if_version)
        return None if kept is None else encrypted_fields.transform_document(kept, self._decrypt)

    async def delete(self, kind: str, name: str) -> bool:
        return await self._inner.delete(kind, name)

    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        found = await self._inner.list(kind, names, after=after, limit=limit)
        return [encrypted_fields.transform_document(one, self._decrypt) for one in found]


class EncryptedArchives(_EncryptedCapability[Archives], Archives):
    """Runs from elsewhere, sealed."""

    async def get_extras(self, key: int) -> RunExtras:
        return await self._inner.get_extras(key)

    async def restore(self, archived: ArchivedRun) -> bool:
        sealed = await asyncio.to_thread(encrypted_fields.transform_archived, archived, self._encrypt)
        return await self._inner.restore(sealed)

    async def activate(self, archived: ArchivedRun) -> None:
        await self._inner.activate(archived)  # it writes none of the run's values


class EncryptedStepTransactions(_EncryptedCapability[StepTransactions], StepTransactions):
    """Transactions of steps, whose outcomes are sealed."""

    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        sealed = encrypted_fields.transform_attempt(attempt, self._encrypt)
        begun = await self._inner.begin(run, sealed, is_sync=is_sync, timeout_s=timeout_s)
        return None if begun is None else EncryptedStepTransaction(begun, self._encrypt)


class EncryptedStepTransaction(StepTransaction):
    """The transaction of an attempt, whose outcome is sealed."""

    def __init__(self, inner: StepTransaction, encrypt: ValueTransform) -> None:
        self._inner = inner
        self._encrypt = encrypt
        self.connection = inner.connection

    @property
    def is_lost(self) -> bool:
        return self._inner.is_lost

    async def commit(self, outcome: bytes) -> OpStatus:
        try:
            sealed = self._encrypt.transform_bytes(outcome)
        except CodecError:  # it can never be sealed: nothing is committed
            await self._inner.roll_back()
            raise
        return await self._inner.commit(sealed)

    async def roll_back(self) -> None:
        await self._inner.roll_back()

    async def abandon(self) -> None:
        await self._inner.abandon()


async def decrypt_runs(decrypt: ValueTransform, runs: Sequence[Run]) -> list[Run]:
    """Rows of runs, opened."""

    def opened() -> list[Run]:
        return [encrypted_fields.transform_run(run, decrypt) for run in runs]

    return await run_in_thread_if_large(
        (value for run in runs for value in (run.inputs, run.output, run.error)), opened
    )


async def run_in_thread_if_large(values: Iterable[bytes | None], work: Callable[[], T]) -> T:
    """Do this in a thread if there is much to be opened, else at once."""
    size = sum(len(value) for value in values if value is not None)
    return await asyncio.to_thread(work) if size > MAX_INLINE_BYTES else work()
