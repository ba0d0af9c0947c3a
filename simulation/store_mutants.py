"""Mistakes that a store could make: each patches the database, or the connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdfast.admission.queue_limits import QueueAdmission
from holdfast.stores import rules, worker_deaths
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.workers import MemoryClaims, MemoryWorkers
from holdfast.stores.operations import AppendRecord, FinishRun, OpStatus, Run, SaveAttempt, SendSignal
from simulation.mutant_registry import register_mutant
from simulation.process_store import ProcessStore


@register_mutant("the fence is not checked")
def fence_not_checked() -> Iterator[None]:
    """Every write passes."""
    with patch.object(rules, "can_write", lambda state, epoch, op_epoch: state == "running"):
        yield


@register_mutant("the fence is checked in another transaction than the write")
def fence_in_another_transaction() -> Iterator[None]:
    """A commit first checks its fences, and then writes what passed without checking again."""
    held: list[Any] = []

    async def commit(self: ProcessStore, ops: Any) -> Any:
        def verdicts() -> list[bool]:
            runs = self.database._runs
            return [
                not hasattr(op, "key") or rules.can_write(runs[op.key].state, runs[op.key].epoch, _get_epoch(op))
                for op in ops
            ]

        passed = await self.send_request("check", verdicts)
        keep = [op for op, ok in zip(ops, passed, strict=True) if ok or not isinstance(op, AppendRecord | SaveAttempt)]

        def write() -> Any:
            held.append(None)
            try:
                return self._commit_checked(keep)
            finally:
                held.pop()

        answers = iter(await self.send_request("commit", write))
        return [next(answers) if op in keep else OpStatus.FENCED for op in ops]

    real = rules.can_write
    loose = lambda state, epoch, op_epoch: bool(held) or real(state, epoch, op_epoch)  # noqa: E731
    with patch.object(ProcessStore, "commit", commit), patch.object(rules, "can_write", loose):
        yield


def _get_epoch(op: Any) -> int:
    return op.record.epoch if isinstance(op, AppendRecord) else op.epoch


@register_mutant("a signal is consumed in a transaction of its own, before its record")
def signal_consumed_before_record() -> Iterator[None]:
    """The mailbox loses it first; the journal gets it later."""
    real = ProcessStore.commit

    async def commit(self: ProcessStore, ops: Any) -> Any:
        taken = [op for op in ops if isinstance(op, AppendRecord) and op.consumed_signal_id is not None]
        if taken:

            def take() -> None:
                for op in taken:
                    self.database._mailboxes.get(op.key, {}).pop(op.consumed_signal_id, None)

            await self.send_request("take", take)
        return await real(self, ops)

    with patch.object(ProcessStore, "commit", commit):
        yield


@register_mutant("a record leaves its signal in the mailbox")
def signal_not_consumed() -> Iterator[None]:
    """Nothing deletes it."""
    real = MemoryStore._append
    with patch.object(MemoryStore, "_append", lambda self, op: real(self, op._replace(consumed_signal_id=None))):
        yield


@register_mutant("the delivery counter is never reset")
def deliveries_never_reset() -> Iterator[None]:
    """Deaths add up over a run's whole life."""
    real = MemoryStore._append
    with patch.object(MemoryStore, "_append", lambda self, op: real(self, op._replace(reset_delivery_count=False))):
        yield


@register_mutant("a death counts against every run that the worker held")
def shared_deaths_counted() -> Iterator[None]:
    """One bad run, and its neighbors end dead."""
    real = worker_deaths.get_worker_death_effect
    alone = lambda deliveries, most, suspicion, held: real(deliveries, most, suspicion, 1)  # noqa: E731
    with patch.object(worker_deaths, "get_worker_death_effect", alone):
        yield


@register_mutant("no death makes a run suspicious enough to be isolated")
def suspects_not_isolated() -> Iterator[None]:
    """A bad run keeps taking its neighbors down, and is never found."""
    with patch.object(worker_deaths, "raise_suspicion", lambda suspicion, held: 1):
        yield


@register_mutant("a park does not look at the mailbox")
def park_ignores_mailbox() -> Iterator[None]:
    """A signal that came meanwhile waits for a run that waits for it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(signal_names=()))):
        yield


@register_mutant("a park that comes too late takes effect")
def late_park_accepted() -> Iterator[None]:
    """The run has continued since; nothing will wake it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(next_seq=None))):
        yield


