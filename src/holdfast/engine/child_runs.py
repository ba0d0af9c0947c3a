"""Runs that a held run starts or waits for.

A run that is awaited costs three writes: it is started, it ends, and its end is recorded in the journal of the run
that waits. Starting it needs no record: its id and its seed follow from the command's position, so that whoever starts
it again finds it. The start also makes a *link*, through which the store puts the end into the waiting run's mailbox
(see the store contract); the run that waits may be parked meanwhile, or in the hands of another worker.

A run that is only started (``Kind.START``) goes its own way; the record says that it is there.

A command that the workflow withdraws cancels the run that it started, and only if it did start it: a run that was there
before, or that was started on its own, belongs to somebody else.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import check_size, encode_error, refuse_sealed
from holdfast.core.commands import Command
from holdfast.core.records import Kind, Signal
from holdfast.core.states import RunState
from holdfast.engine.definitions import ChildCall
from holdfast.engine.journal_writer import Done
from holdfast.engine.live_events import Account
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.stores.operations import Answer, AwaitRun, CancelRun, Link, NewRun, Started, Verdict
from holdfast.stores.rules import child_failure, switched_off

if TYPE_CHECKING:
    from holdfast.engine.driver import Driver


class Children:
    """What a driver knows of the runs that its run starts or waits for."""

    def __init__(self, driver: Driver) -> None:
        self.linked: dict[int, tuple[str, bytes]] = {}
        """The links that were there when the run came into memory: see ``History.links``."""
        self._driver = driver
        self._accounts: dict[int, Account] = {}
        """What is told of those that are waited for."""

    def begin(self, command: Command) -> None:
        """Start the run, or link to it, unless it is linked already: a run that waits for thousands wakes often."""
        driver, call = self._driver, command.call
        assert isinstance(call, ChildCall)
        run = driver.run
        link = Link(run.key, run.epoch, command.position, awaited=command.kind is Kind.CHILD)
        known_id, known_digest = self.linked.get(command.position, ("", b""))
        new = None if call.make is None else call.make(driver.host.clock.now())
        if known_id == call.run_id and (new is None or new.digest == known_digest):
            return
        if command.kind is Kind.CHILD:
            self._accounts[command.position] = account = Account(driver, command)
            driver.host.telling.begin(account, 0, driver.host.clock.now())
        driver.journal.expect()
        done = partial(self._begun, command)
        if new is None:
            driver.host.writer.submit(AwaitRun(call.run_id, link), done)
        else:
            self._start(command, new, link, done)

    def _start(self, command: Command, new: NewRun, link: Link, done: Done) -> None:
        driver = self._driver
        try:
            check_size(new.inputs, f"the inputs of workflow {new.workflow!r}", driver.host.max_value)
        except HoldfastError as error:
            driver.journal.answered()
            self._record(command, ok=False, payload=encode_error(error))
        else:
            driver.host.start_child(new, link, done)

    def _begun(self, command: Command, answer: Answer | BaseException) -> None:
        driver = self._driver
        driver.journal.answered()
        if driver.gone:
            return
        if isinstance(answer, BaseException):
            driver.fail(answer)
        elif answer is Verdict.FENCED:
            driver.lose()
        else:
            if command.position in driver.execution.open:
                self._take(command, answer)
            driver.rest()

    def _take(self, command: Command, answer: Answer) -> None:
        """The store has the run (or none)."""
        call: ChildCall = command.call
        try:
            if answer is Verdict.SWITCHED_OFF:
                raise switched_off(command.name, f"run {call.run_id!r} was not started")
            if not isinstance(answer, Started):
                raise RunNotFound(f"there is no run {call.run_id!r} to wait for", call.run_id)
            call.accept(answer)
            ended_with = answer.run.output if answer.run.state is RunState.COMPLETED else answer.run.error
            refuse_sealed(ended_with or b"", f"what run {call.run_id!r} has ended with")
        except HoldfastError as error:
            self._record(command, ok=False, payload=encode_error(error))
            return
        if command.kind is Kind.START:
            self._record(command, ok=True, payload=json.dumps(call.run_id).encode())
        elif not answer.linked:
            self._record_end(command, answer.run.state, ended_with, None)

    def ended(self, command: Command, signal: Signal) -> None:
        """The end of a run that was waited for is in the mailbox."""
        self._record_end(command, RunState(signal.name), signal.payload, signal.id)

    def _record_end(self, command: Command, state: RunState, payload: bytes | None, consume: int | None) -> None:
        ok = state is RunState.COMPLETED
        if not ok:
            payload = child_failure(command.call.run_id, state, payload)
        self._record(command, ok=ok, payload=payload or b"null", consume=consume)

    def _record(self, command: Command, *, ok: bool, payload: bytes, consume: int | None = None) -> None:
        preview = command.call.run_id
        self._forget(command)
        self._driver.journal.record(
            command.kind, command.position, command.name, ok=ok, payload=payload, preview=preview, consume=consume
        )

    def withdrawn(self, command: Command) -> None:
        """The workflow no longer waits."""
        host, call = self._driver.host, command.call
        self._forget(command)
        if command.kind is Kind.CHILD and call.seed is not None:
            # Also for one whose start has not been answered: the store carries both out in this order.
            host.writer.submit(CancelRun(call.run_id, host.clock.now(), call.seed), lambda _: host.nudge())

    def _forget(self, command: Command) -> None:
        account = self._accounts.pop(command.position, None)
        if account is not None:
            self._driver.host.telling.forget(account)
