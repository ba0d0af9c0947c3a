"""Mistakes that a store could make: each patches the database, or the connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdfast.admission.queue_limits import Gate
from holdfast.stores import rules
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import AppendRecord, FinishRun, NoteAttempt, Run, SendSignal, Verdict
from simulation.mutant_registry import mutant
from simulation.process_store import ProcessStore


@mutant("the fence is not checked")
def no_fence() -> Iterator[None]:
    """Whoever writes, writes."""
    with patch.object(rules, "holds", lambda state, epoch, fence: state == "running"):
        yield


@mutant("the fence is checked in another transaction than the write")
def fence_in_another_transaction() -> Iterator[None]:
    """Each commit first asks whether its fences hold, and then writes what passed, without asking again."""
    held: list[Any] = []

    async def commit(self: ProcessStore, ops: Any) -> Any:
        def verdicts() -> list[bool]:
            runs = self._database._runs
            return [
                not hasattr(op, "key") or rules.holds(runs[op.key].state, runs[op.key].epoch, _epoch(op)) for op in ops
            ]

        passed = await self._ask("check", verdicts)
        keep = [op for op, ok in zip(ops, passed, strict=True) if ok or not isinstance(op, AppendRecord | NoteAttempt)]

        def write() -> Any:
            held.append(None)
            try:
                return self._commit(keep)
            finally:
                held.pop()

        answers = iter(await self._ask("commit", write))
        return [next(answers) if op in keep else Verdict.FENCED for op in ops]

    real = rules.holds
    loose = lambda state, epoch, fence: bool(held) or real(state, epoch, fence)  # noqa: E731
    with patch.object(ProcessStore, "commit", commit), patch.object(rules, "holds", loose):
        yield


def _epoch(op: Any) -> int:
    return op.record.epoch if isinstance(op, AppendRecord) else op.epoch


@mutant("a signal is consumed in a transaction of its own, before its record")
def signal_before_record() -> Iterator[None]:
    """The mailbox forgets it first; the journal learns of it later."""
    real = ProcessStore.commit

    async def commit(self: ProcessStore, ops: Any) -> Any:
        taken = [op for op in ops if isinstance(op, AppendRecord) and op.consume is not None]
        if taken:

            def take() -> None:
                for op in taken:
                    self._database._mailboxes.get(op.key, {}).pop(op.consume, None)

            await self._ask("take", take)
        return await real(self, ops)

    with patch.object(ProcessStore, "commit", commit):
        yield


@mutant("a record leaves its signal in the mailbox")
def signal_not_consumed() -> Iterator[None]:
    """Nobody deletes it."""
    real = MemoryStore._append
    with patch.object(MemoryStore, "_append", lambda self, op: real(self, op._replace(consume=None))):
        yield


@mutant("the delivery counter is never reset")
def deliveries_never_reset() -> Iterator[None]:
    """Deaths add up over a run's whole life."""
    real = MemoryStore._append
    with patch.object(MemoryStore, "_append", lambda self, op: real(self, op._replace(reset_deliveries=False))):
        yield


@mutant("a death counts against every run that the worker held")
def deaths_in_company_count() -> Iterator[None]:
    """One bad run, and its neighbors end dead."""
    real = rules.after_death
    alone = lambda deliveries, most, suspicion, held: real(deliveries, most, suspicion, 1)  # noqa: E731
    with patch.object(rules, "after_death", alone):
        yield


@mutant("no death makes a run suspicious enough to be isolated")
def nobody_is_isolated() -> Iterator[None]:
    """A bad run takes its neighbors along for ever, and is never found out."""
    with patch.object(rules, "raise_suspicion", lambda suspicion, held: 1):
        yield


@mutant("a park does not look at the mailbox")
def park_ignores_mailbox() -> Iterator[None]:
    """A signal that came meanwhile waits for a run that waits for it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(signals=()))):
        yield


@mutant("a park that comes too late takes effect")
def late_park() -> Iterator[None]:
    """The run has gone on since; nobody will wake it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(next_seq=None))):
        yield


@mutant("runs with unread signals stay parked when the worker that parked them is gone")
def parked_under_old_code() -> Iterator[None]:
    """A deploy that renamed a signal was rolled back, and nobody looks at the run with the code that waits for it."""
    with patch.object(MemoryStore, "_wake_parked_by", lambda self, worker: None):
        yield


