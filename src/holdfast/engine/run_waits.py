"""What a held run waits for from outside: signals, people's answers, and the ends of other runs.

They arrive in the ``mailbox``, and are recorded when the workflow waits for them. ``child_runs`` starts and awaits
other runs, and ``run_approvals`` asks people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.commands import Command
from holdfast.core.records import RecordKind, Signal
from holdfast.engine.child_runs import ChildRuns
from holdfast.engine.mailbox import Mailbox
from holdfast.engine.run_approvals import RunApprovals

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class RunWaits:
    """The waits of a driver's run; made for a run that has some.

    Args:
        driver: the driver.
        links: the links to other runs that existed when the run came into memory: see ``History.links``.
    """

    def __init__(self, driver: Driver, links: Mapping[int, tuple[str, bytes]]) -> None:
        self._driver = driver
        self._mailbox = Mailbox()
        self._child_runs = ChildRuns(driver, links)
        self._approvals = RunApprovals(driver)

    def add_signals(self, signals: Sequence[Signal]) -> None:
        """Add the signals that the store has for this run; known ones are ignored."""
        self._mailbox.add(signals)

    def start(self, command: Command) -> None:
        """Start the run or request the approval that a new command waits for, unless its answer is here."""
        if command.kind is RecordKind.SIGNAL or self._mailbox.has_answer(command):
            return
        if command.kind is RecordKind.APPROVAL:
            self._approvals.request(command)
        else:
            self._child_runs.start_or_link(command)

    def withdraw(self, command: Command) -> None:
        """The workflow no longer waits."""
        if command.kind is RecordKind.CHILD:
            self._child_runs.withdraw(command)
        elif command.kind is RecordKind.APPROVAL:
            self._approvals.withdraw(command)

    def record_answers(self) -> None:
        """Record the answers that have arrived for open waits."""
        if not self._mailbox:
            return
        for command, signal in self._mailbox.take_answers(self._driver.execution):
            if command.kind is RecordKind.CHILD:
                self._child_runs.record_end(command, signal)
            elif command.kind is RecordKind.APPROVAL:
                self._approvals.record_answer(command, signal)
            else:
                self._driver.recorder.record(
                    RecordKind.SIGNAL,
                    command.position,
                    command.name,
                    payload=signal.payload,
                    started_at=signal.sent_at,
                    consumed_signal_id=signal.id,
                )
