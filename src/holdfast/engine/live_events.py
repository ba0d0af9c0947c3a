"""What is told of steps in flight, so that somebody elsewhere can follow a run live.

When an attempt of a step begins, and when a model's answer comes piece by piece, that is noted in memory. Nothing is
written yet, and nothing ever waits for it: every tenth of a second, one timer over all the runs of an engine hands what
has gathered to the writer, as *notices*. A step whose outcome is there before its first notice was due has none: it
costs no write, no statement, and no sync. The record of any other deletes its notices (``AppendRecord.clear_notices``):
it says all that they have said.

What gathers is bounded. The pieces of one answer are one text, and as long as the store has not answered the last
notices, no more are handed in: a disk that stands still makes the next notice longer, not the queue.

Notices are fenced like everything that a holder writes. A worker that has lost a run may learn it from them.

Each attempt, and in it each request to another model, is a *part*, so that a reader can tell a text that goes on from
one that begins anew: ``<epoch>.<attempt>.<request>``. The part of a step's outcome follows from its record alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import preview
from holdfast.core.commands import Command
from holdfast.engine.clock import Alarm
from holdfast.engine.definitions import StepCall
from holdfast.stores.live_events import BEGUN, SKIPPED, TEXT
from holdfast.stores.operations import Answer, Notice, TellNotices, Verdict

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import Host

log = logging.getLogger("holdfast.engine")

INTERVAL = 0.1
"""Notices are written at most this often, in seconds, and of what has been in flight for as long."""

CHILD_PART = "child"
"""The part of a run that is waited for: whoever takes its caller over does not begin it anew."""


class Account:
    """What there is to tell of one command in flight."""

    __slots__ = ("_attempt", "_begun", "_command", "_pieces", "_request", "_told", "driver", "due")

    def __init__(self, driver: Driver, command: Command) -> None:
        self.driver = driver
        self.due = 0.0
        """Not told before this time."""
        self._command = command
        self._attempt = 0
        self._begun: float | None = None
        """When it began, as long as that is to be told."""
        self._request = 0
        self._told = 0
        """Characters of the answer that have been handed to the writer."""
        self._pieces: list[str] | None = None
        """Of the answer, since the last time; there are none of most commands."""

    def begin(self, attempt: int, at: float) -> None:
        """An attempt begins; what was said in the one before is void."""
        self._attempt, self._request, self._told = attempt, 0, 0
        self._pieces = None
        self._begun, self.due = at, at + INTERVAL

    def listen(self, request: int) -> Callable[[str], None]:
        """What takes the pieces of the answer to one of the attempt's requests: no more than a list's ``append``."""
        if request != self._request or self._pieces is None:
            self._request, self._told = request, 0
            self._pieces = []
        return self._pieces.append

    @property
    def is_heard(self) -> bool:
        """Whether pieces may come at any time."""
        return self._pieces is not None

    def take(self, now: float) -> list[Notice]:
        """The notices of what was not told yet."""
        notices: list[Notice] = []
        position, stem = self._command.position, f"{self.driver.run.epoch}.{self._attempt}"
        if self._begun is not None:
            part = CHILD_PART if not self._attempt else f"{stem}.0"
            notices.append(Notice(position, part, -1, BEGUN, _json(self._beginning()), self._begun))
            self._begun = None
        if self._pieces and (text := "".join(self._pieces)):
            self._pieces.clear()
            notices.append(Notice(position, f"{stem}.{self._request}", self._told, TEXT, _json(text), now))
            self._told += len(text)
        if notices:
            self.driver.told.add(position)
        return notices

    def _beginning(self) -> dict[str, Any]:
        command = self._command
        told: dict[str, Any] = {"name": command.name, "what": command.kind.label}
        if isinstance(command.call, StepCall):
            call = command.call
            told |= {"arguments": preview(call.step.parameters, call.args, call.kwargs), "attempt": self._attempt}
        else:
            told["run"] = command.call.run_id
        return told


class Teller:
    """Writes what has gathered of all runs of an engine."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[Account, None] = {}
        """Of what there is something to tell, oldest first."""
        self._alarm: Alarm | None = None
        self._unanswered = 0

    def begin(self, account: Account, attempt: int, at: float) -> None:
        """An attempt begins (0 for a run that is waited for, of which there are none)."""
        account.begin(attempt, at)
        self._wait_with(account)

    def listen(self, account: Account, request: int = 0) -> Callable[[str], None]:
        """What is to be called with each piece of an answer."""
        self._wait_with(account)
        return account.listen(request)

    def forget(self, account: Account) -> None:
        """Its outcome is about to be recorded, or it has none: what was not told need not be."""
        self._waiting.pop(account, None)

    def tell_now(self, driver: Driver) -> None:
        """The run is about to leave memory."""
        mine = [account for account in self._waiting if account.driver is driver]
        if mine:
            self._tell(mine)

    def rest(self) -> None:
        """Some run has come to rest: if nothing is to be told, the timer need not run."""
        if self._alarm is not None and not self._waiting:
            self._alarm.cancel()
            self._alarm = None

    def stop(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        self.rest()

    def tell_skipped(self, driver: Driver) -> None:
        """Write which steps of a class workflow its run has skipped, in the transaction that ends the run."""
        now, run = self._host.clock.now(), driver.run
        notices = tuple(
            Notice(-1, str(run.epoch), number, SKIPPED, _json({"name": name, "position": position}), now)
            for number, (name, position) in sorted(driver.execution.skipped.items())
        )
        if notices:
            self._unanswered += 1
            self._host.writer.submit(TellNotices(run.key, run.epoch, notices), partial(self._answered, driver))

    def _wait_with(self, account: Account) -> None:
        self._waiting[account] = None
        if self._alarm is None:
            self._set_alarm()

    def _set_alarm(self) -> None:
        clock = self._host.clock
        self._alarm = clock.call_at(clock.now() + INTERVAL, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._unanswered:
            return  # set again when they have been answered
        now = self._host.clock.now()
        # One that is due later than that has begun before the clock was set back.
        self._tell([account for account in self._waiting if account.due <= now or account.due > now + INTERVAL])
        if self._waiting and not self._unanswered:
            self._set_alarm()

    def _tell(self, accounts: list[Account]) -> None:
        now = self._host.clock.now()
        by_run: dict[Driver, list[Notice]] = {}
        for account in accounts:
            if account.driver.gone or not account.is_heard:
                del self._waiting[account]
            try:
                if not account.driver.gone and (notices := account.take(now)):
                    by_run.setdefault(account.driver, []).extend(notices)
            except Exception:  # of the user's values, perhaps: nothing is told of this step, and all of the others
                log.exception("what a step of run %r is doing could not be told", account.driver.run.id)
                self.forget(account)
        for driver, notices in by_run.items():
            run = driver.run
            self._unanswered += 1
            op = TellNotices(run.key, run.epoch, tuple(notices))
            self._host.writer.submit(op, partial(self._answered, driver))

    def _answered(self, driver: Driver, answer: Answer | BaseException) -> None:
        self._unanswered -= 1
        if self._waiting and self._alarm is None and not self._unanswered:
            self._set_alarm()
        if isinstance(answer, BaseException):
            # Nobody loses anything by it but those who look on, and they have the record.
            log.warning("what steps of run %r are doing could not be told: %s", driver.run.id, answer)
        elif driver.gone:
            pass
        elif answer is Verdict.FENCED:
            driver.lose()
        else:
            self._host.news.tell(driver.run.id)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
