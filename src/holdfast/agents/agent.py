"""``Agent``: a workflow whose steps a model chooses."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import holdfast
from holdfast.agents import deps as handing
from holdfast.agents.conversation import INSTRUCTIONS
from holdfast.agents.handles import AgentHandle
from holdfast.agents.loop import run_agent
from holdfast.agents.models.calls import TIMEOUT, ModelChain
from holdfast.agents.models.choosing import check_model, name_of
from holdfast.agents.models.library import load
from holdfast.agents.models.messages import dump_content, dump_messages
from holdfast.agents.output import Output
from holdfast.agents.tools import RunContext, Tool, as_tool, refuse_name, refused_call, unknown_tool
from holdfast.authoring.children import call_child, child_call
from holdfast.authoring.durations import Duration, seconds
from holdfast.authoring.functions import DefinedAt, is_async
from holdfast.authoring.registry import register
from holdfast.authoring.runtime import GRACE, Runtime
from holdfast.authoring.workflow import Prepared, Workflow
from holdfast.client.agent_result import AgentResult, AgentResultCodec
from holdfast.client.client import run_sync
from holdfast.client.handle import Link
from holdfast.codec import InputsCodec, codec_for
from holdfast.core.execution import Execution, current_execution
from holdfast.core.records import Kind
from holdfast.core.usage import Budget
from holdfast.engine import steps
from holdfast.engine.definitions import StepDefinition, WorkflowDefinition
from holdfast.errors import CodecError, DefinitionError, InputError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolCallPart, UserContent
    from pydantic_ai.models import Model
    from pydantic_ai.tools import ToolDefinition

T = TypeVar("T")

MAX_TURNS = 50
"""Model calls in one run, unless an agent says otherwise."""

_TASK = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "The whole task. The agent sees nothing of this conversation: tell it all that it needs.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


class Agent(Workflow[..., AgentResult[T]]):
    """A workflow whose steps a model chooses: every model call, tool call and sub-agent is recorded.

    Args:
        model: ``"provider:name"``, or a model of the pydantic-ai library (for an endpoint with a base URL of its own).
        name: what the store calls it. Clients start its runs by this name.
        tools: functions with ``@tool``, plain functions, and other agents.
        instructions: what the model is told at the beginning; or a function that returns it (it may take a
            ``RunContext``), which is called once in each run, as a step.
        output_type: what the answer must be: ``str``, or a type that pydantic can check.
        deps_type: the type of what is handed to tools as ``ctx.deps``.
        description: what other agents are told of it; its instructions unless given.
        subagents: agents that the model can hand tasks to. Each task is a run of its own.
        fallback: one model or several, to be asked in order when the one before gives no answer.
        max_turns: model calls in one run, after which it fails.
        budget: what one run may use, with all the runs that it starts.
        queue: the queue that its runs wait in; one with its own name unless given.
        model_settings: the model library's ``ModelSettings``, such as ``{"temperature": 0}``.
        model_timeout: seconds that one attempt of a model call may take.
        timeout: seconds after its start at which a run that has not ended fails.
        tags: words to find its runs by.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        name: str,
        tools: Sequence[Callable[..., Any] | Tool | Agent[Any]] = (),
        instructions: str | Callable[..., str | Awaitable[str]] | None = None,
        output_type: type[T] = str,  # type: ignore[assignment]
        deps_type: Any = None,
        description: str | None = None,
        subagents: Sequence[Agent[Any]] = (),
        fallback: str | Model | Sequence[str | Model] = (),
        max_turns: int = MAX_TURNS,
        budget: Budget | None = None,
        queue: str | None = None,
        model_settings: Mapping[str, Any] | None = None,
        model_timeout: Duration = TIMEOUT,
        timeout: Duration | None = None,
        tags: Collection[str] = (),
    ) -> None:
        where = f"agent {name!r}"
        if not isinstance(name, str) or not name or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Agent(name={name!r}): an agent has a name, by which its runs are found")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: max_turns={max_turns!r} must be a whole number, 1 or more")
        if isinstance(tags, str):
            raise DefinitionError(f"{where}: tags is a collection of words, not one string: tags=[{tags!r}]")
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: budget is a Budget, as in Budget(usd=1.5), not {budget!r}")
        others = tuple(fallback) if isinstance(fallback, list | tuple) else (fallback,)
        models = cast("tuple[str | Model, ...]", (model, *others))
        for one in models:
            check_model(one, where)
        self.chain = ModelChain(models, model_settings, seconds(model_timeout, f"{where}: model_timeout") or TIMEOUT)
        self.max_turns = max_turns
        self.deps_type = deps_type
        self.output = Output(output_type)
        self.instructions = self._instructions(instructions, name, where)
        self.description = description or (instructions if isinstance(instructions, str) else "") or ""
        self._members = _members([*tools, *subagents], where)
        self._tool_definitions: list[ToolDefinition] | None = None
        super().__init__(self._define(name, queue, timeout, tags, budget, where))
        register(self.definition)

    # Running

    async def run(
        self,
        prompt: str | Sequence[UserContent],
        *,
        deps: Any = None,
        message_history: Sequence[ModelMessage] | None = None,
        session: str | None = None,
    ) -> AgentResult[T]:
        """Run it durably, and return its result. In workflow code, it is a child of the calling run.

        Args:
            prompt: what it is to do: a text, or a list of texts, images and documents of the pydantic-ai library.
            deps: what its tools, and those of its sub-agents, are handed as ``ctx.deps``. Never recorded.
            message_history: messages that came before, such as ``result.messages`` of another run.
            session: the name of a conversation: this run continues where the last one of this agent and session ended.
        """
        return await self(prompt, deps=deps, message_history=message_history, session=session)

    async def __call__(self, *args: Any, **kwargs: Any) -> AgentResult[T]:
        """As ``run``."""
        execution = current_execution()
        if execution is not None:
            return await call_child(execution, self, args, kwargs)
        return await (await self.start(*args, **kwargs)).result()

    if TYPE_CHECKING:

        async def start(
            self,
            prompt: str | Sequence[UserContent],
            *,
            deps: Any = None,
            message_history: Sequence[ModelMessage] | None = None,
            session: str | None = None,
        ) -> AgentHandle[T]:
            """Start a run (or join the one that is there) and return a handle to it; also from workflow code."""
            ...

    def run_sync(self, *args: Any, **kwargs: Any) -> AgentResult[T]:
        """As ``run``, from code without an event loop."""
        return run_sync(self(*args, **kwargs))

    def options(self, **options: Any) -> Agent[T]:
        """The same agent with options for the runs that are started through it: see ``Workflow.options``."""
        view = copy.copy(self)
        view._options = super().options(**options).start_options
        return view

    async def run_worker(
        self,
        url: str | None = None,
        *,
        deps: Any = None,
        subagents: bool = True,
        concurrency: int = 1000,
        lease: float = 10.0,
        grace: float = GRACE,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Execute runs of this agent until SIGTERM, SIGINT or ``stop``, then finish or hand over what is in flight.

        Args:
            url: the store; ``HOLDFAST_URL`` or the default file unless given.
            deps: what tools are handed in every run that was not given its own in this process.
            subagents: whether to execute the runs of its sub-agents, too, and of theirs.
            concurrency: how many runs may be in memory at once.
            lease: seconds after which a silent worker is taken to be dead, where nothing quicker tells.
            grace: seconds that steps in flight get to end.
            stop: stop when this is set.
        """
        served = self.family() if subagents else [self]
        names = [agent.name for agent in served]
        if deps is not None:
            handing.serve_with(names, deps)
        queues = {agent.definition.queue for agent in served}
        runtime = Runtime(url, lease=lease, concurrency=concurrency, queues=queues, workflows=names)
        await runtime.open()
        await runtime.run_worker(grace=grace, stop=stop)

    # What it is made of

    @property
    def subagents(self) -> list[Agent[Any]]:
        """The agents that it can hand tasks to."""
        return [member for member in self._members.values() if isinstance(member, Agent)]

    def family(self) -> list[Agent[Any]]:
        """The agent, its sub-agents, theirs, and so on."""
        found: dict[str, Agent[Any]] = {}
        waiting: list[Agent[Any]] = [self]
        while waiting:
            agent = waiting.pop(0)
            if found.setdefault(agent.name, agent) is agent:
                waiting += agent.subagents
        return list(found.values())

    def tool_definitions(self) -> list[ToolDefinition]:
        """What the model is shown of its tools and sub-agents."""
        if self._tool_definitions is None:
            from pydantic_ai.tools import ToolDefinition

            self._tool_definitions = [
                ToolDefinition(name=name, parameters_json_schema=_TASK, description=member.description or None)
                if isinstance(member, Agent)
                else member.tool_definition()
                for name, member in self._members.items()
            ]
        return self._tool_definitions

    def command_for(self, execution: Execution, call: ToolCallPart) -> tuple[Kind, str, Any]:
        """The one command that carries out a call that the model asks for, in workflow code."""
        name = call.tool_name[:100] or "?"
        member = self._members.get(name)
        if member is None:
            return Kind.STEP, name, unknown_tool(name, list(self._members))
        if isinstance(member, Tool):
            return Kind.STEP, name, member.call(call, self.name, self.deps_type)
        task = _task_of(call)
        if task is None:
            return Kind.STEP, name, refused_call(name, 'Send the whole task as one text: {"task": "..."}')
        child = child_call(execution, member, (task,), {})
        handing.belongs_to(child.run_id, execution.run_id)
        return Kind.CHILD, member.name, child

    # What the authoring room asks of a workflow

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared:
        """The prompt and the history as they are recorded; the deps are not."""
        given = dict(kwargs)
        deps = given.pop("deps", None)
        if args:
            prompt, *rest = args
            args = (self._prompt(prompt), *rest)
        elif "prompt" in given:
            given["prompt"] = self._prompt(given["prompt"])
        given = {name: value for name, value in given.items() if value is not None}
        if "message_history" in given:
            given["message_history"] = self._history(given["message_history"])

        def announce(run_id: str) -> None:
            handing.hand_over(run_id, deps)

        # A run that another one starts has that one's deps, unless it is given its own.
        if deps is None and (self.deps_type is None or current_execution() is not None):
            return Prepared(args, given)
        return Prepared(args, given, announce)

    def handle(self, link: Link, run_id: str) -> AgentHandle[T]:
        """A handle to one of its runs."""
        instructions = self.instructions if isinstance(self.instructions, str) else None
        return AgentHandle(link, run_id, self.definition.output.decode, instructions)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<agent {self.name!r}: {name_of(self.chain.models[0])}>"

    def _history(self, messages: Any) -> list[Any]:
        try:
            return dump_messages(messages)
        except (CodecError, TypeError) as error:
            raise InputError(
                f"message_history of agent {self.name!r} is a list of messages, such as `result.messages`: {error}"
            ) from error

    def _prompt(self, prompt: Any) -> Any:
        if isinstance(prompt, str):
            if not prompt.strip():
                raise InputError(f"agent {self.name!r} was given an empty prompt: tell it what to do")
            return prompt
        if not isinstance(prompt, Sequence) or not prompt:
            raise InputError(f"the prompt of agent {self.name!r} is a text or a list of contents, not {prompt!r}")
        return dump_content(cast("Sequence[UserContent]", prompt))

    def _define(
        self,
        name: str,
        queue: str | None,
        timeout: Duration | None,
        tags: Collection[str],
        budget: Budget | None,
        where: str,
    ) -> WorkflowDefinition:
        async def run(
            prompt: str | list[Any], message_history: list[Any] | None = None, session: str | None = None
        ) -> AgentResult[Any]:
            return await run_agent(self, prompt, message_history, session)

        function: Any = run
        function.__name__ = function.__qualname__ = name
        function.__doc__ = self.description or None
        caller = _caller()
        line = caller.f_lineno
        function.__module__ = caller.f_globals.get("__name__", function.__module__)
        function.holdfast_defined_at = DefinedAt(caller.f_code.co_filename, line, f"agent {name} at line {line}")
        signature = inspect.signature(run)
        hints: dict[str, Any] = {
            "prompt": str | list[Any],
            "message_history": list[Any] | None,
            "session": str | None,
        }
        return WorkflowDefinition(
            name=name,
            function=function,
            inputs=InputsCodec(name, signature, hints),
            output=AgentResultCodec(self.output.codec),
            namespace=caller.f_globals,
            defaults={"message_history": None, "session": None},
            queue=queue or name,
            timeout=seconds(timeout, f"{where}: timeout"),
            tags=tuple(tags),
            budget=budget,
            is_agent=True,
            load=load,
        )

    def _instructions(self, given: Any, name: str, where: str) -> str | StepDefinition | None:
        """A text, or the step that makes one."""
        if given is None or isinstance(given, str):
            return given
        if not callable(given):
            raise DefinitionError(f"{where}: instructions is a text, or a function that returns one, not {given!r}")
        function: Callable[..., Any] = given
        takes_context = bool(inspect.signature(function).parameters)

        def context(deps: Any) -> RunContext[Any]:
            step = steps.current.get()
            return RunContext(deps, step.run_id, name, INSTRUCTIONS, "", step.idempotency_key, step.attempt, step)

        async def ask() -> str:
            if not takes_context:
                return await function()
            return await function(context(await handing.deps_soon(steps.current.get(), name, self.deps_type)))

        def ask_plain() -> str:
            if not takes_context:
                return function()
            return function(context(handing.deps_of(steps.current.get(), name, self.deps_type)))

        is_coroutine = is_async(function)
        return StepDefinition(
            INSTRUCTIONS,
            ask if is_coroutine else ask_plain,
            is_coroutine,
            codec_for(str),
            (),
            getattr(function, "__globals__", {}),
        )


def _members(given: Sequence[Any], where: str) -> dict[str, Tool | Agent[Any]]:
    """Tools and sub-agents by the names under which the model calls them."""
    members: dict[str, Tool | Agent[Any]] = {}
    for one in given:
        member: Tool | Agent[Any] = cast("Agent[Any]", one) if isinstance(one, Agent) else as_tool(one, where)
        refuse_name(member.name, f"{where}: {member!r}")
        known = members.get(member.name)
        if known is not None and known is not member:
            raise DefinitionError(
                f"{where}: two of its tools and sub-agents are called {member.name!r}: a model calls them by name"
            )
        members[member.name] = member
    return members


def _task_of(call: ToolCallPart) -> str | None:
    try:
        given = call.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None
    task = given.get("task")
    return task if isinstance(task, str) and task.strip() and len(given) == 1 else None


def _caller() -> FrameType:
    """Who defines an agent: whoever called from outside this library."""
    home = os.path.dirname(holdfast.__file__) + os.sep
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame = frame.f_back
    return frame
