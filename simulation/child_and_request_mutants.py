"""Bugs in children, compensations, and users' requests. Each patches the core, the engine, or the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from holdfast.core.compensations import CompensationLog
from holdfast.core.execution import Execution
from holdfast.core.seeded_random import SeededRandom
from holdfast.engine.child_runs import ChildRuns
from holdfast.engine.claims import Claims
from holdfast.engine.driver import Driver
from holdfast.engine.held_runs import HeldRuns
from holdfast.engine.poller import Poller
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.workers import MemoryClaims, MemoryWorkers
from holdfast.stores.operations import CancelState, OpStatus
from simulation.mutant_registry import register_mutant

# Children


@register_mutant("the end of a run that is dead is told to nobody")
def dead_end_not_delivered() -> Iterator[None]:
    """Its parent waits forever."""
    real = MemoryWorkers._requeue_or_end

    def outlives(self: MemoryWorkers, *args: Any) -> bool:
        with patch.object(
            MemoryStore, "_end_run", lambda store, run: store._save_run(replace(run, owner=None, wake_at=None))
        ):
            return real(self, *args)

    with patch.object(MemoryWorkers, "_requeue_or_end", outlives):
        yield


@register_mutant("the end of a run does not wake a parked parent")
def end_does_not_wake() -> Iterator[None]:
    """It stays in the mailbox and wakes nothing."""
    real = MemoryStore._end_run

    def end(self: MemoryStore, run: Any) -> None:
        with patch.object(MemoryStore, "_wake", lambda *_: None):
            real(self, run)

    with patch.object(MemoryStore, "_end_run", end):
        yield


@register_mutant("a parent parks although the end that it waits for is there")
def park_ignores_ends() -> Iterator[None]:
    """Nothing will wake it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(awaited_positions=()))):
        yield


@register_mutant("nobody looks for a parent when its child has ended here")
def no_poll_after_end() -> Iterator[None]:
    """A store reports only the writes of other processes."""
    real = Driver._on_finished

    def finished(self: Driver, ended: Any, answer: Any) -> None:
        real(self, ended, OpStatus.DONE if answer is OpStatus.DONE_NOTIFIED else answer)

    with (
        patch.object(Driver, "_on_finished", finished),
        patch.object(Poller, "_should_poll_freed_slots", lambda self: False),  # which would find it after a second
    ):
        yield


@register_mutant("the seed of a child is drawn anew each time that it is started")
def child_seed_random() -> Iterator[None]:
    """A repeated start takes it for a run of another caller."""
    numbers = count()
    with patch.object(SeededRandom, "derive_child_seed", lambda *_: next(numbers).to_bytes(16, "big")):
        yield


@register_mutant("a parent that is no longer held starts children")
def child_start_unfenced() -> Iterator[None]:
    """The fence of a link is not checked."""
    real = MemoryStore._start

    def start(self: MemoryStore, op: Any) -> Any:
        if op.link is None:
            return real(self, op)
        with patch.object(MemoryStore, "_get_claimed", lambda store, key, _: store._runs[key]):
            return real(self, op)

    with patch.object(MemoryStore, "_start", start):
        yield


@register_mutant("a child goes on that its parent no longer waits for")
def cancel_not_propagated() -> Iterator[None]:
    """The cancellation of a call does not go down."""
    with patch.object(ChildRuns, "withdraw", lambda *_: None):
        yield


@register_mutant("a child that is at work here is taken up once more")
def child_activated_twice() -> Iterator[None]:
    """Its parent came back into memory, and started it again."""
    real = HeldRuns.load

    def take(self: HeldRuns, run: Any, *args: Any) -> None:
        known = self.drivers.pop(run.key, None)
        real(self, run, *args)
        if known is not None:
            self.drivers.setdefault(run.key, known)

    is_first = lambda self, started: started.is_new and started.run.state == "running"  # noqa: E731
    with patch.object(Claims, "_is_first_execution", is_first), patch.object(HeldRuns, "load", take):
        yield


# Cancelling


@register_mutant("a run completes although it is to be cancelled")
def finish_ignores_cancel() -> Iterator[None]:
    """The cancel came a moment before its end."""
    real = MemoryStore._finish
    with patch.object(MemoryStore, "_finish", lambda self, op: real(self, op._replace(respect_cancel=False))):
        yield


@register_mutant("a run parks although it is to be cancelled")
def park_ignores_cancel() -> Iterator[None]:
    """It sleeps until its timer is due."""
    real = MemoryStore._park

    def park(self: MemoryStore, op: Any) -> Any:
        held = self._get_claimed(op.key, op.epoch)
        asked = held is not None and held.cancel_state is CancelState.REQUESTED
        if asked:
            self._save_run(replace(self._runs[op.key], cancel_state=CancelState.NONE))
        answer = real(self, op)
        if asked:
            self._save_run(replace(self._runs[op.key], cancel_state=CancelState.REQUESTED))
        return answer

    with patch.object(MemoryStore, "_park", park):
        yield


