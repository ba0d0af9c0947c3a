"""A held run's way to the writer: what happened to it is handed in, in order, and it is told when that is durable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNREAD
from holdfast.core.records import Attempt, Kind, Record
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import Answer, AppendRecord, NoteAttempt, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class Recorder:
    """Numbers the records of one run, and knows how much of it is on its way to the store."""

    def __init__(self, driver: Driver) -> None:
        self.next_seq = 0
        self.on_its_way = 0
        """Operations that have not been answered yet."""
        self.expected: Counter[int] = Counter()
        """Positions of commands whose outcomes are on their way to the store, or may be recorded later."""
        self._driver = driver
        self._reset_deliveries = driver.run.has_deaths

    def record(
        self,
        kind: Kind,
        position: int,
        name: str,
        *,
        ok: bool = True,
        payload: bytes | None = None,
        value: Any = UNREAD,
        at: float | None = None,
        started_at: float | None = None,
        attempts: int = 1,
        preview: str = "",
        noted: bool = False,
        consume: int | None = None,
        used: Usage | None = None,
        model: str = "",
        memory: MemoryChange | None = None,
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
            host.worker,
            run.epoch,
            preview,
        )
        self.next_seq += 1
        reset, self._reset_deliveries = self._reset_deliveries, False
        then = partial(self._driver.recorded, record, value)
        told = position in self._driver.told and kind.has_position
        if told:
            self._driver.told.remove(position)
        op = AppendRecord(run.key, record, consume, noted, reset, used, memory, told, model)
        self._submit(op, then, position if kind.has_position else None)

    def note(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        """Keep what is known of a step in flight."""
        run = self._driver.run
        self._submit(NoteAttempt(run.key, run.epoch, attempt), then)

    def expect(self, position: int | None = None) -> None:
        """Something else of this run is on its way to the store; or what comes of the command at this position."""
        self.on_its_way += 1
        if position is not None:
            self.expected[position] += 1
        self._driver.host.run_busy(self._driver)

    def answered(self, position: int | None = None) -> None:
        """It has been answered."""
        self.on_its_way -= 1
        if position is not None:
            self.expected[position] -= 1
            if not self.expected[position]:
                del self.expected[position]
        if news := self._driver.host.news:
            news.tell(self._driver.run.id)

    def _submit(
        self, op: AppendRecord | NoteAttempt, then: Callable[[], None] | None, position: int | None = None
    ) -> None:
        self.expect(position)
        self._driver.host.writer.submit(op, partial(self._committed, then, position))

    def _committed(self, then: Callable[[], None] | None, position: int | None, answer: Answer | BaseException) -> None:
        driver = self._driver
        self.answered(position)
        if driver.gone:
            return
        if isinstance(answer, BaseException):
            driver.fail(answer)
        elif answer is not Verdict.DONE:
            driver.lose()
        elif then is not None:
            then()
        else:
            driver.rest()
