"""Mistakes that the engine could make: each patches one of its classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdfast.core.loop import RunLoop
from holdfast.engine import journal_writer
from holdfast.engine.claims import Claims
from holdfast.engine.driver import Driver
from holdfast.engine.held_runs import HeldRuns
from holdfast.engine.isolation import Isolation
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.journal_writer import JournalWriter
from holdfast.engine.mailbox import Mailbox
from holdfast.engine.membership import Membership
from holdfast.engine.poller import Poller
from holdfast.engine.recorder import Recorder, RecordWrite
from holdfast.engine.step_run import StepRun
from holdfast.engine.steps_in_flight import StepsInFlight
from holdfast.engine.timers import ClockTimers
from holdfast.stores.operations import AppendRecord, OpStatus, Run, SaveAttempt
from simulation.mutant_registry import register_mutant
from simulation.process_store import ProcessClaims, ProcessStore, ProcessWorkers


@register_mutant("a record is delivered before it is committed")
def delivered_before_commit() -> Iterator[None]:
    """The workflow continues while the write is on its way."""
    real = RecordWrite.__init__

    def init(self: RecordWrite, driver: Driver, record: Any, value: Any) -> None:
        real(self, driver, record, value)
        driver.host.loop.call_soon(driver.on_recorded, record, value)

    def take_answer(self: RecordWrite, answer: Any) -> None:
        driver, record = self._driver, self._record
        if not driver.is_closed:
            driver.recorder.remove_answered(record.position if record.kind.has_position else None)
            driver.handle_answer(lambda _: driver.finish_turn(), driver.handle_claim_lost, driver.fail, answer)

    with patch.object(RecordWrite, "__init__", init), patch.object(RecordWrite, "__call__", take_answer):
        yield


@register_mutant("the lease is not renewed")
def lease_not_renewed() -> Iterator[None]:
    """The pulse beats, and does nothing."""
    with patch.object(ProcessWorkers, "renew_lease", lambda self, worker, lease: True):
        yield


@register_mutant("leases count while the database was away")
def lease_counted_during_outage() -> Iterator[None]:
    """The first worker to reach the database again declares the others dead."""
    with patch.object(Membership, "get_lease_window", lambda self: None):
        yield


@register_mutant("a worker trusts its lease for ever")
def lease_never_expires() -> Iterator[None]:
    """After a long pause it starts steps of runs that others hold."""
    with patch.object(Membership, "has_lease", lambda self: True):
        yield


@register_mutant("no intent is written before a `once` step")
def intent_not_written() -> Iterator[None]:
    """It is begun like any other step."""

    def start(self: StepsInFlight, command: Any) -> None:
        known, driver = self.earlier_attempts.pop(command.position, None), self._driver
        step = self.started[command.position] = StepRun(driver.host, driver, command, known)
        step.launch()

    with patch.object(StepsInFlight, "start", start):
        yield


@register_mutant("a `once` step begins while its intent is still being written")
def intent_not_awaited() -> Iterator[None]:
    """The intent is almost always there in time."""
    real = Recorder.submit

    def submit(self: Recorder, op: Any, then: Any = None) -> None:
        if isinstance(op, SaveAttempt) and then is not None:
            real(self, op, None)
            then()
        else:
            real(self, op, then)

    with patch.object(Recorder, "submit", submit):
        yield


@register_mutant("the run's own lost fence goes unnoticed")
def fence_ignored() -> Iterator[None]:
    """A worker that was fenced continues its steps."""
    real = Driver.handle_answer

    def handle(self: Driver, on_done: Any, on_refused: Any, on_failed: Any, answer: Any) -> None:
        real(self, on_done, on_refused, on_failed, OpStatus.DONE if answer is OpStatus.FENCED else answer)

    with patch.object(Driver, "handle_answer", handle):
        yield


@register_mutant("steps go on when their run is lost")
def steps_not_cancelled() -> Iterator[None]:
    """They end by themselves, some time."""
    with patch.object(StepsInFlight, "cancel_all", lambda self: self.started.clear()):
        yield


@register_mutant("the time to wake is forgotten after a park")
def next_wake_not_noted() -> Iterator[None]:
    """A run that is parked until a timer is due is parked forever."""
    real = Driver.park

    def park(self: Driver) -> None:
        with patch.object(ClockTimers, "get_next_due_at", lambda _: None):
            real(self)

    with patch.object(Driver, "park", park):
        yield


@register_mutant("timers that are due together fire in the wrong order")
def timers_reversed() -> Iterator[None]:
    """The latest first."""
    real = RunLoop.take_due_timers
    with patch.object(RunLoop, "take_due_timers", lambda self, now: real(self, now)[::-1]):
        yield


@register_mutant("timers fire a little early")
def timers_early() -> Iterator[None]:
    """Half a second before they are due."""
    real = RunLoop.take_due_timers
    with patch.object(RunLoop, "take_due_timers", lambda self, now: real(self, now + 0.5)):
        yield


@register_mutant("a failed commit is not repeated")
def failed_commit_dropped() -> Iterator[None]:
    """Its operations are lost without an error."""
    real = JournalWriter._handle_store_failure

    async def hold(self: JournalWriter, batch: Any, error: Any) -> None:
        await real(self, [one for one in batch if not isinstance(one[0], AppendRecord)], error)

    with patch.object(JournalWriter, "_handle_store_failure", hold):
        yield


@register_mutant("a commit of unknown outcome is repeated under new numbers")
def commit_repeated_as_new() -> Iterator[None]:
    """The first try was written too."""
    real = JournalWriter._handle_store_failure

    async def hold(self: JournalWriter, batch: Any, error: Any) -> None:
        await real(self, [(_renumber(op), done) for op, done in batch], error)

    with patch.object(JournalWriter, "_handle_store_failure", hold):
        yield


@register_mutant("a commit that failed in a way that no store should is taken to be impossible")
def unknown_outcome_is_a_failure() -> Iterator[None]:
    """The run fails, although it may have been written, and would be at the next try."""
    with patch.object(journal_writer, "MAX_TRIES", 1):
        yield


def _renumber(op: Any) -> Any:
    if not isinstance(op, AppendRecord):
        return op
    return op._replace(record=op.record._replace(seq=op.record.seq + 1))


@register_mutant("a worker that was declared dead keeps its runs")
def dead_worker_keeps_runs() -> Iterator[None]:
    """It registers again and continues where it was."""
    real = Membership._on_declared_dead

    def declared_dead(self: Membership) -> None:
        with patch.object(self._host, "list_drivers", list):
            real(self)

    with patch.object(Membership, "_on_declared_dead", declared_dead):
        yield


@register_mutant("a run is read before it is claimed")
def history_read_before_claim() -> Iterator[None]:
    """What its last holder wrote in between is missing."""
    real_next, real_histories = ProcessClaims.get_next_wake_at, ProcessStore.get_histories

    async def next_wake(self: ProcessClaims, **options: Any) -> Any:
        store = self._store
        store.read_early = {}  # type: ignore[attr-defined]
        for key in list(store.database._runs):
            store.read_early[key] = (await real_histories(store, [key]))[0]  # type: ignore[attr-defined]
        return await real_next(self, **options)

    async def histories(self: ProcessStore, keys: Any) -> Any:
        known = self.read_early  # type: ignore[attr-defined]
        return [known[key] if key in known else (await real_histories(self, [key]))[0] for key in keys]

    with (
        patch.object(ProcessClaims, "get_next_wake_at", next_wake),
        patch.object(ProcessStore, "get_histories", histories),
    ):
        yield


@register_mutant("steps in flight start again before timers that are due have fired")
def steps_before_timers() -> Iterator[None]:
    """A paid call begins, only to be cancelled."""
    with patch.object(Driver, "_record_what_is_due", lambda self: False):
        yield


@register_mutant("signals are handed to waits newest first")
def signals_newest_first() -> Iterator[None]:
    """A stack where a queue was meant."""

    real = Mailbox.take_answers

    def answers(self: Mailbox, execution: Any) -> Any:
        for waiting in self._signals.values():
            waiting.reverse()
        yield from list(real(self, execution))
        for waiting in self._signals.values():
            waiting.reverse()

    with patch.object(Mailbox, "take_answers", answers):
        yield


@register_mutant("the signal cursor skips runs that are only just being taken up")
def cursor_skips_starting_runs() -> Iterator[None]:
    """A signal that came in that moment is never looked for again."""

    async def fetch(self: Claims) -> None:
        holder = self._host
        found = await holder.store.claims.get_new_signals(holder.worker_id, self._signal_cursor)
        self._signal_cursor = found.cursor
        drivers = [self._held_runs.drivers.get(key) for key, _ in found.signals]
        await self._fetch_requests()
        for driver, (_, signal) in zip(drivers, found.signals, strict=True):
            if driver is not None:
                driver.add_signals([signal])

    with patch.object(Claims, "fetch_changes", fetch):
        yield


@register_mutant("a worker takes other runs beside one that is to be tried alone")
def isolation_not_kept() -> Iterator[None]:
    """Its deaths never count, so it keeps killing workers."""
    with patch.object(Isolation, "is_exclusive", False):
        yield


@register_mutant("a run given in an answer that got lost stays where it is")
def unacknowledged_claim_kept() -> Iterator[None]:
    """The run is held by a worker that does not know it."""

    async def look(self: Claims) -> None:
        """Which would find it, a minute later."""

    with (
        patch.object(Claims, "note_unacknowledged", lambda self: None),
        patch.object(Claims, "release_unacknowledged", look),
    ):
        yield


@register_mutant("the lease is let go before the hand-over is done")
def heartbeat_stopped_early() -> Iterator[None]:
    """A slow hand-over is taken for a death."""
    real = JournalEngine._retire

    async def hand_over(self: JournalEngine) -> None:
        self._heartbeat.stop()
        await real(self)

    with patch.object(JournalEngine, "_retire", hand_over):
        yield


@register_mutant("a run claimed by the worker that was declared dead is taken up by the one it became")
def stale_claim_accepted() -> Iterator[None]:
    """The answer came late; the new registration seems to cover it."""
    real = HeldRuns.load

    def take(self: HeldRuns, run: Any, definition: Any, history: Any) -> None:
        with patch.object(self._host.membership, "is_reregistering", False):
            real(self, replace(run, owner=self._host.worker_id), definition, history)

    with patch.object(HeldRuns, "load", take):
        yield


@register_mutant("nobody looks for the next run of a limited queue when one has left")
def freed_slot_not_noticed() -> Iterator[None]:
    """A worker notices only the writes of others."""
    real = JournalEngine.on_run_closed

    def run_over(self: JournalEngine, driver: Driver, run: Run | None) -> None:
        with patch.object(self, "wake", lambda: None):
            real(self, driver, run)

    with (
        patch.object(JournalEngine, "on_run_closed", run_over),
        patch.object(Poller, "_should_poll_freed_slots", lambda self: False),
    ):
        yield
