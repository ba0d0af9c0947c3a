"""Mistakes with children, compensations and what people ask for: each patches the core, the engine or the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from holdfast.core.compensations import UndoLog
from holdfast.core.execution import Execution
from holdfast.core.seeded_random import Chance
from holdfast.engine.child_runs import Children
from holdfast.engine.claims import Claims
from holdfast.engine.driver import Driver
from holdfast.engine.journal_engine import JournalEngine
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Cancel, Verdict
from simulation.mutant_registry import mutant

# Children


@mutant("the end of a run that is dead is told to nobody")
def dead_tells_nobody() -> Iterator[None]:
    """Its parent waits for ever."""
    real = MemoryStore._outlives

    def outlives(self: MemoryStore, *args: Any) -> bool:
        with patch.object(MemoryStore, "_end", lambda store, run: store._put(replace(run, owner=None, wake_at=None))):
            return real(self, *args)

    with patch.object(MemoryStore, "_outlives", outlives):
        yield


@mutant("the end of a run does not wake a parked parent")
def end_wakes_nobody() -> Iterator[None]:
    """It lies in the mailbox, and that is all."""
    real = MemoryStore._end

    def end(self: MemoryStore, run: Any) -> None:
        with patch.object(MemoryStore, "_wake", lambda *_: None):
            real(self, run)

    with patch.object(MemoryStore, "_end", end):
        yield


@mutant("a parent parks although the end that it waits for is there")
def park_ignores_ends() -> Iterator[None]:
    """Nobody will wake it."""
    real = MemoryStore._park
    with patch.object(MemoryStore, "_park", lambda self, op: real(self, op._replace(awaited=()))):
        yield


@mutant("nobody looks for a parent when its child has ended here")
def no_look_after_end() -> Iterator[None]:
    """A store tells only what others write."""
    real = Driver._finished

    def finished(self: Driver, ended: Any, answer: Any) -> None:
        real(self, ended, Verdict.DONE if answer is Verdict.TOLD else answer)

    with (
        patch.object(Driver, "_finished", finished),
        patch.object(JournalEngine, "_may_have_place", lambda self: False),  # which would find it after a second
    ):
        yield


@mutant("the seed of a child is drawn anew each time that it is started")
def child_seed_random() -> Iterator[None]:
    """Whoever starts it again takes it for somebody else's."""
    numbers = count()
    with patch.object(Execution, "child_seed", lambda *_: next(numbers).to_bytes(16, "big")):
        yield


@mutant("a parent that is no longer held starts children")
def start_unfenced() -> Iterator[None]:
    """The fence of a link is not checked."""
    real = MemoryStore._start

    def start(self: MemoryStore, op: Any) -> Any:
        if op.link is None:
            return real(self, op)
        with patch.object(MemoryStore, "_held", lambda store, key, _: store._runs[key]):
            return real(self, op)

    with patch.object(MemoryStore, "_start", start):
        yield


@mutant("a child goes on that its parent no longer waits for")
def cancel_stays_here() -> Iterator[None]:
    """The cancellation of a call does not go down."""
    with patch.object(Children, "withdrawn", lambda *_: None):
        yield


@mutant("a child that is at work here is taken up once more")
def child_taken_twice() -> Iterator[None]:
    """Its parent came back into memory, and started it again."""
    real = JournalEngine.take

    def take(self: JournalEngine, run: Any, *args: Any) -> None:
        known = self._drivers.pop(run.key, None)
        real(self, run, *args)
        if known is not None:
            self._drivers.setdefault(run.key, known)

    is_first = lambda self, started: started.created and started.run.state == "running"  # noqa: E731
    with patch.object(Claims, "_is_new_here", is_first), patch.object(JournalEngine, "take", take):
        yield


# Cancelling


@mutant("a run completes although it is to be cancelled")
def finish_ignores_cancel() -> Iterator[None]:
    """The cancel came a moment before its end."""
    real = MemoryStore._finish
    with patch.object(MemoryStore, "_finish", lambda self, op: real(self, op._replace(heed_cancel=False))):
        yield


@mutant("a run parks although it is to be cancelled")
def park_ignores_cancel() -> Iterator[None]:
    """It sleeps until its timer is due."""
    real = MemoryStore._park

    def park(self: MemoryStore, op: Any) -> Any:
        held = self._held(op.key, op.epoch)
        asked = held is not None and held.cancel is Cancel.ASKED
        if asked:
            self._put(replace(self._runs[op.key], cancel=Cancel.NO))
        answer = real(self, op)
        if asked:
            self._put(replace(self._runs[op.key], cancel=Cancel.ASKED))
        return answer

    with patch.object(MemoryStore, "_park", park):
        yield


