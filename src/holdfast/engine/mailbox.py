"""The mailbox of a held run: what was sent to it and has no record yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.records import RecordKind, Signal
from holdfast.stores.approvals import is_answer, make_answer_name


class Mailbox:
    """Signals by name, and answers and ends of other runs by the waiting position; each is handed out once."""

    def __init__(self) -> None:
        self._signals: dict[str, deque[Signal]] = {}
        self._child_ends: dict[int, Signal] = {}
        self._answers: dict[int, Signal] = {}
        """The newest at each position; older ones belong to approvals that the code no longer requests there."""
        self._last_signal_id = 0
        self._resolved_positions: set[int] = set()
        """Positions with a record that is on its way to the journal."""

    def add(self, signals: Sequence[Signal]) -> None:
        """Add the signals that the store has for this run; known ones are ignored."""
        for signal in signals:
            if signal.id <= self._last_signal_id:
                continue
            self._last_signal_id = signal.id
            if signal.position is None:
                self._signals.setdefault(signal.name, deque()).append(signal)
            elif is_answer(signal.name):
                self._answers[signal.position] = signal
            else:
                self._child_ends[signal.position] = signal

    def __bool__(self) -> bool:
        return bool(self._signals or self._child_ends or self._answers)

    def take_answers(self, execution: Execution) -> Iterator[tuple[Command, Signal]]:
        """The waits that can be answered, each with its answer; the oldest wait gets the oldest signal."""
        for received in (self._child_ends, self._answers) if self._child_ends or self._answers else ():
            for position in [position for position in received if position in execution.open_commands]:
                command = execution.open_commands[position]
                if self._is_addressed_to(received[position], command) and self._mark_resolved(position):
                    yield command, received.pop(position)
        if not self._signals:
            return
        for command in list(execution.open_commands.values()):
            if command.kind is not RecordKind.SIGNAL or not (waiting := self._signals.get(command.name)):
                continue
            if self._mark_resolved(command.position):
                signal = waiting.popleft()
                if not waiting:
                    del self._signals[command.name]
                yield command, signal

    def has_answer(self, command: Command) -> bool:
        """Whether the end of a run or the answer for this command is here, or on its way to the journal."""
        position = command.position
        signal = (self._answers if command.kind is RecordKind.APPROVAL else self._child_ends).get(position)
        return position in self._resolved_positions or (signal is not None and self._is_addressed_to(signal, command))

    @staticmethod
    def _is_addressed_to(signal: Signal, command: Command) -> bool:
        """Whether the command waits for the signal: a deploy or a retry may have put another one at its position."""
        if is_answer(signal.name):
            return command.kind is RecordKind.APPROVAL and signal.name == make_answer_name(command.call.id)
        return command.kind is RecordKind.CHILD

    def _mark_resolved(self, position: int) -> bool:
        if position in self._resolved_positions:
            return False
        self._resolved_positions.add(position)
        return True
