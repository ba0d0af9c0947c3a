"""A held run's way to the writer: what happened to it is handed in, in order, and it is told when that is durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNDECODED
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendRecord, OpResult, OpStatus, SaveAttempt

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class Recorder:
    """Numbers the records of one run, and knows how much of it is on its way to the store."""

    def __init__(self, driver: Driver) -> None:
        self.next_seq = 0
        self.pending_count = 0
        """Operations that have not been answered yet."""
        self.expected_positions: Counter[int] = Counter()
        """Positions of commands whose outcomes are on their way to the store, or may be recorded later."""
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
        then = partial(self._driver.on_recorded, record, value)
        told = position in self._driver.live_event_positions and kind.has_position
        if told:
            self._driver.live_event_positions.remove(position)
        op = AppendRecord(
            run.key, record, consumed_signal_id, has_attempt_row, reset, usage, memory_change, told, model
        )
        self._submit(op, then, position if kind.has_position else None)

    def save_attempt(self, attempt: Attempt, on_durable: Callable[[], None] | None = None) -> None:
        """Keep what is known of a step in flight."""
        run = self._driver.run
        self._submit(SaveAttempt(run.key, run.epoch, attempt), on_durable)

    def add_pending(self, position: int | None = None) -> None:
        """Something else of this run is on its way to the store; or what comes of the command at this position."""
        self.pending_count += 1
        if position is not None:
            self.expected_positions[position] += 1
        self._driver.host.on_run_busy(self._driver)

    def remove_answered(self, position: int | None = None) -> None:
        """It has been answered."""
        self.pending_count -= 1
        if position is not None:
            self.expected_positions[position] -= 1
            if not self.expected_positions[position]:
                del self.expected_positions[position]
        if news := self._driver.host.change_feed:
            news.notify(self._driver.run.id)

    def _submit(
        self, op: AppendRecord | SaveAttempt, on_durable: Callable[[], None] | None, position: int | None = None
    ) -> None:
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