@mutant("a cancellation is recorded again by the next holder")
def cancel_twice() -> Iterator[None]:
    """A second blow, which hits the clean-up."""
    real = Driver.__init__

    def init(self: Driver, host: Any, run: Any, definition: Any) -> None:
        real(self, host, run, definition)
        self._cancel_asked, self._cancel_sent = run.cancel is not Cancel.NO, False

    with patch.object(Driver, "__init__", init):
        yield


@mutant("a finish that is refused for a cancel is made again without heeding it")
def refused_finish_forced() -> Iterator[None]:
    """Whoever cancelled was told that it is accepted."""
    real = Driver._finished

    def finished(self: Driver, ended: Any, answer: Any) -> None:
        if answer is Verdict.REFUSED:
            from holdfast.engine.run_outcome import End

            self._finish(End(ended.state, ended.output, ended.error), ended.rewind, heed_cancel=False)
        else:
            real(self, ended, answer)

    with patch.object(Driver, "_finished", finished):
        yield


@mutant("a cancel does not wake a parked run")
def cancel_wakes_nobody() -> Iterator[None]:
    """It is cancelled when its timer is due, or never."""
    real = MemoryStore._cancel

    def cancel(self: MemoryStore, op: Any) -> Any:
        before = self._by_id(op.run_id)
        answer = real(self, op)
        after = self._by_id(op.run_id)
        if before is not None and after is not None and not after.state.is_terminal:
            self._put(replace(after, wake_at=before.wake_at))
        return answer

    with patch.object(MemoryStore, "_cancel", cancel):
        yield


# Compensations


@mutant("steps are undone in the order in which they were done")
def undone_forwards() -> Iterator[None]:
    """The first first, although the others rest on it."""
    with patch.object(UndoLog, "pop", lambda self: self._steps.pop(0)):
        yield


@mutant("undoing begins while outcomes of cancelled steps are on their way")
def undone_too_early() -> Iterator[None]:
    """They are undone last, although others rest on what came before them."""
    real = Execution.begin_undoing

    def begin(self: Execution, upcoming: Any = (), *, expected: Any = ()) -> bool:
        return real(self)

    with patch.object(Execution, "begin_undoing", begin):
        yield


@mutant("a step that was done after the workflow had cancelled it is not undone")
def holes_not_undone() -> Iterator[None]:
    """Its outcome was on its way."""
    with patch.object(Execution, "_note_hole", lambda *_: None):
        yield


@mutant("a step whose outcome came after the workflow's end is not undone")
def late_holes_not_undone() -> Iterator[None]:
    """The run has ended, as far as its code goes."""
    real = Execution.leftover

    def leftover(self: Execution, record: Any) -> None:
        with patch.object(Execution, "_go_on_ending", lambda *_: None):
            real(self, record)

    with patch.object(Execution, "leftover", leftover):
        yield


# Pausing, and the switch


@mutant("a paused run is claimed")
def paused_claimed() -> Iterator[None]:
    """When its timer is due, or a signal comes."""
    real = MemoryStore._sleeping

    def sleeping(self: MemoryStore, workflows: Any, queues: Any) -> Any:
        paused = [self._runs[key] for key in self._unfinished if self._runs[key].paused_at is not None]
        return [*real(self, workflows, queues), *(run for run in paused if run.state == "waiting")]

    with patch.object(MemoryStore, "_sleeping", sleeping):
        yield


@mutant("a pause is forgotten when the run is given back")
def pause_forgotten() -> Iterator[None]:
    """Its worker stopped, or died, before it had heard of it."""
    real = MemoryStore._free
    with patch.object(MemoryStore, "_free", lambda self, run: real(self, replace(run, paused_at=None))):
        yield


@mutant("a worker does not hear of a pause")
def pause_unheard() -> Iterator[None]:
    """The run goes on for as long as it is held."""
    real = Driver.ask
    with patch.object(Driver, "ask", lambda self, request: real(self, request._replace(pause=False))):
        yield


