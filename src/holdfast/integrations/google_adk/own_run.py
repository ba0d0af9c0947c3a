"""The run of an invocation that is made outside of programs: a run of its own.

Its program executes the invocation, and returns the events. A caller in the process that executes it gets the events
while they are made; any other gets them when the run has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import google.adk
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.genai import types
from pydantic_core import PydanticSerializationError

import holdfast
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.authoring.introspection import attribute_to_caller
from holdfast.authoring.workflow import PreparedStart, Workflow, define_workflow
from holdfast.client.handle import Handle
from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program
from holdfast.errors import HoldfastError, InputError, RunFailed, UsageError
from holdfast.integrations.google_adk.invocation import Invocation
from holdfast.integrations.google_adk.working_session import append_missing, find_session
from holdfast.stores.operations import MAX_DELIVERIES

if TYPE_CHECKING:
    from holdfast.integrations.google_adk.runner import DurableRunner

_END = object()


class LiveEvents:
    """The events of a run for the caller that started it in this process."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.count = 0
        """The number of complete events, which are also in the run's result, that the caller has."""
        self.was_executed = False
        """Whether this process has executed the run to its end."""

    def add(self, event: Event, number: int | None) -> None:
        """Add an event, on any loop. A complete one has a number, and is left out if the caller has it."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (event, number))

    def end(self) -> None:
        """The run has ended."""
        self._queue.put_nowait(_END)

    async def read(self) -> AsyncGenerator[Event]:
        """The events until the run ends."""
        while (item := await self._queue.get()) is not _END:
            event, number = item
            if number is not None:
                if number < self.count:
                    continue
                self.count += 1
            yield event


class RunnerProgram(Workflow[..., Any]):
    """The program of a durable runner: ``runner.program``. Its inputs are the arguments of ``run_async``."""

    def __init__(
        self,
        runner: DurableRunner,
        name: str,
        queue: str | Queue,
        timeout: Duration | None,
        tags: tuple[str, ...],
    ) -> None:
        self._runner = runner
        self._live: dict[str, LiveEvents] = {}

        async def run(
            user_id: str, session_id: str, message: Any = None, options: dict[str, Any] | None = None
        ) -> list[dict[str, Any]]:
            return await self._execute(user_id, session_id, message, options or {})

        skipped = (os.path.dirname(cast(str, package.__file__)) + os.sep for package in (holdfast, google.adk))
        attribute_to_caller(run, name, *skipped, "<")
        options = (None, name, queue, timeout, tags, MAX_DELIVERIES, "", ())
        super().__init__(define_workflow(run, *options, is_program=True).definition)

    # Overrides of Workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The recorded form of the arguments."""
        if args:
            raise UsageError(f"runner {self.name!r} takes all arguments by name, as `run_async` does")
        given = dict(kwargs)
        live = given.pop("live", None)
        inputs = _to_inputs(self.name, given)
        if live is None:
            return PreparedStart((), inputs)

        def bind(run_id: str) -> None:
            self._live[run_id] = live

        return PreparedStart((), inputs, bind, self.forget)

    def forget(self, run_id: str) -> None:
        """No caller waits for the events of this run."""
        self._live.pop(run_id, None)

    # The run

    async def _execute(
        self, user_id: str, session_id: str, message: Any, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        program = find_program()
        assert program is not None
        live = self._live.get(program.run.execution.run_id)
        arguments = {"user_id": user_id, "session_id": session_id, **_from_inputs(message, options)}
        invocation = Invocation(program.run, self._runner, self._runner.base, arguments)
        entries: list[dict[str, Any]] = []
        yielded: set[str] = set()
        async with aclosing(invocation.run()) as events:
            async for event in events:
                is_complete = not event.partial
                if live is not None:
                    live.add(event, len(entries) if is_complete else None)
                if is_complete:
                    yielded.add(event.id)
                    entries.append({"event": _dump_event(event)})
        if live is not None:
            live.was_executed = True
        session = invocation.session
        hidden = [] if session is None else [event for event in session.appended if event.id not in yielded]
        return [*({"event": _dump_event(event), "hidden": True} for event in hidden), *entries]


async def run_own(program: RunnerProgram, runner: DurableRunner, arguments: Mapping[str, Any]) -> AsyncGenerator[Event]:
    """Start a run for an invocation, or join it, and yield its events."""
    given = dict(arguments)
    run_id = given.pop("run_id", None)
    view = program if run_id is None else program.options(id=run_id)
    if get_current_execution() is not None:  # a workflow: the run is its child
        for event in _read_events(await view(**given), hidden=False):
            yield event
        return
    live = LiveEvents()
    handle: Handle[list[dict[str, Any]]] = await view.start(**given, live=live)
    result = asyncio.ensure_future(_await_result(handle))
    result.add_done_callback(lambda _: live.end())
    try:
        async with aclosing(live.read()) as events:
            async for event in events:
                yield event
        entries = await result
    finally:
        program.forget(handle.run_id)
        result.cancel()
    if not live.was_executed:
        await _update_session(runner, arguments, entries)
    for event in _read_events(entries, hidden=False)[live.count :]:
        yield event


async def _await_result(handle: Handle[Any]) -> list[dict[str, Any]]:
    """The result of the run. Raises the agent's own exception."""
    try:
        return await handle.result()
    except RunFailed as failed:
        cause = failed.__cause__
        if cause is None or isinstance(cause, HoldfastError):
            raise
        cause.add_note(str(failed))
        raise cause from None


async def _update_session(runner: DurableRunner, arguments: Mapping[str, Any], entries: list[dict[str, Any]]) -> None:
    """Another process has executed the run: the session service of this one may be another."""
    stored = await find_session(runner, arguments["user_id"], arguments["session_id"])
    if stored is not None:
        ordered = sorted(_read_events(entries, hidden=True), key=lambda event: event.timestamp)
        await append_missing(runner.session_service, stored, ordered)


def _read_events(entries: list[dict[str, Any]], *, hidden: bool) -> list[Event]:
    """The events of a result; the hidden ones are added to the session, but not yielded."""
    return [Event.model_validate(entry["event"]) for entry in entries if hidden or not entry.get("hidden")]


def _dump_event(event: Event) -> dict[str, Any]:
    return event.model_dump(mode="json", exclude_defaults=True)


# Its inputs


def _to_inputs(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``run_async`` as data."""
    if arguments.pop("abort_signal", None) is not None:
        raise UsageError(
            f"runner {name!r}: an `abort_signal` belongs to this process, and so cannot be given to a run of its own. "
            "Cancel the run instead: `holdfast cancel RUN`"
        )
    inputs: dict[str, Any] = {"user_id": arguments.pop("user_id"), "session_id": arguments.pop("session_id")}
    message, config = arguments.pop("new_message", None), arguments.pop("run_config", None)
    try:
        if message is not None:
            inputs["message"] = _dump_message(message)
        options = {key: value for key, value in arguments.items() if value}
        if config is not None and (dumped := config.model_dump(mode="json", exclude_defaults=True)):
            options["run_config"] = dumped
    except PydanticSerializationError as error:
        raise InputError(f"the arguments of runner {name!r} cannot be recorded: {error}") from error
    return inputs | ({"options": options} if options else {})


def _from_inputs(message: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(options)
    if message is not None:
        arguments["new_message"] = _load_message(message)
    if "run_config" in arguments:
        arguments["run_config"] = RunConfig.model_validate(arguments["run_config"])
    return arguments


def _dump_message(message: types.Content) -> Any:
    """A message of one text is recorded as that text."""
    parts = message.parts or []
    if len(parts) == 1 and parts[0].model_dump(exclude_none=True) == {"text": parts[0].text}:
        return parts[0].text
    return message.model_dump(mode="json", exclude_none=True)


def _load_message(message: Any) -> types.Content:
    if isinstance(message, str):
        return types.Content(role="user", parts=[types.Part(text=message)])
    return types.Content.model_validate(message)
