"""``EncryptedStore`` wraps any store, and encrypts what belongs to users' code.

**Encrypted** is everything that users' code passes in or gets out: inputs, outputs, and errors of runs; payloads and
previews of records; progress, outcomes, and errors of attempts; payloads of signals; approval requests and answers; the
data of live events; values of memories; inputs of schedules; the description of what a run waits for; and the documents
of servers, which include the secrets that sign webhooks. ``encrypted_fields`` is the list.

**Readable** stays what a database must read: ids, names (of workflows, versions, steps, signals, tools, tags, queues,
sessions, people), keys (of queues, deduplication, memories), times, counts, usage, and the digest of a run's inputs,
which is equal for equal inputs. So does what stores write themselves, such as the error of a dead run, and the audit
log.

**Where stores would read encrypted values:**

- The live event of a started step names the step, for the error of a run that killed its worker. Only the arguments in
  it are encrypted.
- Lists of runs can be searched for a text in their errors. A search finds nothing in an encrypted error.
- Memories are found by their words, which are not stored: ``Memories.search`` is refused.
- Large payloads are kept apart, compressed, and once for equal content. Encrypted bytes do not compress, so payloads
  are compressed before they are encrypted. No two are equal, so nothing is shared. (A repeated commit passes the same
  bytes again; otherwise each repeat would leave a payload without references.)
- The end of a run goes to mailboxes, a removed signal goes back to its own, and a fork shares payloads: these are
  copied in their encrypted form.

Budgets, rewinds, sessions, links, and queues have fields of their own, and plans are outputs of steps like any other:
stores read no values for them.

**A value that cannot be decrypted**, because its key is missing or it was changed, affects only the run that it belongs
to. It is returned as it is, so that lists, claims, and waits work, and archives lose nothing; the log says why it could
not be decrypted. Decoding it raises ``UndecryptableValue``, and no engine executes a run with such a journal. A store
without encryption returns encrypted values in the same way.

**An encryption that fails** (say, its key service is unreachable) is like an unreachable database: whatever ``encrypt``
or ``decrypt`` raises that says nothing about the value becomes a ``StoreUnavailable``. Runs keep their state, and
continue when it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.codec.encrypted_values import ValueEncryptor
from holdfast.codec.encryption import Encryption
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, StoreUnavailable, UndecryptableValue
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.contract import MAX_INLINE_BYTES, History, RunFilter, RunSearchPage, RunUsage, Store, WorkflowSpec
from holdfast.stores.encrypted.capabilities import (
    EncryptedArchives,
    EncryptedClaims,
    EncryptedDocuments,
    EncryptedMemories,
    EncryptedSchedules,
    EncryptedStepTransactions,
    decrypt_histories,
    decrypt_runs,
    run_in_thread_if_large,
)
from holdfast.stores.encrypted.encrypted_fields import ValueTransform
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.operations import AppendRecord, LiveEvent, Op, OpResult, Run
from holdfast.stores.workers import Worker

log = logging.getLogger("holdfast.stores")

T = TypeVar("T")
_Answer = OpResult | ClaimedRun | None

_MAX_WARNINGS = 100
_MAX_UNCONFIRMED_OPS = 10_000


class EncryptedStore(Store):
    """A store that encrypts everything that users' code passes in or gets out.

    Args:
        inner: any store, not opened.
        encryption: how values are encrypted and decrypted.
    """

    is_encrypted = True

    def __init__(self, inner: Store, encryption: Encryption) -> None:
        self.inner = inner
        self.url = inner.url
        self.namespace = inner.namespace
        self.min_overlap_count = inner.min_overlap_count
        self.encryption = encryption
        encryptor = ValueEncryptor(encryption)
        self._encrypt = ValueTransform(_translate_errors(encryptor.encrypt), _translate_errors(encryptor.encrypt_text))
        self._decrypt = ValueTransform(
            self._keep_undecryptable(encryptor.decrypt), self._keep_undecryptable(encryptor.decrypt_text)
        )
        self._logged_problems: set[str] = set()
        self._unconfirmed_ops: dict[int, tuple[Op | ClaimNext, Op | ClaimNext]] = {}
        """Unanswered items by identity, with their encrypted form: they may be submitted again."""
        self.workers = inner.workers
        self.disabled_workflows = inner.disabled_workflows
        self.queues = inner.queues
        self.audit_log = inner.audit_log
        self.daily_usage = inner.daily_usage
        self.retention = inner.retention
        if inner.supports(Store.erasure):
            self.erasure = inner.erasure
        transforms = (self._encrypt, self._decrypt)
        self.claims = EncryptedClaims(inner.claims, *transforms)
        self.schedules = EncryptedSchedules(inner.schedules, *transforms)
        self.memories = EncryptedMemories(inner.memories, *transforms, self.url)
        self.documents = EncryptedDocuments(inner.documents, *transforms)
        self.archives = EncryptedArchives(inner.archives, *transforms)
        if inner.supports(Store.step_transactions):
            self.step_transactions = EncryptedStepTransactions(inner.step_transactions, *transforms)

    # Forwarded unchanged

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

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        await self.inner.announce_workflows(specs, worker)

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        return await self.inner.get_workflow_specs(workflow)

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        return await self.inner.wait_for_change(timeout_s, follow_runs=follow_runs)

    def now(self) -> float:
        return self.inner.now()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return cast("list[OpResult]", await self._commit_encrypted(ops, self.inner.commit))

    async def commit_and_claim(self, items: Sequence[Op | ClaimNext]) -> list[OpResult | ClaimedRun | None]:
        return await self._commit_encrypted(items, self.inner.commit_and_claim)

    async def _commit_encrypted(
        self, items: Sequence[Op | ClaimNext], commit: Callable[[Any], Awaitable[Sequence[_Answer]]]
    ) -> list[_Answer]:
        if any(map(_has_large_value, items)):
            encrypted = await asyncio.to_thread(self._encrypt_items, items)
        else:
            encrypted = self._encrypt_items(items)
        try:
            answers = [*map(self._decrypt_answer, await commit(encrypted))]
        except StoreUnavailable:
            if len(self._unconfirmed_ops) > _MAX_UNCONFIRMED_OPS:  # some clients never submit theirs again
                self._unconfirmed_ops.clear()
            self._unconfirmed_ops.update((id(item), (item, made)) for item, made in zip(items, encrypted, strict=True))
            raise
        self._unconfirmed_ops.clear()
        return answers

    def _encrypt_items(self, items: Sequence[Op | ClaimNext]) -> list[Op | ClaimNext]:
        if not self._unconfirmed_ops:
            return [*map(self._encrypt_item, items)]
        return [self._find_encrypted(item) or self._encrypt_item(item) for item in items]

    def _encrypt_item(self, item: Op | ClaimNext) -> Op | ClaimNext:
        if not isinstance(item, ClaimNext):
            return self._encrypt.transform_op(item)

        def make_event(run: Run) -> LiveEvent:
            return self._encrypt.transform_live_event(item.make_event(run))

        return item._replace(make_event=make_event)

    def _find_encrypted(self, item: Op | ClaimNext) -> Op | ClaimNext | None:
        known = self._unconfirmed_ops.get(id(item))
        return known[1] if known is not None and known[0] is item else None

    def _decrypt_answer(self, answer: _Answer) -> _Answer:
        if answer is None:
            return None
        if isinstance(answer, ClaimedRun):  # such a run has no large values
            return answer._replace(run=self._decrypt.transform_run(answer.run))
        return self._decrypt.transform_answer(answer)

    # Reading: rows

    async def get_run(self, run_id: str) -> Run | None:
        run = await self.inner.get_run(run_id)
        return None if run is None else (await decrypt_runs(self._decrypt, [run]))[0]

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await decrypt_runs(self._decrypt, await self.inner.get_runs(run_ids))

    async def get_ended_runs(self, run_ids: Sequence[str]) -> tuple[list[Run], Collection[str]]:
        ended, missing = await self.inner.get_ended_runs(run_ids)
        return await decrypt_runs(self._decrypt, ended), missing

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await decrypt_runs(self._decrypt, await self.inner.list_runs(where, limit=limit, before_key=before_key))

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        found = await self.inner.search_runs(where, limit=limit, before_key=before_key, max_scanned=max_scanned)
        return found._replace(runs=await decrypt_runs(self._decrypt, found.runs))

    # Reading: what belongs to one run

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await decrypt_histories(self._decrypt, await self.inner.get_histories(keys))

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        record = await self.inner.get_last_record(run_id, name)
        return None if record is None else self._decrypt.transform_record(record)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        found = await self.inner.get_run_updates(run_id, after_seq, after_event_id, limit)
        if found is None:
            return None
        run = found.run
        values = (run.inputs, run.output, run.error, *(record.payload for record in found.records))
        return await run_in_thread_if_large(values, lambda: self._decrypt.transform_updates(found))

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        found = await self.inner.get_journal_page(
            run_id, after_seq, limit, include_large_payloads=include_large_payloads
        )
        if found is None:
            return None
        run = found.run
        values = (run.inputs, run.output, run.error, *(item.payload for item in (*found.records, *found.signals)))
        return await run_in_thread_if_large(values, lambda: self._decrypt.transform_journal_page(found))

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return [*map(self._decrypt.transform_approval, await self.inner.list_approvals(where, limit))]

    def _keep_undecryptable(self, decrypt: Callable[[T], T]) -> Callable[[T], T]:
        """The same function, but it returns a value that cannot be decrypted as it is."""
        decrypt = _translate_errors(decrypt)

        def try_decrypt(value: T) -> T:
            try:
                return decrypt(value)
            except UndecryptableValue as problem:
                self._warn_once(str(problem))
                return value

        return try_decrypt

    def _warn_once(self, problem: str) -> None:
        """Log each problem once: a list may have thousands of such values."""
        if problem not in self._logged_problems and len(self._logged_problems) < _MAX_WARNINGS:
            self._logged_problems.add(problem)
            log.warning("%s: %s", self.url, problem)


def unwrap_store(store: Store) -> Store:
    """The store that returns values in their stored form: the wrapped one, or the store itself."""
    return store.inner if isinstance(store, EncryptedStore) else store


def _translate_errors(work: Callable[[T], T]) -> Callable[[T], T]:
    """The same function, but whatever it raises that is not a ``HoldfastError`` becomes ``StoreUnavailable``."""

    def run_translated(value: T) -> T:
        try:
            return work(value)
        except HoldfastError:
            raise
        except Exception as error:
            raise StoreUnavailable(f"the encryption does not work: {type(error).__name__}: {error}") from error

    return run_translated


def _has_large_value(op: Op | ClaimNext) -> bool:
    """Whether an operation has a value that is too large to encrypt on the event loop."""
    if isinstance(op, ClaimNext):
        return False
    if isinstance(op, AppendRecord):
        return op.record.payload is not None and len(op.record.payload) > MAX_INLINE_BYTES
    sizes: list[int] = []

    def measure(data: bytes) -> bytes:
        sizes.append(len(data))
        return data

    ValueTransform(measure, str).transform_op(op)
    return max(sizes, default=0) > MAX_INLINE_BYTES
