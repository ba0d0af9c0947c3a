"""Submits the writes of a held run to the writer, in order, and tells the driver when they are durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNDECODED
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendRecord, OpResult, OpStatus, SaveAttempt

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class Recorder:
    """Numbers the records of one run, and counts the writes that are on their way to the store."""

    def __init__(self, driver: Driver) -> None:
        self.next_seq = 0
        self.pending_count = 0
        """Operations without an answer."""
        self.expected_positions: Counter[int] = Counter()
        """Positions of commands with an outcome that is on its way to the store, or may be recorded later."""
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
        run, host = self._driver.run, self._driver.host
        now = host.clock.now()
        record = Record(
            self.next_seq,
            kind,
            position,
            name,
            ok,
            payload,
            now if at is None else at,
            now if started_at is None else started_at,
            attempts,
            host.worker_id,
            run.epoch,
            preview,
        )
        self.next_seq += 1
        reset, self._should_reset_delivery_count = self._should_reset_delivery_count, False
        has_live_events = position in self._driver.live_event_positions and kind.has_position
        if has_live_events:
            self._driver.live_event_positions.remove(position)
        op = AppendRecord(
            run.key, record, consumed_signal_id, has_attempt_row, reset, usage, memory_change, has_live_events, model
        )
        on_durable = partial(self._driver.on_recorded, record, value)
        self.submit(op, on_durable, position if kind.has_position else None)

    def save_attempt(self, attempt: Attempt, on_durable: Callable[[], None] | None = None) -> None:
        """Save the state of a step in flight."""
        run = self._driver.run
        self.submit(SaveAttempt(run.key, run.epoch, attempt), on_durable)

    def add_pending(self, position: int | None = None) -> None:
        """A write is on its way to the store; with a position, the outcome of that command."""
        self.pending_count += 1
        if position is not None:
            self.expected_positions[position] += 1
        self._driver.host.on_run_busy(self._driver)

    def remove_answered(self, position: int | None = None) -> None:
        """The store has answered it."""
        self.pending_count -= 1
        if position is not None:
            self.expected_positions[position] -= 1
            if not self.expected_positions[position]:
                del self.expected_positions[position]
        if feed := self._driver.host.change_feed:
            feed.notify(self._driver.run.id)

    def submit(
        self,
        op: AppendRecord | SaveAttempt | RequestApproval,
        on_durable: Callable[[], None] | None = None,
        position: int | None = None,
    ) -> None:
        """Submit a write of this run that is fenced; by default the driver finishes its turn when it is durable."""
        self.add_pending(position)
        self._driver.host.writer.submit(op, partial(self._on_committed, on_durable, position))

    def _on_committed(
        self, on_durable: Callable[[], None] | None, position: int | None, answer: OpResult | BaseException
    ) -> None:
        driver = self._driver
        self.remove_answered(position)
        if driver.is_closed:
            return
        if isinstance(answer, BaseException):
            driver.fail(answer)
        elif answer is not OpStatus.DONE:
            driver.handle_claim_lost()
        elif on_durable is not None:
            on_durable()
        else:
            driver.finish_turn()
