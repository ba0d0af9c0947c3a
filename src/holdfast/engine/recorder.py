"""Submits the writes of a held run to the writer, in order, and tells the driver when they are durable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNDECODED, Command
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.engine.step_outcome import StepOutcome
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendRecord, OpResult, SaveAttempt

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


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
        driver.recorder.remove_answered(record.position if record.kind.has_position else None)
        driver.handle_answer(self._on_done, driver.handle_claim_lost, driver.fail, answer)

    def _on_done(self, _: OpResult) -> None:
        self._driver.on_recorded(self._record, self._value)


class Recorder:
    """Numbers the records of one run, and counts the writes that are on their way to the store."""

    def __init__(self, driver: Driver) -> None:
        self.next_seq = 0
        self.pending_count = 0
        """Operations without an answer."""
        self.expected_positions: dict[int, int] = {}
        """Positions of commands with an outcome that is on its way to the store, or may be recorded later; how many."""
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
        driver = self._driver
        run, host = driver.run, driver.host
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        now = host.clock.now()
        at = now if at is None else at
        started_at = now if started_at is None else started_at
        record = Record(
            seq, kind, position, name, ok, payload, at, started_at, attempts, host.worker_id, run.epoch, preview
        )
        reset, self._should_reset_delivery_count = self._should_reset_delivery_count, False
        has_position = kind.has_position
        has_live_events = has_position and position in driver.live_event_positions
        if has_live_events:
            driver.live_event_positions.remove(position)
        op = AppendRecord(
            run.key, record, consumed_signal_id, has_attempt_row, reset, usage, memory_change, has_live_events, model
        )
        self.add_pending(position if has_position else None)
        host.writer.submit(op, RecordWrite(driver, record, value))

    def record_step(self, command: Command, outcome: StepOutcome) -> None:
        """Append the outcome of a step."""
        self.record(
            command.kind,
            command.position,
            command.name,
            ok=outcome.ok,
            payload=outcome.payload,
            value=outcome.value,
            started_at=outcome.started_at,
            attempts=outcome.attempts,
            preview=outcome.preview,
            has_attempt_row=outcome.has_attempt_row,
            usage=outcome.usage,
            model=outcome.model,
            memory_change=outcome.memory_change,
        )

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
        if feed := self._driver.host.change_feed:
            feed.notify(self._driver.run.id)

    def submit(
        self,
        op: SaveAttempt | RequestApproval,
        on_durable: Callable[[], None] | None = None,
    ) -> None:
        """Submit a write of this run that is fenced; by default the driver finishes its turn when it is durable."""
        self.add_pending()
        self._driver.host.writer.submit(op, partial(self._on_committed, on_durable))

    def _on_committed(self, on_durable: Callable[[], None] | None, answer: OpResult | BaseException) -> None:
        driver = self._driver
        self.remove_answered()
        done = on_durable or driver.finish_turn
        driver.handle_answer(lambda _: done(), driver.handle_claim_lost, driver.fail, answer)
