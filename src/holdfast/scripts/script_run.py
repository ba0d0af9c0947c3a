"""The durable run of a script.

The engine has a thread and an event loop of its own, which start with the script's first recorded call. There, the run
is a *program* (see ``authoring.program``) whose function only waits for the script to end: what the script's threads
and tasks record, they record as code of that program (``engine.program_context.set_process_program``).

**Which run.** With an id, the run of this id. Otherwise, the newest run of the same command, unless it has completed:
one that its process left unfinished, or that failed, which is retried. A run that another live process executes is not
taken from it: this process waits in its first recorded call until the other one dies, or for the run's end.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.authoring.program import program
from holdfast.authoring.runtime import Runtime
from holdfast.authoring.workflow import Workflow
from holdfast.client.handle import Handle
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.engine.program_context import OUTSIDE, current_program, find_program, set_process_program
from holdfast.engine.program_run import ProgramRun
from holdfast.errors import HoldfastError, RunUnsuccessful, UsageError
from holdfast.reports.formatting import format_count
from holdfast.reports.recorded_reply import MODEL_CALL_STEP, reply_from_record
from holdfast.scripts.script import Script
from holdfast.services import run_control
from holdfast.stores.contract import RunFilter

TAG_PREFIX = "command:"
"""Runs have the tag ``command:DIGEST``, so that a command finds its earlier runs."""
JOIN_TIMEOUT_S = 30.0


class ScriptStopped(SystemExit):
    """Ends a script whose run cannot continue; the message is printed."""


@dataclass
class Savings:
    """What the journal has answered in this process."""

    calls: Counter[str] = field(default_factory=Counter[str])
    """By the name of the step."""
    usage: Usage = field(default_factory=Usage)

    def add(self, record: Record) -> None:
        """Count the recorded outcome of a call."""
        self.calls[record.name] += 1
        if (reply := reply_from_record(record)) is not None:
            self.usage += reply.usage

    def __str__(self) -> str:
        models = self.calls[MODEL_CALL_STEP]
        others = self.calls.total() - models
        parts = [format_count(models, "model call")] if models else []
        parts += [format_count(others, "other step")] if others else []
        if not parts:
            return "nothing was answered from the record"
        text = f"{' and '.join(parts)} answered from the record"
        if self.usage.calls:
            cost = "" if self.usage.cost is None else f" and ${self.usage.cost:.6f}".rstrip("0").rstrip(".")
            text += f", which saved {self.usage.tokens:,} tokens{cost}"
        return text


class ScriptRun:
    """The run of a script: opened when it is needed, ended by ``finish``.

    Args:
        script: the script.
        run_id: the id of the run (default: see above).
        url: the store.
        passes_over_changes: whether a script that has changed may take another path than the recorded one.
        ended: the function that ends the engine's thread.
    """

    def __init__(self, script: Script, run_id: str | None, url: str | None, *, passes_over_changes: bool) -> None:
        self._script = script
        self._run_id = run_id
        self._url = url
        self._passes_over_changes = passes_over_changes
        self.savings = Savings()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._attached: Future[ProgramRun] = Future()
        """Done when this process executes the run, or cannot."""
        self._script_end: Future[None] = Future()
        self._run_end: Future[str] = Future()
        """How the run ended, as a text."""
        self._handle: Handle[Any] | None = None

    def install(self) -> None:
        """From now on, all code of this process belongs to the run."""
        set_process_program(self._get_program_run)

    def finish(self, error: BaseException | None) -> None:
        """The script has ended: end the run, and report it."""
        set_process_program(None)
        if self._thread is None:
            return
        if error is None:
            self._script_end.set_result(None)
        elif isinstance(error, KeyboardInterrupt):
            self._script_end.cancel()
        else:
            self._script_end.set_exception(error)
        self._thread.join(JOIN_TIMEOUT_S)
        if self._run_end.done() and self._run_end.exception() is None:
            report(f"{self._run_end.result()}; {self.savings}")

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that are not the script's."""
        return () if self._thread is None else (self._thread,)

    def _get_program_run(self) -> ProgramRun:
        """The program, for the script's first calls."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast run", daemon=True)
                self._thread.start()
        try:
            return self._attached.result()
        except HoldfastError as error:
            raise ScriptStopped(f"holdfast: {error}") from None

    # In the engine's thread

    def _serve(self) -> None:
        current_program.set(OUTSIDE)
        try:
            self._run_end.set_result(asyncio.run(self._execute()))
        except BaseException as error:
            self._run_end.set_exception(error)
            if not self._attached.done():
                self._attached.set_exception(error if isinstance(error, HoldfastError) else UsageError(repr(error)))

    async def _execute(self) -> str:
        workflow = self._define()
        queue = f"{TAG_PREFIX}{self._run_id or self._script.digest}"
        async with Runtime(self._url, workflows=[workflow.name], queues=[queue], max_concurrency=1) as runtime:
            handle = self._handle = await self._start(runtime, workflow.options(queue=queue))
            ended = asyncio.create_task(self._wait_for_end(handle))
            await asyncio.wait((asyncio.wrap_future(self._attached), ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._attached.done():
                raise UsageError(
                    ended.result()
                    + (" in another process, so there is nothing left to do. To run the script again, use another --id")
                )
            stopped = asyncio.wrap_future(self._script_end)
            await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
            if stopped.cancelled():
                return f"run {handle.run_id!r} is interrupted; the same command continues it"
            return await ended

    def _define(self) -> Workflow[..., Any]:
        # Blocks a thread of its own until the script ends: it is the script that executes the program.
        def execute(script: str, arguments: list[str]) -> None:
            context = find_program()
            assert context is not None
            self._attach(context.run)
            self._script_end.result()

        return program(name=self._script.name)(execute)

    async def _start(self, runtime: Runtime, workflow: Workflow[..., Any]) -> Handle[Any]:
        """Start the run, or continue one."""
        script, tag = self._script, f"{TAG_PREFIX}{self._script.digest}"
        store = await runtime.store_provider.store()
        if self._run_id is None:
            found = await store.list_runs(RunFilter(workflow=script.name, tag=tag), limit=1)
            newest = found[0] if found else None
        else:
            newest = await store.get_run(self._run_id)
            if newest is not None and newest.state is RunState.COMPLETED:
                raise UsageError(f"run {newest.id!r} has completed. To run the script again, use another --id")
        if newest is not None and newest.state is RunState.FAILED:
            await run_control.retry_run(runtime.store_provider, newest.id)
            return workflow.get_handle(runtime.store_provider, newest.id)
        if newest is not None and newest.state in (RunState.DEAD, RunState.CANCELLED) and self._run_id is not None:
            raise UsageError(
                f"run {newest.id!r} is {newest.state}: `holdfast show {newest.id}` says why, and `holdfast retry "
                f"{newest.id}` lets it continue"
            )
        options = workflow.options(id=self._run_id, tags=[tag])
        return await runtime.start(options, script.name, list(script.arguments))

    def _attach(self, program: ProgramRun) -> None:
        """This process executes the run, from now on."""
        execution = program.execution
        execution.passes_over_changes = self._passes_over_changes
        execution.on_answered = self.savings.add
        program.owns_process = True
        calls = execution.calls.list_calls()
        if calls:
            recorded = Counter(call.name for call in calls if call.outcome is not None)
            in_flight = [call.name for call in calls if call.outcome is None]
            models = recorded.pop(MODEL_CALL_STEP, 0)
            parts = [format_count(models, "model call")] if models else []
            parts += [format_count(recorded.total(), "other step")] if recorded else []
            again = f"; in flight, and made again: {', '.join(in_flight)}" if in_flight else ""
            report(f"continuing run {execution.run_id}: {' and '.join(parts) or 'nothing'} recorded{again}")
        else:
            report(f"recording run {execution.run_id}")
        self._attached.set_result(program)

    async def _wait_for_end(self, handle: Handle[Any]) -> str:
        try:
            await handle.result()
        except RunUnsuccessful as error:
            return str(error)
        return f"run {handle.run_id} has completed"


def report(text: str) -> None:
    """Print a line about the run."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)  # noqa: T201  # for the person who started it