@mutant("a signal does not wake a parked run")
def signal_wakes_nobody() -> Iterator[None]:
    """It is stored, and that is all."""
    real = MemoryStore._send

    def send(self: MemoryStore, op: SendSignal) -> Verdict:
        before = self._by_id(op.run_id)
        answer = real(self, op)
        if before is not None:
            self._put(before)
        return answer

    with patch.object(MemoryStore, "_send", send):
        yield


@mutant("deduplication keys are ignored")
def dedup_ignored() -> Iterator[None]:
    """A signal sent twice is two signals."""
    real = MemoryStore._send
    with patch.object(MemoryStore, "_send", lambda self, op: real(self, op._replace(dedup=None))):
        yield


@mutant("a repeated append is answered as fenced")
def repeat_is_fenced() -> Iterator[None]:
    """A worker that did not hear the answer the first time is told that it lost the run."""
    real = MemoryStore._append

    def append(self: MemoryStore, op: AppendRecord) -> Verdict:
        journal = self._records.get(op.key, [])
        return Verdict.FENCED if any(record.seq == op.record.seq for record in journal) else real(self, op)

    with patch.object(MemoryStore, "_append", append):
        yield


@mutant("a repeated append is written again")
def repeat_is_new() -> Iterator[None]:
    """A journal in which one outcome stands twice."""

    def append(self: MemoryStore, op: AppendRecord) -> Verdict:
        held = self._held(op.key, op.record.epoch)
        if held is None:
            return Verdict.FENCED
        self._records.setdefault(op.key, []).append(op.record)
        if op.consume is not None:
            self._mailboxes.get(op.key, {}).pop(op.consume, None)
        if op.clear_attempt:
            self._attempts.get(op.key, {}).pop(op.record.position, None)
        if op.reset_deliveries:
            self._put(replace(held, deliveries=0, suspicion=0))
        return Verdict.DONE

    with patch.object(MemoryStore, "_append", append):
        yield


@mutant("a worker's hand-over counts as a death")
def hand_over_counts() -> Iterator[None]:
    """Ten deploys, and a run is dead."""
    real = MemoryStore.retire_worker

    async def retire(self: MemoryStore, worker: int) -> None:
        held = self._held_by(worker)
        await real(self, worker)
        for run in held:
            self._put(replace(self._runs[run.key], deliveries=run.deliveries + 1))

    with patch.object(MemoryStore, "retire_worker", retire):
        yield


@mutant("a claim does not raise the epoch")
def claim_keeps_epoch() -> Iterator[None]:
    """The old holder and the new one cannot be told apart."""
    real = MemoryStore.claim

    async def claim(self: MemoryStore, worker: int, **options: Any) -> Any:
        claimed = [replace(run, epoch=max(1, run.epoch - 1)) for run in await real(self, worker, **options)]
        for run in claimed:
            self._put(run)
        return claimed

    with patch.object(MemoryStore, "claim", claim):
        yield


@mutant("an ending may be written over another")
def ending_over_ending() -> Iterator[None]:
    """The epoch is compared and the state is not."""

    def finish(self: MemoryStore, op: FinishRun) -> Verdict:
        run = self._runs[op.key]
        if run.epoch != op.epoch:
            return Verdict.FENCED
        self._put(replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, owner=None))
        return Verdict.DONE

    with patch.object(MemoryStore, "_finish", finish):
        yield


@mutant("a retry keeps the attempts of steps that were begun because of what it takes back")
def retry_keeps_attempts() -> Iterator[None]:
    """Another call at the same position inherits their progress and their number."""
    real = MemoryStore._rewind

    def rewind(self: MemoryStore, run: Run, affected: dict[int, None]) -> None:
        kept = dict(self._attempts.get(run.key, {}))
        real(self, run, affected)
        self._attempts[run.key] = kept

    with patch.object(MemoryStore, "_rewind", rewind):
        yield


@mutant("a claim takes more runs of a queue than it has places")
def places_not_counted() -> Iterator[None]:
    """Nobody counts what is executed already."""
    with patch.object(Gate, "places", None):
        yield