@register_mutant("a cancellation is recorded again by the next holder")
def cancel_recorded_twice() -> Iterator[None]:
    """A second blow, which hits the clean-up."""
    real = Driver.__init__

    def init(self: Driver, host: Any, run: Any, definition: Any) -> None:
        real(self, host, run, definition)
        if run.cancel_state is not CancelState.NONE:
            self._cancel_state = CancelState.REQUESTED

    with patch.object(Driver, "__init__", init):
        yield


@register_mutant("a finish that is refused for a cancel is made again without heeding it")
def refused_finish_forced() -> Iterator[None]:
    """The caller was told that the cancel is accepted."""
    real = Driver._finish

    def finish(self: Driver, end: Any, rewind: Any = None, *, respect_cancel: bool) -> None:
        self._on_finish_refused = lambda: real(self, end, rewind, respect_cancel=False)  # type: ignore[method-assign]
        real(self, end, rewind, respect_cancel=respect_cancel)

    with patch.object(Driver, "_finish", finish):
        yield


@register_mutant("a cancel does not wake a parked run")
def cancel_does_not_wake() -> Iterator[None]:
    """It is cancelled when its timer is due, or never."""
    real = MemoryStore._cancel

    def cancel(self: MemoryStore, op: Any) -> Any:
        before = self._get_by_id(op.run_id)
        answer = real(self, op)
        after = self._get_by_id(op.run_id)
        if before is not None and after is not None and not after.state.is_terminal:
            self._save_run(replace(after, wake_at=before.wake_at))
        return answer

    with patch.object(MemoryStore, "_cancel", cancel):
        yield


# Compensations


@register_mutant("steps are undone in the order in which they were done")
def compensated_forwards() -> Iterator[None]:
    """First step first, although later steps depend on it."""
    with patch.object(CompensationLog, "pop_step", lambda self: self._steps.pop(0)):
        yield


@register_mutant("undoing begins while outcomes of cancelled steps are on their way")
def compensated_too_early() -> Iterator[None]:
    """They are compensated last, although other steps depend on what came before them."""
    real = Execution.try_start_compensation

    def begin(self: Execution, upcoming: Any = (), *, expected_positions: Any = ()) -> bool:
        return real(self)

    with patch.object(Execution, "try_start_compensation", begin):
        yield


@register_mutant("a step that was done after the workflow had cancelled it is not undone")
def holes_not_compensated() -> Iterator[None]:
    """Its outcome was on its way."""
    with patch.object(Execution, "_note_late_outcome", lambda *_: None):
        yield


@register_mutant("a step whose outcome came after the workflow's end is not undone")
def late_holes_not_compensated() -> Iterator[None]:
    """The run has ended, as far as its code goes."""
    real = Execution.deliver_after_end

    def leftover(self: Execution, record: Any) -> None:
        with patch.object(Execution, "_compensate_after_end", lambda *_: None):
            real(self, record)

    with patch.object(Execution, "deliver_after_end", leftover):
        yield


# Pausing, and the switch


@register_mutant("a paused run is claimed")
def paused_run_claimed() -> Iterator[None]:
    """When its timer is due, or a signal comes."""
    real = MemoryClaims._list_claimable

    def sleeping(self: MemoryClaims, workflows: Any, queues: Any) -> Any:
        runs = self._tables._runs
        paused = [runs[key] for key in self._tables._unfinished if runs[key].paused_at is not None]
        return [*real(self, workflows, queues), *(run for run in paused if run.state == "waiting")]

    with patch.object(MemoryClaims, "_list_claimable", sleeping):
        yield


@register_mutant("a pause is forgotten when the run is given back")
def pause_lost_on_release() -> Iterator[None]:
    """Its worker stopped or died before it learned of the request."""
    real = MemoryStore._requeue_run
    with patch.object(MemoryStore, "_requeue_run", lambda self, run: real(self, replace(run, paused_at=None))):
        yield


@register_mutant("a worker does not hear of a pause")
def pause_not_noticed() -> Iterator[None]:
    """The run continues for as long as it is held."""
    real = Driver.handle_request
    with patch.object(
        Driver, "handle_request", lambda self, request: real(self, request._replace(is_pause_requested=False))
    ):
        yield


@register_mutant("a run that is resumed sleeps on until its timer is due")
def resume_does_not_wake() -> Iterator[None]:
    """What arrived meanwhile woke nothing, because the run was paused."""
    real = MemoryStore._resume

    def resume(self: MemoryStore, op: Any) -> Any:
        before = self._get_by_id(op.run_id)
        answer = real(self, op)
        if answer is OpStatus.DONE and before is not None:
            self._save_run(replace(before, paused_at=None))
        return answer

    with patch.object(MemoryStore, "_resume", resume):
        yield


