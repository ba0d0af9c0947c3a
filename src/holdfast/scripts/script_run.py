"""The durable run of a script.

The engine has a thread and an event loop of its own, which start with the script's first recorded call. There, the run
is a *program* (see ``authoring.program``) whose function only waits for the script to end: what the script's threads
and tasks record, they record as code of that program (``engine.process_program``).

**Which run.** With an id, the run of this id: while another live process executes it, this process waits in its first
recorded call. Without one, the newest run of the same command if its process has died or it has failed, else a new run.
On Temporal, a dead process cannot be detected: there it is the newest run that has not ended.
"""

from __future__ import annotations

import asyncio
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
from holdfast.engine.program_context import OUTSIDE, current_program, find_program
from holdfast.engine.program_run import ProgramRun
from holdfast.errors import HoldfastError, RunFailed, RunUnsuccessful, StepOutcomeUnknown, UsageError
from holdfast.reports.formatting import format_count
from holdfast.reports.recorded_reply import MODEL_CALL_STEP, reply_from_record
from holdfast.scripts.script import Script, ScriptStopped, report
from holdfast.services import run_control
from holdfast.stores.contract import RunFilter
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import SCRIPT_QUEUE_PREFIX

TAG_PREFIX = "command:"
"""Runs have the tag ``command:DIGEST``, so that a command finds its earlier runs."""
JOIN_TIMEOUT_S = 30.0


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
        if not self.calls:
            return ""
        text = f"{describe_calls(self.calls)} answered from the record"
        if self.usage.calls:
            cost = "" if self.usage.cost is None else f" and ${self.usage.cost:.6f}".rstrip("0").rstrip(".")
            text += f", which saved {self.usage.tokens:,} tokens{cost}"
        return text


def describe_calls(calls: Counter[str]) -> str:
    """How many model calls and steps these are, by their names."""
    models = calls[MODEL_CALL_STEP]
    steps = calls.total() - models
    parts = [format_count(models, "model call")] if models else []
    parts += [format_count(steps, "other step" if models else "step")] if steps else []
    return " and ".join(parts)


class ScriptRun:
    """The run of a script: opened by the first recorded call, ended by ``finish``.

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
        self._interrupted: Future[None] = Future()
        self._run_end: Future[str] = Future()
        """How the run ended, as a text."""

    def finish(self, error: BaseException | None) -> None:
        """The script has ended: end the run, and report it."""
        if self._thread is None:
            return
        if error is None:
            self._script_end.set_result(None)
        elif isinstance(error, KeyboardInterrupt):
            self._interrupted.set_result(None)
        else:
            self._script_end.set_exception(error)
        self._thread.join(JOIN_TIMEOUT_S)
        if self._run_end.done() and self._run_end.exception() is None:
            report("; ".join(part for part in (self._run_end.result(), str(self.savings)) if part))

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that are not the script's."""
        return () if self._thread is None else (self._thread,)

    def get_program_run(self) -> ProgramRun:
        """The program, for code that makes its first call."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast run", daemon=True)
                self._thread.start()
        try:
            return self._attached.result()
        except HoldfastError as error:
            raise ScriptStopped(str(error)) from None

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
        queue = f"{SCRIPT_QUEUE_PREFIX}{self._run_id or self._script.digest}"
        async with Runtime(self._url, workflows=[workflow.name], queues=[queue], max_concurrency=1) as runtime:
            handle = await self._start(runtime, workflow, queue)
            ended = asyncio.create_task(self._wait_for_end(handle))
            await asyncio.wait((asyncio.wrap_future(self._attached), ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._attached.done():
                raise UsageError(f"{ended.result()}: another process has executed it")
            interrupted = asyncio.wrap_future(self._interrupted)
            await asyncio.wait((interrupted, ended), return_when=asyncio.FIRST_COMPLETED)
            if interrupted.done():
                ended.cancel()  # the runtime, which is closed now, would raise an error in it
                return f"run {handle.run_id} is interrupted; the same command continues it"
            return await ended

    def _define(self) -> Workflow[..., Any]:
        # Blocks a thread of its own until the script ends: it is the script that executes the program.
        def execute(script: str, arguments: list[str]) -> None:
            context = find_program()
            assert context is not None
            self._attach(context.run)
            self._script_end.result()

        return program(name=self._script.name)(execute)

    async def _start(self, runtime: Runtime, workflow: Workflow[..., Any], queue: str) -> Handle[Any]:
        """Start the run, or continue one."""
        script, provider = self._script, runtime.store_provider
        tag = f"{TAG_PREFIX}{script.digest}"
        store = await provider.store()
        if self._run_id is None:
            found = await store.list_runs(RunFilter(workflow=script.name, tag=tag), limit=1)
            newest = found[0] if found else None
        else:
            newest = await store.get_run(self._run_id)
            if newest is not None:
                self._check_run(newest, tag)
        if newest is not None and newest.state is RunState.FAILED:
            await run_control.retry_run(provider, newest.id)
            return workflow.get_handle(provider, newest.id)
        run_id = self._run_id
        if newest is not None and not newest.state.is_terminal and runtime.url.startswith("temporal:"):
            run_id = newest.id  # Temporal cannot tell whether its process has died: if it lives, this one waits
        # Without an id, this joins a run that a dead process has left.
        options = workflow.options(id=run_id, queue=queue, tags=[tag])
        return await runtime.start(options, script.name, list(script.arguments))

    def _check_run(self, run: Run, tag: str) -> None:
        """Raise ``UsageError`` if the run with the given id cannot be continued."""
        if tag not in run.tags:
            raise UsageError(
                f"run {run.id!r} is one of another command, or of the same command in another folder: use another --id"
            )
        if run.state is RunState.COMPLETED:
            raise UsageError(f"run {run.id!r} has completed. To run the script again, use another --id")
        if run.state in (RunState.DEAD, RunState.CANCELLED):
            raise UsageError(
                f"run {run.id!r} is {run.state}: `holdfast show {run.id}` says why, and `holdfast retry {run.id}` lets "
                "it continue"
            )

    def _attach(self, program: ProgramRun) -> None:
        """This process executes the run, from now on."""
        execution = program.execution
        execution.passes_over_changes = self._passes_over_changes
        execution.on_answered = self.savings.add
        program.owns_process = True
        calls = execution.calls.list_calls()
        if calls:
            recorded = Counter(call.name for call in calls if call.outcome is not None)
            text = f"continuing run {execution.run_id}: {describe_calls(recorded) or 'nothing'} recorded"
            in_flight = [call for call in calls if call.outcome is None]
            if again := [call.name for call in in_flight if not call.is_intended]:
                text += f"; made again, because no outcome is recorded: {', '.join(again)}"
            if unknown := [call.name for call in in_flight if call.is_intended]:
                text += f"; not made again, because it may have had its effect: {', '.join(unknown)}"
            report(text)
        else:
            report(f"recording run {execution.run_id}")
        self._attached.set_result(program)

    async def _wait_for_end(self, handle: Handle[Any]) -> str:
        try:
            await handle.result()
        except RunFailed as error:
            if isinstance(error.__cause__, StepOutcomeUnknown):
                return (
                    f"run {handle.run_id} has failed, because the outcome of a step is unknown. Settle it "
                    f"(`holdfast show {handle.run_id}` says how); then the same command continues the run"
                )
            return f"run {handle.run_id} has failed; the same command continues it"
        except RunUnsuccessful as error:
            return str(error)
        return f"run {handle.run_id} has completed"
