"""What is told of steps in flight, so that somebody elsewhere can follow a run live.

When an attempt of a step begins, and when a model's answer comes piece by piece, that is noted in memory. Nothing is
written yet, and nothing ever waits for it: every tenth of a second, one timer over all the runs of an engine hands what
has gathered to the writer, as *notices*. A step whose outcome is there before its first notice was due has none: it
costs no write, no statement, and no sync. The record of any other deletes its notices
(``AppendRecord.clear_live_events``): it says all that they have said.

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

from holdfast.codec import preview_arguments
from holdfast.core.commands import Command
from holdfast.engine.clock import ScheduledCall
from holdfast.engine.definitions import StepCall
from holdfast.stores.live_events import SKIPPED, STARTED, TEXT
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, OpResult, OpStatus

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver
    from holdfast.engine.host import StepHost

log = logging.getLogger("holdfast.engine")

FLUSH_INTERVAL_S = 0.1
"""Notices are written at most this often, in seconds, and of what has been in flight for as long."""

CHILD_RUN_PART = "child"
"""The part of a run that is waited for: whoever takes its caller over does not begin it anew."""


class LiveEventBuffer:
    """What there is to tell of one command in flight."""

    __slots__ = (
        "_attempt",
        "_command",
        "_request_number",
        "_started_at",
        "_text_parts",
        "_written_length",
        "driver",
        "due_at",
    )

    def __init__(self, driver: Driver, command: Command) -> None:
        self.driver = driver
        self.due_at = 0.0
        """Not told before this time."""
        self._command = command
        self._attempt = 0
        self._started_at: float | None = None
        """When it began, as long as that is to be told."""
        self._request_number = 0
        self._written_length = 0
        """Characters of the answer that have been handed to the writer."""
        self._text_parts: list[str] | None = None
        """Of the answer, since the last time; there are none of most commands."""

    def start_attempt(self, attempt: int, at: float) -> None:
        """An attempt begins; what was said in the one before is void."""
        self._attempt, self._request_number, self._written_length = attempt, 0, 0
        self._text_parts = None
        self._started_at, self.due_at = at, at + FLUSH_INTERVAL_S

    def get_text_appender(self, request_number: int) -> Callable[[str], None]:
        """What takes the pieces of the answer to one of the attempt's requests: no more than a list's ``append``."""
        if request_number != self._request_number or self._text_parts is None:
            self._request_number, self._written_length = request_number, 0
            self._text_parts = []
        return self._text_parts.append

    @property
    def is_streaming(self) -> bool:
        """Whether pieces may come at any time."""
        return self._text_parts is not None

    def take_events(self, now: float) -> list[LiveEvent]:
        """The notices of what was not told yet."""
        notices: list[LiveEvent] = []
        position, stem = self._command.position, f"{self.driver.run.epoch}.{self._attempt}"
        if self._started_at is not None:
            part = CHILD_RUN_PART if not self._attempt else f"{stem}.0"
            notices.append(LiveEvent(position, part, -1, STARTED, _dump_json(self._describe_start()), self._started_at))
            self._started_at = None
        if self._text_parts and (text := "".join(self._text_parts)):
            self._text_parts.clear()
            notices.append(
                LiveEvent(position, f"{stem}.{self._request_number}", self._written_length, TEXT, _dump_json(text), now)
            )
            self._written_length += len(text)
        if notices:
            self.driver.live_event_positions.add(position)
        return notices

    def _describe_start(self) -> dict[str, Any]:
        command = self._command
        told: dict[str, Any] = {"name": command.name, "kind": command.kind.label}
        if isinstance(command.call, StepCall):
            call = command.call
            told |= {
                "arguments": preview_arguments(call.step.parameters, call.args, call.kwargs),
                "attempt": self._attempt,
            }
        else:
            told["run_id"] = command.call.run_id
        return told


class LiveEventWriter:
    """Writes what has gathered of all runs of an engine."""

    def __init__(self, host: StepHost) -> None:
        self._host = host
        self._pending_buffers: dict[LiveEventBuffer, None] = {}
        """Of what there is something to tell, oldest first."""
        self._flush_timer: ScheduledCall | None = None
        self._unanswered_count = 0

    def start_attempt(self, buffer: LiveEventBuffer, attempt: int, at: float) -> None:
        """An attempt begins (0 for a run that is waited for, of which there are none)."""
        buffer.start_attempt(attempt, at)
        self._enqueue(buffer)

    def get_text_appender(self, buffer: LiveEventBuffer, request_number: int = 0) -> Callable[[str], None]:
        """What is to be called with each piece of an answer."""
        self._enqueue(buffer)
        return buffer.get_text_appender(request_number)

    def discard(self, buffer: LiveEventBuffer) -> None:
        """Its outcome is about to be recorded, or it has none: what was not told need not be."""
        self._pending_buffers.pop(buffer, None)

    def flush_run(self, driver: Driver) -> None:
        """The run is about to leave memory."""
        mine = [account for account in self._pending_buffers if account.driver is driver]
        if mine:
            self._write(mine)

    def stop_timer_if_idle(self) -> None:
        """Some run has come to rest: if nothing is to be told, the timer need not run."""
        if self._flush_timer is not None and not self._pending_buffers:
            self._flush_timer.cancel()
            self._flush_timer = None

    def stop(self) -> None:
        """Tell nothing more."""
        self._pending_buffers.clear()
        self.stop_timer_if_idle()

    def write_skipped_steps(self, driver: Driver) -> None:
        """Write which steps of a class workflow its run has skipped, in the transaction that ends the run."""
        now, run = self._host.clock.now(), driver.run
        notices = tuple(
            LiveEvent(-1, str(run.epoch), number, SKIPPED, _dump_json({"name": name, "position": position}), now)
            for number, (name, position) in sorted(driver.execution.skipped_steps.items())
        )
        if notices:
            self._unanswered_count += 1
            self._host.writer.submit(AppendLiveEvents(run.key, run.epoch, notices), partial(self._on_written, driver))

    def _enqueue(self, buffer: LiveEventBuffer) -> None:
        self._pending_buffers[buffer] = None
        if self._flush_timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        clock = self._host.clock
        self._flush_timer = clock.call_at(clock.now() + FLUSH_INTERVAL_S, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        if self._unanswered_count:
            return  # set again when they have been answered
        now = self._host.clock.now()
        # One that is due later than that has begun before the clock was set back.
        self._write(
            [
                account
                for account in self._pending_buffers
                if account.due_at <= now or account.due_at > now + FLUSH_INTERVAL_S
            ]
        )
        if self._pending_buffers and not self._unanswered_count:
            self._start_timer()

    def _write(self, buffers: list[LiveEventBuffer]) -> None:
        now = self._host.clock.now()
        by_run: dict[Driver, list[LiveEvent]] = {}
        for account in buffers:
            if account.driver.is_closed or not account.is_streaming:
                del self._pending_buffers[account]
            try:
                if not account.driver.is_closed and (notices := account.take_events(now)):
                    by_run.setdefault(account.driver, []).extend(notices)
            except Exception:  # of the user's values, perhaps: nothing is told of this step, and all of the others
                log.exception("what a step of run %r is doing could not be told", account.driver.run.id)
                self.discard(account)
        for driver, notices in by_run.items():
            run = driver.run
            self._unanswered_count += 1
            op = AppendLiveEvents(run.key, run.epoch, tuple(notices))
            self._host.writer.submit(op, partial(self._on_written, driver))

    def _on_written(self, driver: Driver, answer: OpResult | BaseException) -> None:
        self._unanswered_count -= 1
        if self._pending_buffers and self._flush_timer is None and not self._unanswered_count:
            self._start_timer()
        if isinstance(answer, BaseException):
            # Nobody loses anything by it but those who look on, and they have the record.
            log.warning("what steps of run %r are doing could not be told: %s", driver.run.id, answer)
        elif driver.is_closed:
            pass
        elif answer is OpStatus.FENCED:
            driver.handle_claim_lost()
        else:
            self._host.change_feed.notify(driver.run.id)


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
