"""The program of a durable agent: a run of the agent that no other program or workflow has started.

The input of the run, and the plain arguments of ``Runner.run``, are recorded. The others are objects of the process
that makes the call, such as ``context`` and ``session``: they are bound to the run in this process, and the inputs
record their names. A process that takes over the run needs them as well. A restarted program that repeats its call
provides them, maybe a moment after its worker has claimed the run; a worker has those of ``durable(arguments=...)``.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import agents
from agents import Agent, RunResult
from agents.result import RunResultBase
from agents.run_config import DEFAULT_MAX_TURNS

import holdfast
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.authoring.introspection import attribute_to_caller, resolve_hints
from holdfast.authoring.runtime import Runtime
from holdfast.authoring.workflow import PreparedStart, Workflow
from holdfast.authoring.workflow_options import make_queue_key, resolve_queue_name
from holdfast.client.handle import Handle
from holdfast.client.run_operations import RunOperations
from holdfast.codec import InputsCodec
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.program_context import find_program
from holdfast.errors import BoundArgumentMissing, DefinitionError, HoldfastError, RunFailed, UsageError
from holdfast.integrations.openai_agents.agent_run import AgentSettings, check_agent, run_agent
from holdfast.integrations.openai_agents.event_streams import EventRelay
from holdfast.integrations.openai_agents.run_record import RecordedRun, RecordedRunCodec, RunOutcome
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.operations import Run

_PLAIN_ARGUMENTS = ("max_turns", "previous_response_id", "auto_previous_response_id", "conversation_id")
"""Arguments of ``Runner.run`` that are recorded."""
_BOUND_ARGUMENTS = ("context", "hooks", "run_config", "error_handlers", "session")
"""Arguments that stay in the process."""
_DEFAULTS = {"max_turns": DEFAULT_MAX_TURNS, "auto_previous_response_id": False}
_BOUND_MARK, _STREAM_MARK = b'"bound":[', b'"stream":true'
"""In the inputs of a run with bound arguments, and of a streamed one."""
_BINDING_TIMEOUT_S, _CALLER_TIMEOUT_S = 5.0, 1.0
"""How long a run waits for the program that has started it to repeat the call, because it needs its arguments, or
because it would show it the events."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The options of ``durable`` for an agent's runs."""

    queue: str | Queue | None = None
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    budget: Budget | None = None


@dataclass(eq=False)
class AgentCall:
    """One call of ``Runner.run`` outside of programs."""

    input: Any
    arguments: Mapping[str, Any]
    is_streamed: bool = False
    relay: EventRelay = field(default_factory=lambda: EventRelay())
    """Passes the events of a streamed run on to its caller."""
    result: RunResultBase | None = None
    """The result, if the run has ended in this process."""
    error: BaseException | None = None
    """What it has raised in this process."""
    bound: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.bound = {name: value for name, value in self.arguments.items() if name in _BOUND_ARGUMENTS}


def clean_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Runner.run`` without those that have their defaults."""
    return {name: value for name, value in arguments.items() if value is not _DEFAULTS.get(name)}


def validate_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments=`` of ``durable``."""
    for name in arguments:
        if name not in _BOUND_ARGUMENTS:
            known = ", ".join(repr(one) for one in _BOUND_ARGUMENTS)
            raise DefinitionError(f"durable: arguments={{{name!r}: ...}} is not one of {known}")
    return dict(arguments)


