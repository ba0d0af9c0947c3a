"""What was sent to a held run and has not been recorded yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.core.execution import Command, Execution
from holdfast.core.records import Kind, Signal


class Mailbox:
    """Signals by name, and the ends of other runs by the position that waits for them; each is handed out once."""

    def __init__(self) -> None:
        self._signals: dict[str, deque[Signal]] = {}
        self._ends: dict[int, Signal] = {}
        self._last = 0
        self._answered: set[int] = set()
        """Positions of waits for which a record is on its way."""

    def add(self, signals: Sequence[Signal]) -> None:
        """What is in the store for this run; what is known already is passed over."""
        for signal in signals:
            if signal.id <= self._last:
                continue
            self._last = signal.id
            if signal.position is None:
                self._signals.setdefault(signal.name, deque()).append(signal)
            else:
                self._ends[signal.position] = signal

    def answers(self, execution: Execution) -> Iterator[tuple[Command, Signal]]:
        """The waits that can be answered, each with its answer: the oldest signal goes to the oldest wait."""
        if self._ends:
            for position in [position for position in self._ends if position in execution.open]:
                # A retry may have put another command in the place of one that waited for a run.
                if execution.open[position].kind is Kind.CHILD and self._take(position):
                    yield execution.open[position], self._ends.pop(position)
        if not self._signals:
            return
        for command in list(execution.open.values()):
            if command.kind is not Kind.SIGNAL or not (waiting := self._signals.get(command.name)):
                continue
            if self._take(command.position):
                signal = waiting.popleft()
                if not waiting:
                    del self._signals[command.name]
                yield command, signal

    def has_end(self, position: int) -> bool:
        """Whether the end of the run that this command waits for is here, or on its way to the journal."""
        return position in self._ends or position in self._answered

    def _take(self, position: int) -> bool:
        if position in self._answered:
            return False
        self._answered.add(position)
        return True
