"""The run of an invocation that is made outside of programs: a run of its own.

Its program executes the invocation, and returns the events. A caller in the process that executes it gets the events
while they are made; any other gets them when the run has ended.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import events
from collections.abc import AsyncGenerator, Mapping, Sequence
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
        if events._get_running_loop() is self._loop:
            self._queue.put_nowait((event, number))
        else:
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
        ) -> dict[str, Any]:
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

    async def _execute(self, user_id: str, session_id: str, message: Any, options: dict[str, Any]) -> dict[str, Any]:
        program = find_program()
        assert program is not None
        live = self._live.get(program.run.execution.run_id)
        arguments = {"user_id": user_id, "session_id": session_id, **_from_inputs(message, options)}
        invocation = Invocation(program.run, self._runner, self._runner.base, arguments)
        yielded: list[Event] = []
        async with aclosing(invocation.run()) as stream:
            async for event in stream:
                if live is not None:
                    live.add(event, None if event.partial else len(yielded))
                if not event.partial:
                    yielded.append(event)
        if live is not None:
            live.was_executed = True
        return make_result(yielded, [] if invocation.session is None else invocation.session.appended)


async def run_own(program: RunnerProgram, runner: DurableRunner, arguments: Mapping[str, Any]) -> AsyncGenerator[Event]:
    """Start a run for an invocation, or join it, and yield its events."""
    given = dict(arguments)
    run_id = given.pop("run_id", None)
    view = program if run_id is None else program.options(id=run_id)
    if get_current_execution() is not None:  # a workflow: the run is its child
        for event in read_events(await view(**given)):
            yield event
        return
    live = LiveEvents()
    handle: Handle[dict[str, Any]] = await view.start(**given, live=live)
    result = asyncio.ensure_future(_await_result(handle))
    result.add_done_callback(lambda _: live.end())
    try:
        async with aclosing(live.read()) as stream:
            async for event in stream:
                yield event
        recorded = await result
    finally:
        program.forget(handle.run_id)
        result.cancel()
    if not live.was_executed:
        await _update_session(runner, arguments, recorded)
    for event in read_events(recorded, live.count):
        yield event


async def _await_result(handle: Handle[Any]) -> dict[str, Any]:
    """The result of the run. Raises the agent's own exception."""
    try:
        return await handle.result()
    except RunFailed as failed:
        cause = failed.__cause__
        if cause is None or isinstance(cause, HoldfastError):
            raise
        cause.add_note(str(failed))
        raise cause from None


async def _update_session(runner: DurableRunner, arguments: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Another process has executed the run: the session service of this one may be another."""
    stored = await find_session(runner, arguments["user_id"], arguments["session_id"])
    if stored is not None:
        await append_missing(runner.session_service, stored, read_events(result, key="appended"))


# Its result


def make_result(yielded: Sequence[Event], appended: Sequence[Event]) -> dict[str, Any]:
    """The result of a run: the agent's last words, for people, and its events.

    ``appended`` has the events of the session: an event that was yielded, too, is its number there.
    """
    numbers = {id(event): number for number, event in enumerate(yielded)}
    texts = [text for event in yielded if event.is_final_response() and (text := _get_text(event))]
    return {
        "text": texts[-1] if texts else "",
        "yielded": [_dump_event(event) for event in yielded],
        "appended": [numbers[id(event)] if id(event) in numbers else _dump_event(event) for event in appended],
    }


def read_events(result: dict[str, Any], first: int = 0, *, key: str = "yielded") -> list[Event]:
    """The events of a result, from this number on."""
    dumped = (result["yielded"][one] if isinstance(one, int) else one for one in result[key][first:])
    return [Event.model_validate_json(one) for one in dumped]


def _dump_event(event: Event) -> str:
    return event.model_dump_json(exclude_defaults=True)


def _get_text(event: Event) -> str:
    parts = event.content.parts or () if event.content else ()
    return "".join(part.text for part in parts if part.text and not part.thought)


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
