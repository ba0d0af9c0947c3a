"""Runs that a held run starts or waits for.

An awaited run costs three writes: its start, its end, and the record of that end in the journal of the run that waits.
Starting it needs no record: its id and its seed follow from the command's position, so a worker that starts it again
finds it. The start also makes a *link*, through which the store puts the end into the waiting run's mailbox (see the
store contract). Meanwhile the run that waits may be parked, or held by another worker. A run that comes back into
memory gets its links with its history, so it does not start its children again.

A run that is only started (``RecordKind.START``) is independent; the record says that it exists.

When the workflow withdraws a command, the run that the command has started is cancelled. The cancel names the seed, so
it never reaches a run that existed before or that was started with ``start``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import check_decrypted, encode_error, validate_size
from holdfast.core.commands import Command
from holdfast.core.records import RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import ChildCall
from holdfast.engine.live_events import LiveEventBuffer
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.stores.operations import AwaitRun, CancelRun, NewRun, OpResult, OpStatus, RunLink, StartResult
from holdfast.stores.run_errors import encode_child_failure, make_disabled_error

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class AwaitedRun:
    """A run that another one waits for, as a source of live events: it says that it was started."""

    attempt_number = 0

    def __init__(self, driver: Driver, command: Command) -> None:
        self.driver = driver
        self.command = command
        self.started_at = driver.host.clock.now()
        self.live_event_buffer: LiveEventBuffer | None = None


class ChildRuns:
    """The runs that a driver's run starts or waits for."""

    def __init__(self, driver: Driver, links: Mapping[int, tuple[str, bytes]]) -> None:
        self._links = links
        self._driver = driver
        self._awaited_runs: dict[int, AwaitedRun] = {}
        """The awaited runs that were started here, by position."""

    def start_or_link(self, command: Command) -> None:
        """Start the run, or link to it, unless it is linked already: a run that waits for thousands wakes often."""
        driver, call = self._driver, command.call
        assert isinstance(call, ChildCall)
        run, host = driver.run, driver.host
        known_id, known_digest = self._links.get(command.position, ("", b""))
        new = None if call.make_run is None else self._make_run(call.make_run)
        if known_id == call.run_id and (new is None or new.digest == known_digest):
            return
        if command.kind is RecordKind.CHILD:
            self._awaited_runs[command.position] = awaited = AwaitedRun(driver, command)
            host.live_events.start_attempt(awaited)
        link = RunLink(run.key, run.epoch, command.position, is_awaited=command.kind is RecordKind.CHILD)
        if new is not None:
            try:
                validate_size(new.inputs, f"the inputs of workflow {new.workflow!r}", host.max_value)
            except HoldfastError as error:
                self._record(command, ok=False, payload=encode_error(error))
                return
        driver.recorder.add_pending()
        on_answer = partial(self._on_answer, command)
        if new is None:
            host.writer.submit(AwaitRun(call.run_id, link), on_answer)
        else:
            if restored_from := driver.steps.restored_from:  # the backup may have been made before it was started
                new = replace(new, restored_from=restored_from)
            host.start_child(new, link, on_answer)

    def _make_run(self, make: Callable[[float], NewRun]) -> NewRun:
        """The run to start, in the trace of the one that starts it."""
        driver = self._driver
        new = make(driver.host.clock.now())
        trace_parent = driver.run.trace_parent if driver.telemetry is None else driver.telemetry.trace_parent
        return new if new.trace_parent == trace_parent else replace(new, trace_parent=trace_parent)

    def _on_answer(self, command: Command, answer: OpResult | BaseException) -> None:
        driver = self._driver
        if driver.is_closed:
            return
        driver.recorder.remove_answered()
        on_started = partial(self._on_started, command)
        driver.handle_answer(on_started, partial(on_started, OpStatus.REFUSED), driver.fail, answer)

    def _on_started(self, command: Command, answer: OpResult) -> None:
        if command.position in self._driver.execution.open_commands:
            self._accept(command, answer)
        self._driver.finish_turn()

    def _accept(self, command: Command, answer: OpResult) -> None:
        """The store has started the run, found it, or refused."""
        call: ChildCall = command.call
        try:
            if answer is OpStatus.WORKFLOW_DISABLED:
                raise make_disabled_error(command.name, f"run {call.run_id!r} was not started")
            if not isinstance(answer, StartResult):
                raise RunNotFound(f"there is no run {call.run_id!r} to wait for", call.run_id)
            call.check_started(answer)
            ended_with = answer.run.output if answer.run.state is RunState.COMPLETED else answer.run.error
            check_decrypted(ended_with or b"", f"what run {call.run_id!r} has ended with")
        except HoldfastError as error:
            self._record(command, ok=False, payload=encode_error(error))
            return
        if command.kind is RecordKind.START:
            self._record(command, ok=True, payload=json.dumps(call.run_id).encode())
        elif not answer.is_linked:
            self._record_outcome(command, answer.run.state, ended_with)

    def record_end(self, command: Command, signal: Signal) -> None:
        """The end of an awaited run is in the mailbox."""
        self._record_outcome(command, RunState(signal.name), signal.payload, signal.id)

    def _record_outcome(
        self, command: Command, state: RunState, payload: bytes | None, consumed_signal_id: int | None = None
    ) -> None:
        ok = state is RunState.COMPLETED
        if not ok:
            payload = encode_child_failure(command.call.run_id, state, payload)
        self._record(command, ok=ok, payload=payload or b"null", consumed_signal_id=consumed_signal_id)

    def _record(self, command: Command, *, ok: bool, payload: bytes, consumed_signal_id: int | None = None) -> None:
        self._discard_live_events(command)
        self._driver.recorder.record(
            command.kind,
            command.position,
            command.name,
            ok=ok,
            payload=payload,
            preview=command.call.run_id,
            consumed_signal_id=consumed_signal_id,
        )

    def withdraw(self, command: Command) -> None:
        """The workflow no longer waits."""
        host, call = self._driver.host, command.call
        self._discard_live_events(command)
        if command.kind is RecordKind.CHILD and call.seed is not None:
            # Even if the start has not been answered yet: the store performs both in this order.
            host.writer.submit(CancelRun(call.run_id, host.clock.now(), call.seed), lambda _: host.wake())

    def _discard_live_events(self, command: Command) -> None:
        awaited = self._awaited_runs.pop(command.position, None)
        if awaited is not None:
            self._driver.host.live_events.discard(awaited)