@register_mutant("runs with unread signals stay parked when the worker that parked them is gone")
def parked_runs_not_rechecked() -> Iterator[None]:
    """A deploy that renamed a signal was rolled back, and no worker with the old code looks at the run."""
    with patch.object(MemoryStore, "_wake_parked_by", lambda self, worker: None):
        yield


@register_mutant("a signal does not wake a parked run")
def signal_does_not_wake() -> Iterator[None]:
    """It is stored, and that is all."""
    real = MemoryStore._send_signal

    def send(self: MemoryStore, op: SendSignal) -> OpStatus:
        before = self._get_by_id(op.run_id)
        answer = real(self, op)
        if before is not None:
            self._save_run(before)
        return answer

    with patch.object(MemoryStore, "_send_signal", send):
        yield


@register_mutant("deduplication keys are ignored")
def dedup_ignored() -> Iterator[None]:
    """A signal sent twice is two signals."""
    real = MemoryStore._send_signal
    with patch.object(MemoryStore, "_send_signal", lambda self, op: real(self, op._replace(dedup_key=None))):
        yield


@register_mutant("a repeated append is answered as fenced")
def repeated_append_fenced() -> Iterator[None]:
    """A worker that did not get the first answer is told that it lost the run."""
    real = MemoryStore._append

    def append(self: MemoryStore, op: AppendRecord) -> OpStatus:
        journal = self._records.get(op.key, [])
        return OpStatus.FENCED if any(record.seq == op.record.seq for record in journal) else real(self, op)

    with patch.object(MemoryStore, "_append", append):
        yield


@register_mutant("a repeated append is written again")
def repeated_append_written() -> Iterator[None]:
    """A journal with one outcome twice."""

    def append(self: MemoryStore, op: AppendRecord) -> OpStatus:
        held = self._get_claimed(op.key, op.record.epoch)
        if held is None:
            return OpStatus.FENCED
        self._records.setdefault(op.key, []).append(op.record)
        if op.consumed_signal_id is not None:
            self._mailboxes.get(op.key, {}).pop(op.consumed_signal_id, None)
        if op.clear_attempt:
            self._attempts.get(op.key, {}).pop(op.record.position, None)
        if op.reset_delivery_count:
            self._save_run(replace(held, delivery_count=0, suspicion=0))
        return OpStatus.DONE

    with patch.object(MemoryStore, "_append", append):
        yield


@register_mutant("a worker's hand-over counts as a death")
def release_counted_as_death() -> Iterator[None]:
    """Ten deploys, and a run is dead."""
    real = MemoryWorkers.retire

    async def retire(self: MemoryWorkers, worker: int) -> None:
        tables = self._tables
        held = tables._list_claimed_by(worker)
        await real(self, worker)
        for run in held:
            tables._save_run(replace(tables._runs[run.key], delivery_count=run.delivery_count + 1))

    with patch.object(MemoryWorkers, "retire", retire):
        yield


@register_mutant("a claim does not raise the epoch")
def claim_keeps_epoch() -> Iterator[None]:
    """The old holder and the new one have the same epoch."""
    real = MemoryClaims.claim

    async def claim(self: MemoryClaims, worker: int, **options: Any) -> Any:
        claimed = [replace(run, epoch=max(1, run.epoch - 1)) for run in await real(self, worker, **options)]
        for run in claimed:
            self._tables._save_run(run)
        return claimed

    with patch.object(MemoryClaims, "claim", claim):
        yield


@register_mutant("an ending may be written over another")
def ending_overwritten() -> Iterator[None]:
    """The epoch is compared and the state is not."""

    def finish(self: MemoryStore, op: FinishRun) -> OpStatus:
        run = self._runs[op.key]
        if run.epoch != op.epoch:
            return OpStatus.FENCED
        self._save_run(replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, owner=None))
        return OpStatus.DONE

    with patch.object(MemoryStore, "_finish", finish):
        yield


@register_mutant("a retry keeps the attempts of steps that were begun because of what it takes back")
def retry_keeps_attempts() -> Iterator[None]:
    """Another call at the same position inherits their progress and their number."""
    real = MemoryStore._rewind

    def rewind(self: MemoryStore, run: Run, affected: dict[int, None]) -> None:
        kept = dict(self._attempts.get(run.key, {}))
        real(self, run, affected)
        self._attempts[run.key] = kept

    with patch.object(MemoryStore, "_rewind", rewind):
        yield


@register_mutant("a claim takes more runs of a queue than it has places")
def queue_limit_ignored() -> Iterator[None]:
    """Runs that are already executing are not counted."""
    with patch.object(QueueAdmission, "free_slot_count", None):
        yield