class AgentProgram(Workflow[..., Any]):
    """The program of a durable agent: ``agent.holdfast_workflow``. Its input is that of ``Runner.run``."""

    def __init__(self, agent: Agent[Any], settings: AgentSettings, options: ProgramOptions) -> None:
        self.agent = agent
        self.settings = settings
        self._calls: dict[str, AgentCall] = {}
        """The calls of this process, by the ids of their runs."""
        self._expected: dict[str, asyncio.Event] = {}
        super().__init__(self._define(options))

    # Overrides of Workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The recorded form of a call. Arguments that cannot be recorded are bound to the run in this process."""
        if len(args) != 1 or not isinstance(args[0], AgentCall):
            return super().prepare_start(args, kwargs)
        call = args[0]
        inputs: dict[str, Any] = {"input": call.input}
        options: dict[str, Any] = {name: call.arguments[name] for name in _PLAIN_ARGUMENTS if name in call.arguments}
        if call.bound:
            options["bound"] = sorted(call.bound)
        if call.is_streamed:
            options["stream"] = True
        if options:
            inputs["options"] = options

        def bind(run_id: str) -> None:
            self._calls[run_id] = call
            if (expected := self._expected.get(run_id)) is not None:
                expected.set()

        return PreparedStart((), inputs, bind, self.forget)

    def get_handle(self, provider: StoreProvider, run_id: str) -> AgentHandle:
        """A handle to one of its runs."""
        return AgentHandle(provider, run_id, self)

    # Its calls

    def forget(self, run_id: str) -> None:
        """The caller no longer waits for this run."""
        self._calls.pop(run_id, None)

    async def start_call(self, call: AgentCall, run_id: str | None) -> AgentHandle:
        """Start the run of a call, or join it."""
        check_agent(self.agent, call.arguments)
        workflow = self if run_id is None else self.options(id=run_id)
        return cast(AgentHandle, await workflow.start(call))

    async def await_end(self, handle: AgentHandle, call: AgentCall) -> RecordedRun:
        """Wait for the end of a call's run. Raises the exception of the agent."""
        try:
            return await handle.wait()
        except RunFailed as failed:
            cause = call.error or failed.__cause__
            if cause is None or (isinstance(cause, HoldfastError) and call.error is None):
                raise
            cause.add_note(str(failed))
            raise cause from None
        finally:
            self.forget(handle.run_id)

    async def await_result(self, handle: AgentHandle, call: AgentCall) -> RunResult:
        """The result of a call's run. Raises the exception of the agent."""
        recorded = await self.await_end(handle, call)
        if isinstance(call.result, RunResult):
            return call.result
        return await self.load_result(recorded, call.arguments.get("context"))

    async def load_result(self, recorded: RecordedRun, context: Any = None) -> RunResult:
        """The result of a run that has ended in another process, or earlier."""
        return await recorded.load(self.agent, context)

    async def wait_for_call(self, run: Run) -> None:
        """If a run needs bound arguments, wait a short time for the program to repeat the call that started it."""
        needs_arguments = _BOUND_MARK in run.inputs and not self.settings.arguments
        if run.id in self._calls or not (needs_arguments or _STREAM_MARK in run.inputs):
            return
        self._expected[run.id] = expected = asyncio.Event()
        try:
            async with asyncio.timeout(_BINDING_TIMEOUT_S if needs_arguments else _CALLER_TIMEOUT_S):
                await expected.wait()
        except TimeoutError:
            pass  # the run fails with the error that says what is missing
        finally:
            self._expected.pop(run.id, None)

    # The run

    async def _run(self, input: Any, options: Mapping[str, Any]) -> RunOutcome:
        program = find_program()
        assert program is not None
        run_id = program.run.execution.run_id
        call = self._calls.get(run_id) or AgentCall(input, {})
        arguments = self._get_arguments(run_id, call, options)
        try:
            if options.get("stream"):
                call.result = await call.relay.run(self.settings, self.agent, input, arguments)
            else:
                call.result = await run_agent(self.settings, self.agent, input, arguments)
        except Exception as error:
            call.error = error
            raise
        handle = self.get_handle((await Runtime.current()).store_provider, run_id)
        if call.relay.is_cancelled:
            await handle.cancel()
            await asyncio.Event().wait()  # until the cancellation arrives
        return RunOutcome(run_id, call.result, await handle.usage())

    def _get_arguments(self, run_id: str, call: AgentCall, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the SDK. Raises ``BoundArgumentMissing`` if this process lacks one."""
        bound = {**self.settings.arguments, **call.bound}
        if missing := sorted(set(options.get("bound", ())) - set(bound)):
            names = ", ".join(missing)
            raise BoundArgumentMissing(
                f"run {run_id!r} of agent {self.name!r} was started with {names}, which cannot be recorded and "
                f"belonged to the process that made the call. Make the same call again, with run_id={run_id!r}, and "
                f"retry the run while that process lives: `holdfast retry {run_id}`. For runs that any worker can "
                f"finish, give each process its own: `durable(agent, arguments={{{missing[0]!r}: ...}})`."
            )
        return {name: options[name] for name in _PLAIN_ARGUMENTS if name in options} | bound

    def _define(self, options: ProgramOptions) -> WorkflowDefinition:
        name = self.settings.name

        async def run(input: str | list[Any], options: dict[str, Any] | None = None) -> Any:
            return await self._run(input, options or {})

        signature, hints = inspect.signature(run), resolve_hints(run)
        skipped_paths = (os.path.dirname(cast(str, package.__file__)) + os.sep for package in (holdfast, agents))
        namespace = attribute_to_caller(run, name, *skipped_paths, "<")
        defaults = {"options": None}
        return WorkflowDefinition(
            name=name,
            function=run,
            inputs_codec=InputsCodec(name, signature, hints),
            output_codec=RecordedRunCodec(),
            namespace=namespace,
            defaults=defaults,
            queue_key=make_queue_key(options.queue or name, signature, defaults, f"agent {name!r}"),
            queue=resolve_queue_name(options.queue or name, f"agent {name!r}"),
            timeout_s=options.timeout_s,
            tags=options.tags,
            budget=options.budget,
            is_agent=True,
            is_program=True,
            prepare_run=self.wait_for_call,
        )


class AgentHandle(Handle[Any]):
    """A started run of a durable agent; its result is the SDK's ``RunResult``."""

    __slots__ = ("_program",)

    def __init__(self, provider: StoreProvider, run_id: str, program: AgentProgram) -> None:
        definition = program.definition

        def decode(data: bytes) -> Any:
            return definition.output_codec.decode(data, definition.result_label)

        super().__init__(RunOperations(provider, decode, [definition.namespace]), run_id)
        self._program = program

    async def wait(self) -> RecordedRun:
        """Wait for the run's end, and return what is recorded."""
        recorded = await super().result()
        if not isinstance(recorded, RecordedRun):
            raise UsageError(f"run {self.run_id!r} is not a run of agent {self._program.name!r}")
        return recorded

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the run's result. Raises the same errors as ``Handle.result``."""
        recorded = await super().result(timeout)
        return await self._program.load_result(recorded)