@register_mutant("runs of a workflow that is switched off are claimed")
def disabled_run_claimed() -> Iterator[None]:
    """Runs in memory stop; the others do not."""
    real = MemoryClaims._list_claimable

    def sleeping(self: MemoryClaims, workflows: Any, queues: Any) -> Any:
        tables = self._tables
        switches, tables._disabled_workflows = tables._disabled_workflows, {}
        try:
            return real(self, workflows, queues)
        finally:
            tables._disabled_workflows = switches

    with patch.object(MemoryClaims, "_list_claimable", sleeping):
        yield


@register_mutant("a worker does not hear that a workflow was switched off")
def disable_not_noticed() -> Iterator[None]:
    """The runs it holds continue."""
    with patch.object(Driver, "begin_disable", lambda _: None):
        yield


@register_mutant("a run that stands still is not given back")
def disabled_run_not_released() -> Iterator[None]:
    """No worker claims it when its workflow is enabled again."""

    async def look(self: Claims) -> None:
        """Which would find it: a worker gives back the runs that it holds and does not drive."""

    with (
        patch.object(Driver, "begin_disable", lambda self: self.is_closed or self._close(None)),
        patch.object(Claims, "release_unacknowledged", look),
    ):
        yield


# Retrying and forking


@register_mutant("a retry keeps what the workflow did because of the failure")
def rewind_keeps_consequences() -> Iterator[None]:
    """Only the record that failed is taken back."""
    real = MemoryStore._list_rewound_records

    def taken(self: MemoryStore, run: Any) -> Any:
        return [record for record in real(self, run) if record.seq in run.rewind.failed_seqs]

    with patch.object(MemoryStore, "_list_rewound_records", taken):
        yield


@register_mutant("a run knows only at its end what it had asked for before it failed")
def rewind_too_short() -> Iterator[None]:
    """So a retry takes back too little."""
    real = CompensationLog.build_rewind

    def rewind(self: CompensationLog, origins: Any, *args: Any, **options: Any) -> Any:
        return real(self, [one._replace(command_count=one.command_count + 1) for one in origins], *args, **options)

    with patch.object(CompensationLog, "build_rewind", rewind):
        yield


@register_mutant("a retry does not put signals back")
def signals_not_requeued() -> Iterator[None]:
    """They were consumed by records that are gone."""
    real = MemoryStore._rewind

    def again(self: MemoryStore, run: Any, affected: Any) -> None:
        with patch.object(MemoryStore, "_add_signal", lambda *_: None):
            real(self, run, affected)

    with patch.object(MemoryStore, "_rewind", again):
        yield


@register_mutant("a child that is reopened with its parent tells nobody when it ends")
def link_not_rearmed() -> Iterator[None]:
    """The link says that the end was delivered."""
    with patch.object(MemoryStore, "_apply_link_action", lambda self, place, *_: self._delete_end_signal(place)):
        yield


@register_mutant("a retry does not reopen the children that failed")
def children_not_reopened() -> Iterator[None]:
    """The parent continues, and fails for the same reason."""
    real = MemoryStore._decide_reopen

    def may_reopen(self: MemoryStore, run: Any, op: Any, affected: Any) -> Any:
        answer = real(self, run, op, affected)
        for key in list(affected)[1:]:
            del affected[key]
        return answer

    with patch.object(MemoryStore, "_decide_reopen", may_reopen):
        yield


@register_mutant("a fork has the idempotency keys of its origin")
def fork_shares_keys() -> Iterator[None]:
    """The service it calls takes it for a repetition."""
    real = SeededRandom.draw_own_bytes

    def own(self: SeededRandom, purpose: str, position: int) -> bytes:
        seeds, self._seeds = self._seeds, self._seeds[-1:]
        try:
            return real(self, purpose, position)
        finally:
            self._seeds = seeds

    with patch.object(SeededRandom, "draw_own_bytes", own):
        yield


@register_mutant("a fork draws other random numbers than its origin did")
def fork_reseeds_random() -> Iterator[None]:
    """Also in the part that it shares."""
    real = SeededRandom.draw_bytes
    with patch.object(
        SeededRandom, "draw_bytes", lambda self, purpose, position, _: real(self, purpose, position, 10**9)
    ):
        yield


@register_mutant("a fork shares one record too many")
def fork_keeps_extra_record() -> Iterator[None]:
    """The step that it is to run again does not run."""
    real = MemoryStore._fork
    with patch.object(MemoryStore, "_fork", lambda self, op: real(self, op._replace(before_seq=op.before_seq + 1))):
        yield
