"""Live events of steps in flight, so that other processes can follow a run live.

When an attempt of a step begins, and when a piece of a model's answer arrives, that is noted in memory. Nothing waits
for it to be written: every tenth of a second, one timer for all runs of an engine submits what has gathered to the
writer. A step that ends before its first event is due has none, and costs no write, no statement, and no sync. The
record of any other step deletes its live events (``AppendRecord.clear_live_events``), because it contains all of them.

The buffers are bounded. The pieces of one answer are one text, and while the last events have no answer from the store,
no more are submitted: a slow disk makes the next event longer, not the queue.

Live events are fenced like every write of a holder. A worker that has lost a run may learn it from them.

Each attempt, and within it each request to another model, is a *part*: ``<epoch>.<attempt>.<request>``. So a reader can
tell a text that continues from one that starts over. The part of a step's outcome follows from its record alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.codec import preview_arguments
from holdfast.core.commands import Command
from holdfast.engine.clock import ScheduledCall
from holdfast.engine.definitions import StepCall
from holdfast.stores.live_events import SKIPPED, STARTED, TEXT
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, OpResult, OpStatus

if TYPE_CHECKING:
    from holdfast.engine.held_run import HeldRun
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

FLUSH_INTERVAL_S = 0.1
"""Events are written at most this often, and only for commands that have been in flight this long."""

CHILD_RUN_PART = "child"
"""The part of an awaited run: a worker that takes its parent over does not start it again."""


class LiveEventSource(Protocol):
    """A command in flight."""

    command: Command
    attempt_number: int
    """The number of the attempt; 0: an awaited run, which has no attempts."""
    started_at: float
    """When the attempt began. Nothing is written until ``FLUSH_INTERVAL_S`` later."""
    live_event_buffer: LiveEventBuffer | None
    """The buffer of the attempt; ``None`` until there is something to write, which most steps never have."""

    @property
    def driver(self) -> HeldRun:
        """The run that issued the command."""
        ...


class LiveEventBuffer:
    """The unwritten live events of one attempt."""

    __slots__ = (
        "_attempt",
        "_command",
        "_held_run",
        "_request_number",
        "_started_at",
        "_text_parts",
        "_written_length",
    )

    def __init__(self, source: LiveEventSource) -> None:
        self._held_run = source.driver
        self._command = source.command
        self._attempt = source.attempt_number
        self._started_at: float | None = source.started_at
        """When the attempt began, until that is written."""
        self._request_number = 0
        self._written_length = 0
        """Characters of the answer that have been submitted to the writer."""
        self._text_parts: list[str] | None = None
        """Pieces of the answer since the last write; ``None``: the command has published no text."""

    def get_text_appender(self, request_number: int) -> Callable[[str], None]:
        """A function for the pieces of the answer to one of the attempt's requests: just a list's ``append``."""
        if request_number != self._request_number or self._text_parts is None:
            self._request_number, self._written_length = request_number, 0
            self._text_parts = []
        return self._text_parts.append

    @property
    def is_streaming(self) -> bool:
        """Whether pieces may arrive at any time."""
        return self._text_parts is not None

    def take_events(self, now: float) -> list[LiveEvent]:
        """The events that have not been written yet."""
        live_events: list[LiveEvent] = []
        position, stem = self._command.position, f"{self._held_run.run.epoch}.{self._attempt}"
        if self._started_at is not None:
            part = CHILD_RUN_PART if not self._attempt else f"{stem}.0"
            start = _dump_json(self._describe_start())
            live_events.append(LiveEvent(position, part, -1, STARTED, start, self._started_at))
            self._started_at = None
        if self._text_parts and (text := "".join(self._text_parts)):
            self._text_parts.clear()
            part = f"{stem}.{self._request_number}"
            live_events.append(LiveEvent(position, part, self._written_length, TEXT, _dump_json(text), now))
            self._written_length += len(text)
        if live_events:
            self._held_run.recorder.live_event_positions.add(position)
        return live_events

    def _describe_start(self) -> dict[str, Any]:
        command, call = self._command, self._command.call
        start: dict[str, Any] = {"name": command.name, "kind": command.kind.label}
        if isinstance(call, StepCall):
            arguments = preview_arguments(call.step.parameters, call.args, call.kwargs)
            return {**start, "arguments": arguments, "attempt": self._attempt}
        return {**start, "run_id": call.run_id}


class LiveEventWriter:
    """Writes the live events of all runs of an engine."""

    def __init__(self, host: JournalEngine) -> None:
        self._host = host
        self._pending_sources: dict[LiveEventSource, None] = {}
        """The commands with something to write, oldest first."""
        self._flush_timer: ScheduledCall | None = None
        self._unanswered_count = 0

    def start_attempt(self, source: LiveEventSource) -> None:
        """An attempt begins; the text of the one before is void."""
        source.live_event_buffer = None
        self._pending_sources[source] = None
        if self._flush_timer is None:
            self._start_timer()

    def get_text_appender(self, source: LiveEventSource, request_number: int = 0) -> Callable[[str], None]:
        """A function to call with each piece of an answer."""
        self._pending_sources[source] = None
        if self._flush_timer is None:
            self._start_timer()
        return _get_buffer(source).get_text_appender(request_number)

    def discard(self, source: LiveEventSource) -> None:
        """The command's outcome is about to be recorded, or it has none: unwritten events are not needed."""
        self._pending_sources.pop(source, None)

    def flush_run(self, held_run: HeldRun) -> None:
        """The run is about to leave memory."""
        self._write([source for source in self._pending_sources if source.driver is held_run])

    def stop_timer_if_idle(self) -> None:
        """Stop the timer if there is nothing to write."""
        if self._flush_timer is not None and not self._pending_sources:
            self._flush_timer.cancel()
            self._flush_timer = None

    def stop(self) -> None:
        """Write nothing more."""
        self._pending_sources.clear()
        self.stop_timer_if_idle()

    def write_skipped_steps(self, held_run: HeldRun) -> None:
        """Write which steps of a class workflow its run has skipped, in the transaction that ends the run."""
        now, epoch = self._host.clock.now(), str(held_run.run.epoch)
        skipped = [
            LiveEvent(-1, epoch, number, SKIPPED, _dump_json({"name": name, "position": position}), now)
            for number, (name, position) in sorted(held_run.execution.skipped_steps.items())
        ]
        if skipped:
            self._submit(held_run, skipped)

    def _start_timer(self) -> None:
        clock = self._host.clock
        self._flush_timer = clock.call_at(clock.now() + FLUSH_INTERVAL_S, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        if self._unanswered_count:
            return  # their answer starts it again
        now = self._host.clock.now()
        # An attempt that began in the future is from before the clock was set back.
        pending, interval = self._pending_sources, FLUSH_INTERVAL_S
        self._write([one for one in pending if not now < one.started_at + interval <= now + interval])
        if self._pending_sources and not self._unanswered_count:
            self._start_timer()

    def _write(self, sources: list[LiveEventSource]) -> None:
        now = self._host.clock.now()
        by_run: dict[HeldRun, list[LiveEvent]] = {}
        for source in sources:
            held_run, buffer = source.driver, _get_buffer(source)
            if held_run.is_closed or not buffer.is_streaming:
                del self._pending_sources[source]
            try:
                if not held_run.is_closed and (live_events := buffer.take_events(now)):
                    by_run.setdefault(held_run, []).extend(live_events)
            except Exception:  # perhaps the user's values raise: this step has no live events, the others do
                log.exception("live events of run %r could not be written", held_run.run.id)
                self.discard(source)
        for held_run, live_events in by_run.items():
            self._submit(held_run, live_events)

    def _submit(self, held_run: HeldRun, live_events: list[LiveEvent]) -> None:
        self._unanswered_count += 1
        op = AppendLiveEvents(held_run.run.key, held_run.run.epoch, tuple(live_events))
        self._host.writer.submit(op, partial(self._on_written, held_run))

    def _on_written(self, held_run: HeldRun, answer: OpResult | BaseException) -> None:
        self._unanswered_count -= 1
        if self._pending_sources and self._flush_timer is None and not self._unanswered_count:
            self._start_timer()
        if isinstance(answer, BaseException):
            # Only followers lose something, and they get the record.
            log.warning("live events of run %r could not be written: %s", held_run.run.id, answer)
        elif held_run.is_closed:
            pass
        elif answer is OpStatus.FENCED:
            held_run.handle_claim_lost()
        else:
            self._host.change_feed.notify(held_run.run.id)


def _get_buffer(source: LiveEventSource) -> LiveEventBuffer:
    if source.live_event_buffer is None:
        source.live_event_buffer = LiveEventBuffer(source)
    return source.live_event_buffer


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
