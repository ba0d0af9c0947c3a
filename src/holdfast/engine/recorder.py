"""Submits the writes of a held run to the writer, in order, and tells the driver when they are durable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNDECODED, Command
from holdfast.core.records import Attempt, Record, RecordKind, make_constructor
from holdfast.engine.phase import Phase
from holdfast.engine.step_outcome import StepOutcome
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendRecord, OpResult, OpStatus, SaveAttempt

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.telemetry.telemetry import StepTelemetry


_make_record, _make_append = make_constructor(Record), make_constructor(AppendRecord)
_DONE, _GONE = OpStatus.DONE, Phase.GONE


class RecordWrite:
    """A record on its way to the store; called with the store's answer. Each step makes one, so it is one object."""

    __slots__ = ("_driver", "_record", "_value")

    def __init__(self, driver: Driver, record: Record, value: Any) -> None:
        self._driver = driver
        self._record = record
        self._value = value

    def __call__(self, answer: OpResult | BaseException) -> None:
        """The store has answered."""
        driver, record = self._driver, self._record
        if driver.phase is _GONE:
            return
        driver.recorder.remove_answered(record.position if record.kind.has_position else None)
        if answer is _DONE:
            driver.on_recorded(record, self._value)
        else:
            driver.handle_answer(self._on_done, driver.handle_claim_lost, driver.fail, answer)

    def _on_done(self, _: OpResult) -> None:
        self._driver.on_recorded(self._record, self._value)


class ObservedWrite(NamedTuple):
    """The write of a step's outcome that is seen by operators when it is durable."""

    write: RecordWrite
    telemetry: StepTelemetry
    record: Record
    outcome: StepOutcome

    def __call__(self, answer: OpResult | BaseException) -> None:
        """The store has answered."""
        if answer is _DONE:
            self.telemetry.end(self.record, self.outcome)
        self.write(answer)


class Recorder:
    """Numbers the records of one run, and counts the writes that are on their way to the store."""

    def __init__(self, driver: Driver) -> None:
        self.next_seq = 0
        self.pending_count = 0
        """Operations without an answer."""
        self.expected_positions: dict[int, int] = {}
        """Positions of commands with an outcome that is on its way to the store, or may be recorded later; how many."""
        self.live_event_positions: set[int] = set()
        """Positions that may have live events, which the record at the position deletes."""
        self._driver = driver
        self._should_reset_delivery_count = driver.run.has_worker_deaths

    def record(
        self,
        kind: RecordKind,
        position: int,
        name: str,
        *,
        ok: bool = True,
        payload: bytes | None = None,
        value: Any = UNDECODED,
        at: float | None = None,
        started_at: float | None = None,
        attempts: int = 1,
        preview: str = "",
        has_attempt_row: bool = False,
        consumed_signal_id: int | None = None,
        usage: Usage | None = None,
        model: str = "",
        memory_change: MemoryChange | None = None,
    ) -> None:
        """Append an outcome to the journal; the workflow sees it when it is durable."""
        now = self._driver.host.clock.now()
        outcome = StepOutcome(
            ok,
            payload,
            now if started_at is None else started_at,
            attempts,
            preview,
            value,
            has_attempt_row,
            usage,
            model,
            memory_change,
        )
        self._append(kind, position, name, outcome, now if at is None else at, consumed_signal_id)

    def record_step(self, command: Command, outcome: StepOutcome, telemetry: StepTelemetry | None = None) -> None:
        """Append the outcome of a step."""
        now = self._driver.host.clock.now()
        self._append(command.kind, command.position, command.name, outcome, now, telemetry=telemetry)

    def _append(
        self,
        kind: RecordKind,
        position: int,
        name: str,
        outcome: StepOutcome,
        at: float,
        consumed_signal_id: int | None = None,
        *,
        telemetry: StepTelemetry | None = None,
    ) -> None:
        driver = self._driver
        run, host = driver.run, driver.host
        if kind is not RecordKind.CALL and driver.execution.unsaved_calls:
            self.record_calls()
        ok, payload, started_at, attempts, preview, value, has_attempt_row, usage, model, memory_change = outcome
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        record = _make_record(
            (seq, kind, position, name, ok, payload, at, started_at, attempts, host.worker_id, run.epoch, preview)
        )
        reset, self._should_reset_delivery_count = self._should_reset_delivery_count, False
        has_position = kind.has_position
        has_live_events = has_position and position in self.live_event_positions
        if has_live_events:
            self.live_event_positions.remove(position)
        op = _make_append(
            (
                *(run.key, record, consumed_signal_id, has_attempt_row, reset),
                *(usage, memory_change, has_live_events, model, False),
            )
        )
        self.add_pending(position if has_position else None)
        write = RecordWrite(driver, record, value)
        host.writer.submit(op, write if telemetry is None else ObservedWrite(write, telemetry, record, outcome))

    def record_calls(self) -> None:
        """Append the calls of a program that are not in the journal yet, before anything that belongs to them."""
        execution = self._driver.execution
        unsaved, execution.unsaved_calls = execution.unsaved_calls, ()
        for call in unsaved:
            self.record(RecordKind.CALL, call.position, call.name, payload=call.identity.encode())

    def save_attempt(self, attempt: Attempt, on_durable: Callable[[], None] | None = None) -> None:
        """Save the state of a step in flight."""
        run = self._driver.run
        self.submit(SaveAttempt(run.key, run.epoch, attempt), on_durable)

    def add_pending(self, position: int | None = None) -> None:
        """A write is on its way to the store; with a position, the outcome of that command."""
        self.pending_count += 1
        if position is not None:
            expected = self.expected_positions
            expected[position] = expected.get(position, 0) + 1
        self._driver.host.on_run_busy(self._driver)

    def remove_answered(self, position: int | None = None) -> None:
        """The store has answered it."""
        self.pending_count -= 1
        if position is not None:
            expected = self.expected_positions
            expected[position] -= 1
            if not expected[position]:
                del expected[position]
        self._driver.host.change_feed.notify(self._driver.run.id)

    def submit(
        self,
        op: SaveAttempt | RequestApproval,
        on_durable: Callable[[], None] | None = None,
    ) -> None:
        """Submit a write of this run that is fenced; by default the driver finishes its turn when it is durable."""
        if self._driver.execution.unsaved_calls:
            self.record_calls()
        self.add_pending()
        self._driver.host.writer.submit(op, partial(self._on_committed, on_durable))

    def _on_committed(self, on_durable: Callable[[], None] | None, answer: OpResult | BaseException) -> None:
        driver = self._driver
        if driver.phase is _GONE:
            return
        self.remove_answered()
        done = on_durable or driver.finish_turn
        driver.handle_answer(lambda _: done(), driver.handle_claim_lost, driver.fail, answer)
