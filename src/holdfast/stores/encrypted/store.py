"""``EncryptedStore``: any store, with an ``Encryption`` between it and whoever uses it.

**What is sealed** is what users' code handed in or got out: inputs, outputs and errors of runs; payloads and previews
of records; progress, outcome and error of attempts; payloads of signals; what is asked, and what is answered; what
notices tell; the values of memories; the inputs of schedules; what a run waits for, in words; and the documents of
servers, among which are the secrets that sign webhooks. ``encrypted_fields`` is the list.

**What stays readable** is what a database must look at: ids, names (of workflows, versions, steps, signals, tools,
tags, queues, sessions, people), keys (of queues, of deduplication, of memories), times, counts, usage, and the digest
of a run's inputs, which is equal for equal inputs; and what stores write themselves, such as the error of a run that is
dead. The audit log stays as it is, too.

**Where stores look into what is sealed:**

- The notice that a step has begun names the step, for the error of a run that took its worker down: only the
  arguments in it are sealed.
- Lists of runs can be searched for a text in their errors. There is none to be found in one that is sealed.
- Memories are found by their words, which are left out: ``Memories.search`` is refused.
- Large payloads are kept apart, compressed, and once for equal content. Sealed bytes cannot be compressed, so that is
  done before; and no two are equal, so that nothing is shared. (A commit that is repeated hands in the same bytes
  again: else each repetition would leave a payload that nothing refers to.)
- The end of a run is put into mailboxes, a removed signal back into its own, and a fork shares payloads: these are
  copied as they are, sealed.

Budgets, rewinds, sessions, links and queues are told by fields of their own, and plans are outputs of steps like any
other: no store looks into values for them.

**What cannot be opened**, because the key is not at hand or it was changed, is the affair of the run that it belongs
to. It is handed out as it is, so that lists, claims and waits go on, and archives lose nothing; why it could not be
opened is told in the log. Whoever decodes it gets ``UndecryptableValue`` from the codec, and no engine takes up a run
with such a journal. A store without encryption hands out what is sealed in the same way.

**An encryption that does not work now** (a key service that cannot be reached) is like a database that cannot be
reached: whatever ``encrypt`` or ``decrypt`` raises that says nothing about the value becomes a ``StoreUnavailable``.
Runs keep their place, and go on when it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from holdfast.codec.encrypted_values import ValueEncryptor
from holdfast.codec.encryption import Encryption
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, StoreUnavailable, UndecryptableValue
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.contract import MAX_INLINE_BYTES, History, RunFilter, RunSearchPage, RunUsage, Store, WorkflowSpec
from holdfast.stores.encrypted import encrypted_fields
from holdfast.stores.encrypted.capabilities import (
    EncryptedArchives,
    EncryptedClaims,
    EncryptedDocuments,
    EncryptedMemories,
    EncryptedSchedules,
    EncryptedStepTransactions,
    decrypt_runs,
    run_in_thread_if_large,
)
from holdfast.stores.encrypted.encrypted_fields import ValueTransform
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.operations import AppendRecord, Op, OpResult, Run
from holdfast.stores.workers import Worker

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")

_MAX_WARNINGS = 100
_MAX_UNCONFIRMED_OPS = 10_000


class EncryptedStore(Store):
    """``inner``, with everything sealed that users' code hands in or gets out.

    Args:
        inner: any store, not opened.
        encryption: what seals.
    """

    is_encrypted = True

    def __init__(self, inner: Store, encryption: Encryption) -> None:
        self.inner = inner
        self.url = inner.url
        self.namespace = inner.namespace
        self.encryption = encryption
        sealer = ValueEncryptor(encryption)
        self._encrypt = ValueTransform(_translate_errors(sealer.encrypt), _translate_errors(sealer.encrypt_text))
        self._decrypt = ValueTransform(
            self._keep_undecryptable(sealer.decrypt), self._keep_undecryptable(sealer.decrypt_text)
        )
        self._logged_problems: set[str] = set()
        self._unconfirmed_ops: dict[int, tuple[Op, Op]] = {}
        """By identity, what was handed in and not answered, and how it was sealed: it may be handed in again."""
        self.workers = inner.workers
        self.disabled_workflows = inner.disabled_workflows
        self.queues = inner.queues
        self.audit_log = inner.audit_log
        self.daily_usage = inner.daily_usage
        self.retention = inner.retention
        transforms = (self._encrypt, self._decrypt)
        self.claims = EncryptedClaims(inner.claims, *transforms)
        self.schedules = EncryptedSchedules(inner.schedules, *transforms)
        self.memories = EncryptedMemories(inner.memories, *transforms, self.url)
        self.documents = EncryptedDocuments(inner.documents, *transforms)
        self.archives = EncryptedArchives(inner.archives, *transforms)
        if inner.supports(Store.step_transactions):
            self.step_transactions = EncryptedStepTransactions(inner.step_transactions, *transforms)

    # Passed on as it is

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.inner.get_usages(run_ids)

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self.inner.count_runs(max_ended)

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self.inner.count_unfinished_runs(workflows)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self.inner.list_workers(extra_ids)

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        await self.inner.publish_workflows(specs, worker)

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        return await self.inner.get_workflow_specs()

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        return await self.inner.wait_for_change(timeout_s, follow_runs=follow_runs)

    def now(self) -> float:
        return self.inner.now()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        if any(map(_has_large_value, ops)):
            sealed = await asyncio.to_thread(self._encrypt_ops, ops)
        else:
            sealed = self._encrypt_ops(ops)
        try:
            answers = [
                encrypted_fields.transform_answer(answer, self._decrypt) for answer in await self.inner.commit(sealed)
            ]
        except StoreUnavailable:
            if len(self._unconfirmed_ops) > _MAX_UNCONFIRMED_OPS:  # not all of it is handed in again: clients give up
                self._unconfirmed_ops.clear()
            self._unconfirmed_ops.update((id(op), (op, made)) for op, made in zip(ops, sealed, strict=True))
            raise
        self._unconfirmed_ops.clear()
        return answers

    def _encrypt_ops(self, ops: Sequence[Op]) -> list[Op]:
        if not self._unconfirmed_ops:
            return [encrypted_fields.transform_op(op, self._encrypt) for op in ops]
        return [self._find_encrypted(op) or encrypted_fields.transform_op(op, self._encrypt) for op in ops]

    def _find_encrypted(self, op: Op) -> Op | None:
        known = self._unconfirmed_ops.get(id(op))
        return known[1] if known is not None and known[0] is op else None

    # Reading: rows

    async def get_run(self, run_id: str) -> Run | None:
        run = await self.inner.get_run(run_id)
        return None if run is None else (await decrypt_runs(self._decrypt, [run]))[0]

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await decrypt_runs(self._decrypt, await self.inner.get_runs(run_ids))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await decrypt_runs(self._decrypt, await self.inner.list_runs(where, limit=limit, before_key=before_key))

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        found = await self.inner.search_runs(where, limit=limit, before_key=before_key, max_scanned=max_scanned)
        return found._replace(runs=await decrypt_runs(self._decrypt, found.runs))

    # Reading: what belongs to one run

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        found = await self.inner.get_histories(keys)

        def opened() -> list[History]:
            return [encrypted_fields.transform_history(history, self._decrypt) for history in found]

        values = (one.payload for history in found for one in (*history.records, *history.signals))
        return await run_in_thread_if_large(values, opened)

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        record = await self.inner.get_last_record(run_id, name)
        return None if record is None else encrypted_fields.transform_record(record, self._decrypt)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        found = await self.inner.get_run_updates(run_id, after_seq, after_event_id, limit)
        if found is None:
            return None

        def opened() -> RunUpdates:
            return encrypted_fields.transform_feed(found, self._decrypt)

        run = found.run
        values = (run.inputs, run.output, run.error, *(record.payload for record in found.records))
        return await run_in_thread_if_large(values, opened)

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        found = await self.inner.get_journal_page(
            run_id, after_seq, limit, include_large_payloads=include_large_payloads
        )
        if found is None:
            return None

        def opened() -> JournalPage:
            return encrypted_fields.transform_journal_page(found, self._decrypt)

        run = found.run
        payloads = (one.payload for one in (*found.records, *found.signals))
        return await run_in_thread_if_large((run.inputs, run.output, run.error, *payloads), opened)

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return [
            encrypted_fields.transform_approval(approval, self._decrypt)
            for approval in await self.inner.list_approvals(where, limit)
        ]

    def _keep_undecryptable(self, decrypt: Callable[[T], T]) -> Callable[[T], T]:
        """The same, but what cannot be opened stays sealed."""
        decrypt = _translate_errors(decrypt)

        def peek(value: T) -> T:
            try:
                return decrypt(value)
            except UndecryptableValue as problem:
                self._warn_once(str(problem))
                return value

        return peek

    def _warn_once(self, problem: str) -> None:
        """Say once what is wrong: a list may have thousands of such values."""
        if problem not in self._logged_problems and len(self._logged_problems) < _MAX_WARNINGS:
            self._logged_problems.add(problem)
            log.warning("%s: %s", self.url, problem)


def unwrap_store(store: Store) -> Store:
    """The store that hands out what it keeps as it is kept: the one that is wrapped, or the store itself."""
    return store.inner if isinstance(store, EncryptedStore) else store


def _translate_errors(work: Callable[[T], T]) -> Callable[[T], T]:
    """The same, but what an encryption raises that is no error of Holdfast's is a ``StoreUnavailable``."""

    def try_it(value: T) -> T:
        try:
            return work(value)
        except HoldfastError:
            raise
        except Exception as error:
            raise StoreUnavailable(f"the encryption does not work: {type(error).__name__}: {error}") from error

    return try_it


def _has_large_value(op: Op) -> bool:
    """Whether there is something in an operation that should not be encrypted on the event loop."""
    if isinstance(op, AppendRecord):
        return op.record.payload is not None and len(op.record.payload) > MAX_INLINE_BYTES
    sizes: list[int] = []

    def measure(data: bytes) -> bytes:
        sizes.append(len(data))
        return data

    encrypted_fields.transform_op(op, ValueTransform(measure, str))
    return max(sizes, default=0) > MAX_INLINE_BYTES