@mutant("a run that is resumed sleeps on until its timer is due")
def resume_wakes_nobody() -> Iterator[None]:
    """What came meanwhile woke nobody, because it was paused."""
    real = MemoryStore._resume

    def resume(self: MemoryStore, op: Any) -> Any:
        before = self._by_id(op.run_id)
        answer = real(self, op)
        if answer is Verdict.DONE and before is not None:
            self._put(replace(before, paused_at=None))
        return answer

    with patch.object(MemoryStore, "_resume", resume):
        yield


@mutant("runs of a workflow that is switched off are claimed")
def switch_not_heeded() -> Iterator[None]:
    """Those in memory stand still; the others do not."""
    real = MemoryStore._sleeping

    def sleeping(self: MemoryStore, workflows: Any, queues: Any) -> Any:
        switches, self._switches = self._switches, {}
        try:
            return real(self, workflows, queues)
        finally:
            self._switches = switches

    with patch.object(MemoryStore, "_sleeping", sleeping):
        yield


@mutant("a worker does not hear that a workflow was switched off")
def switch_unheard() -> Iterator[None]:
    """What it holds goes on."""
    with patch.object(Driver, "stand_still", lambda _: None):
        yield


@mutant("a run that stands still is not given back")
def stands_still_for_ever() -> Iterator[None]:
    """Nobody takes it up when its workflow is switched on again."""

    async def look(self: Claims) -> None:
        """Which would find it: a worker gives back the runs that it holds and does not drive."""

    with (
        patch.object(Driver, "stand_still", lambda self: self.gone or self._leave(None)),
        patch.object(Claims, "look_for_unheld", look),
    ):
        yield


# Retrying and forking


@mutant("a retry keeps what the workflow did because of the failure")
def consequences_kept() -> Iterator[None]:
    """Only the record that failed is taken back."""
    real = MemoryStore._taken

    def taken(self: MemoryStore, run: Any) -> Any:
        return [record for record in real(self, run) if record.seq in run.rewind.failed]

    with patch.object(MemoryStore, "_taken", taken):
        yield


@mutant("a run knows only at its end what it had asked for before it failed")
def rewind_too_short() -> Iterator[None]:
    """So a retry takes back too little."""
    real = UndoLog.rewind

    def rewind(self: UndoLog, origins: Any, *args: Any, **options: Any) -> Any:
        return real(self, [one._replace(positions=one.positions + 1) for one in origins], *args, **options)

    with patch.object(UndoLog, "rewind", rewind):
        yield


@mutant("a retry does not put signals back")
def signals_not_put_back() -> Iterator[None]:
    """They were consumed by records that are gone."""
    real = MemoryStore._rewind

    def again(self: MemoryStore, run: Any, affected: Any) -> None:
        with patch.object(MemoryStore, "_post", lambda *_: None):
            real(self, run, affected)

    with patch.object(MemoryStore, "_rewind", again):
        yield


@mutant("a child that is reopened with its parent tells nobody when it ends")
def link_not_armed_again() -> Iterator[None]:
    """The link remembers that it has told."""
    with patch.object(MemoryStore, "_redo", lambda self, place, *_: self._drop_end(place)):
        yield


@mutant("a retry does not reopen the children that failed")
def children_not_reopened() -> Iterator[None]:
    """The parent goes on, to fail for the same reason."""
    real = MemoryStore._may_reopen

    def may_reopen(self: MemoryStore, run: Any, op: Any, affected: Any) -> Any:
        answer = real(self, run, op, affected)
        for key in list(affected)[1:]:
            del affected[key]
        return answer

    with patch.object(MemoryStore, "_may_reopen", may_reopen):
        yield


@mutant("a fork has the idempotency keys of its origin")
def fork_shares_keys() -> Iterator[None]:
    """Whoever it calls takes it for a repetition."""
    real = Chance.own

    def own(self: Chance, purpose: str, position: int) -> bytes:
        seeds, self._seeds = self._seeds, self._seeds[-1:]
        try:
            return real(self, purpose, position)
        finally:
            self._seeds = seeds

    with patch.object(Chance, "own", own):
        yield


@mutant("a fork draws other random numbers than its origin did")
def fork_draws_anew() -> Iterator[None]:
    """Also in the part that it shares."""
    real = Chance.draw
    with patch.object(Chance, "draw", lambda self, purpose, position, _: real(self, purpose, position, 10**9)):
        yield


@mutant("a fork shares one record too many")
def fork_keeps_more() -> Iterator[None]:
    """The step that it is to run again does not run."""
    real = MemoryStore._fork
    with patch.object(MemoryStore, "_fork", lambda self, op: real(self, op._replace(keep=op.keep + 1))):
        yield
