"""``Agent``: a workflow whose steps a model chooses."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import holdfast
from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.agents import deps as handing
from holdfast.agents.agent_handle import AgentHandle
from holdfast.agents.agent_loop import run_agent
from holdfast.agents.memory_tools import MEMORY_GUIDANCE, MemoryNamespace, make_memory_tools, validate_namespace
from holdfast.agents.models.chain import DEFAULT_TIMEOUT_S, ModelChain, RetryPolicies, validate_retry_policies
from holdfast.agents.models.context_limit import Compaction, validate_compaction
from holdfast.agents.models.messages import dump_content, dump_messages
from holdfast.agents.models.model_library import load_library
from holdfast.agents.models.model_resolution import get_model_name, validate_models
from holdfast.agents.output import OutputSpec
from holdfast.agents.planner import PLANNING_GUIDANCE as PLANNING
from holdfast.agents.planner import get_plan_tool
from holdfast.agents.skills.skill import Skill
from holdfast.agents.skills.skill_folders import collect_skills
from holdfast.agents.skills.skill_tools import format_catalog, make_skill_tools
from holdfast.agents.tool_approvals import validate_approval_policy
from holdfast.agents.tool_catalog import make_tool_definition
from holdfast.agents.tools import RunContext, Tool, check_name, to_tool
from holdfast.agents.toolsets import Toolset
from holdfast.authoring.approval_requests import ApprovalPolicy
from holdfast.authoring.children import call_child
from holdfast.authoring.introspection import attribute_to_caller, is_async
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.registry import register
from holdfast.authoring.runtime import DEFAULT_GRACE_S, MAX_BLOCKED_S, Runtime
from holdfast.authoring.workflow import (
    PreparedStart,
    Workflow,
    make_queue_key,
    resolve_max_deliveries,
    resolve_queue_name,
    validate_served_versions,
    validate_version,
)
from holdfast.client.store_runs import RunStoreAccess
from holdfast.codec import InputsCodec, codec_for
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import StepDefinition, WorkflowDefinition
from holdfast.engine.step_context import current_context
from holdfast.errors import CodecError, DefinitionError, InputError
from holdfast.reports.agent_result import AgentResult, AgentResultCodec
from holdfast.reports.recorded_reply import INSTRUCTIONS_STEP
from holdfast.stores.operations import MAX_DELIVERIES
from holdfast.sync_methods import run_sync

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.models import Model
    from pydantic_ai.tools import ToolDefinition

T = TypeVar("T")

DEFAULT_MAX_TURNS = 50
"""Model calls in one run, unless an agent says otherwise."""
DEFAULT_OUTPUT_RETRIES = 3


_KEYWORD_HINTS = {
    "system_prompt": "write instructions=",
    "system_message": "write instructions=",
    "system": "write instructions=",
    "prompt": "write instructions= here, and give the prompt to run(...)",
    "goal": "write instructions=",
    "llm": "write model=, as in 'openai:gpt-4o'",
    "functions": "write tools=",
    "toolsets": "write tools=, which takes toolsets as well",
    "mcp_servers": "write tools=[mcp_stdio(...)] or tools=[mcp_http(...)]",
    "handoffs": "write subagents=",
    "sub_agents": "write subagents=",
    "agents": "write subagents=",
    "result_type": "write output_type=",
    "response_format": "write output_type=",
    "response_model": "write output_type=",
    "output_schema": "write output_type=",
    "max_steps": "write max_turns=",
    "max_iterations": "write max_turns=",
    "max_iter": "write max_turns=",
    "recursion_limit": "write max_turns=",
    "result_retries": "write output_retries=",
    "temperature": "write model_settings={'temperature': ...}",
    "max_tokens": "write model_settings={'max_tokens': ...}",
    "settings": "write model_settings=",
    "deps": "give them to run(..., deps=...) or run_worker(deps=...)",
    "task_queue": "write queue=, the name of the queue",
    "queue_name": "write queue=, the name of the queue",
    "fallbacks": "write fallback=, one model or several",
    "fallback_models": "write fallback=, one model or several",
    "checkpointer": "leave it out: every run is recorded",
    "session": "give it to run(..., session=...)",
    "session_id": "give it to run(..., session=...)",
}
"""By what other frameworks call an argument, what to write here."""


class Agent(Workflow[..., AgentResult[T]]):
    """A workflow whose steps a model chooses: every model call, tool call and sub-agent is recorded.

    Args:
        model: ``"provider:name"``, or a model of the pydantic-ai library (for an endpoint with a base URL of its own).
        name: what the store calls it. Clients start its runs by this name.
        tools: functions with ``@tool``, plain functions, other agents, and toolsets (such as those of MCP servers).
        instructions: what the model is told at the beginning; or a function that returns it (it may take a
            ``RunContext``), which is called once in each run, as a step.
        output_type: what the answer must be: ``str``, or a type that pydantic can check.
        deps_type: the type of what is handed to tools as ``ctx.deps``.
        description: what other agents are told of it; its instructions unless given.
        subagents: agents that the model can hand tasks to. Each task is a run of its own.
        memory: the namespace of what it remembers over runs, or a function of the ``RunContext`` that returns one; its
            model then has tools to remember, search and forget.
        planning: whether the model keeps a plan, a list of tasks that everybody can follow, and works through it.
        skills: instructions and tools that the model takes up when it needs them: those of ``@skill`` and ``Skill``,
            and paths of folders that have a ``SKILL.md``, or whose folders have one.
        approvals: who is asked about calls of tools that need an approval, for how long, and whether a call that nobody
            has answered for is made (``on_timeout="approve"``) or not (``"deny"``, unless given).
        fallback: one model or several, to be asked in order when the one before gives no answer.
        compaction: whether older turns are summarised when a conversation nears what its model takes; or a
            ``Compaction`` that says when and how.
        max_turns: model calls in one run, after which it fails; summaries are not counted.
        output_retries: how often in a row the model is asked again, with what was wrong, when its answer does not fit
            ``output_type``; then the run fails with ``InvalidOutput``.
        continue_truncated: whether the model is asked to continue a text that was cut off at the limit of tokens, until
            it is whole or the turns are used up. Each piece is a turn; the output is all of them. Without this, and of
            any other ``output_type``, ``result.finish_reason`` tells that an answer was cut off.
        budget: what one run may use, with all the runs that it starts.
        queue: the queue that its runs wait in, by its name or as a ``Queue`` with limits; one with its own name unless
            given.
        model_settings: the model library's ``ModelSettings``, such as ``{"temperature": 0}``.
        model_timeout: seconds that one attempt of a model call may take.
        retry: how a model call that got no answer is repeated: a ``RetryPolicy``, or one for each of some of its
            models, by name. Default: for a day, at least every five minutes. A tool has its own: ``@tool(retry=...)``.
        stream: whether the model is asked for its answers piece by piece, so that whoever follows a run (see
            ``Handle.events``) reads them while they come. A model that cannot do that is asked as ever.
        timeout: seconds after its start at which a run that has not ended fails.
        tags: words to find its runs by.
        max_deliveries: how often the worker of a run may die while it holds nothing else, with nothing new recorded,
            before the run is ``dead``.
        version: which version of the agent this is, such as ``"2"``. Its runs are taken up only by workers that have
            the agent in this version. A conversation goes on over versions.
        serves: other versions whose runs it takes up, too; ``""`` stands for runs without a version.
    """

    @reject_unknown_keywords("Agent(...)", **_KEYWORD_HINTS)
    def __init__(
        self,
        model: str | Model,
        *,
        name: str,
        tools: Sequence[Callable[..., Any] | Tool | Agent[Any] | Toolset] = (),
        instructions: str | Callable[..., str | Awaitable[str]] | None = None,
        output_type: type[T] = str,  # type: ignore[assignment]
        deps_type: Any = None,
        description: str | None = None,
        subagents: Sequence[Agent[Any]] = (),
        memory: MemoryNamespace | None = None,
        planning: bool = False,
        skills: Sequence[Skill | str | Path] = (),
        approvals: ApprovalPolicy | None = None,
        fallback: str | Model | Sequence[str | Model] = (),
        compaction: bool | Compaction = True,
        max_turns: int = DEFAULT_MAX_TURNS,
        output_retries: int = DEFAULT_OUTPUT_RETRIES,
        continue_truncated: bool = False,
        budget: Budget | None = None,
        queue: str | Queue | None = None,
        model_settings: Mapping[str, Any] | None = None,
        model_timeout: Duration = DEFAULT_TIMEOUT_S,
        retry: RetryPolicies | None = None,
        stream: bool = True,
        timeout: Duration | None = None,
        tags: Collection[str] = (),
        max_deliveries: int = MAX_DELIVERIES,
        version: str = "",
        serves: Collection[str] = (),
    ) -> None:
        where = f"agent {name!r}"
        if not isinstance(name, str) or not name or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Agent(name={name!r}): an agent has a name, by which its runs are found")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: max_turns={max_turns!r} must be a whole number, 1 or more")
        if isinstance(output_retries, bool) or not isinstance(output_retries, int) or output_retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: output_retries={output_retries!r} must be a whole number, 0 or more")
        if isinstance(tags, str):
            raise DefinitionError(f"{where}: tags is a collection of words, not one string: tags=[{tags!r}]")
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: budget is a Budget, as in Budget(usd=1.5), not {budget!r}")
        models = validate_models(model, fallback, where)
        patience = declared_seconds(model_timeout, f"{where}: model_timeout") or DEFAULT_TIMEOUT_S
        self.model_chain = ModelChain(
            models, model_settings, patience, stream, validate_retry_policies(retry, models, where)
        )
        self.compaction = validate_compaction(compaction, where)
        self.max_turns = max_turns
        self.output_retries = output_retries
        if not isinstance(continue_truncated, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: continue_truncated={continue_truncated!r} is True or False")
        if continue_truncated and output_type is not str:
            raise DefinitionError(f"{where}: continue_truncated is for texts, and its output_type is {output_type!r}")
        self.continue_truncated = continue_truncated
        self.approvals = validate_approval_policy(approvals, where)
        self.deps_type = deps_type
        self.output_spec = OutputSpec(output_type)
        self.instructions = self._define_instructions(instructions, name, where)
        self.description = description or (instructions if isinstance(instructions, str) else "") or ""
        self.toolsets = [one for one in tools if isinstance(one, Toolset)]
        given = [*(one for one in tools if not isinstance(one, Toolset)), *subagents]
        self._guidance: list[str] = []
        """What its abilities ask of the model, beside its instructions."""
        if memory is not None:
            given += make_memory_tools(validate_namespace(memory, where))
            self._guidance.append(MEMORY_GUIDANCE)
        self.skills = collect_skills(skills, where)
        if self.skills:
            given += make_skill_tools(self.skills)
            self._guidance.append(format_catalog(self.skills))
        if not isinstance(planning, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: planning={planning!r} is True or False")
        self.has_planning = planning
        """Its model keeps a plan."""
        if self.has_planning:
            given.append(get_plan_tool())
            self._guidance.append(PLANNING)
        self.callables = _collect_callables(given, where)
        """Its tools and sub-agents, by the names under which the model calls them."""
        self.skill_tools = _collect_skill_tools(self.skills, self.callables, where)
        """What its skills bring along, by name; not what the agent has without them."""
        self._definition_by_name: dict[str, ToolDefinition] = {}
        self._base_definitions: list[ToolDefinition] | None = None
        super().__init__(self._define(name, queue, timeout, tags, budget, max_deliveries, version, serves, where))
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
        execution = get_current_execution()
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

    def run_sync(
        self,
        prompt: str | Sequence[UserContent],
        *,
        deps: Any = None,
        message_history: Sequence[ModelMessage] | None = None,
        session: str | None = None,
    ) -> AgentResult[T]:
        """``run`` without an event loop."""
        return run_sync(self.run(prompt, deps=deps, message_history=message_history, session=session))

    def options(self, **options: Any) -> Agent[T]:
        """The same agent with options for the runs that are started through it: see ``Workflow.options``."""
        view = copy.copy(self)
        view._options = super().options(**options).start_options
        return view

    async def run_worker(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        deps: Any = None,
        include_subagents: bool = True,
        max_concurrency: int = 1000,
        lease_s: float = 10.0,
        grace_s: float = DEFAULT_GRACE_S,
        max_blocked_s: float = MAX_BLOCKED_S,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Execute runs of this agent until SIGTERM, SIGINT or ``stop``, then finish or hand over what is in flight.

        Args:
            url: the store; ``HOLDFAST_URL`` or the default file unless given.
            namespace: whose runs; see ``Runtime``.
            deps: what tools are handed in every run that was not given its own in this process.
            include_subagents: whether to execute the runs of its sub-agents, too, and of theirs.
            max_concurrency: how many runs may be in memory at once.
            lease_s: seconds after which a silent worker is taken to be dead, where nothing quicker tells.
            grace_s: seconds that steps in flight get to end.
            max_blocked_s: seconds for which a step may block the event loop; see ``Runtime``.
            stop: stop when this is set.
        """
        served = self.collect_agents() if include_subagents else [self]
        if deps is not None:
            handing.set_agent_deps([agent.name for agent in served], deps)
        queues = {agent.definition.queue for agent in served}
        names = [name for agent in served for name in agent.definition.served_names]
        runtime = Runtime(
            url,
            namespace=namespace,
            lease_s=lease_s,
            max_concurrency=max_concurrency,
            queues=queues,
            workflows=names,
            max_blocked_s=max_blocked_s,
        )
        await runtime.open()
        await runtime.run_worker(grace_s=grace_s, stop=stop)

    # What it is made of

    @property
    def subagents(self) -> list[Agent[Any]]:
        """The agents that it can hand tasks to."""
        return [member for member in self.callables.values() if isinstance(member, Agent)]

    def collect_agents(self) -> list[Agent[Any]]:
        """The agent, its sub-agents, theirs, and so on."""
        found: dict[str, Agent[Any]] = {}
        waiting: list[Agent[Any]] = [self]
        while waiting:
            agent = waiting.pop(0)
            if found.setdefault(agent.name, agent) is agent:
                waiting += agent.subagents
        return list(found.values())

    def get_tool_definitions(self) -> list[ToolDefinition]:
        """What the model is shown of its tools and sub-agents, in every run."""
        if self._base_definitions is None:
            self._base_definitions = [self.get_tool_definition(name, member) for name, member in self.callables.items()]
        return self._base_definitions

    def get_tool_definition(self, name: str, target: Tool | Agent[Any]) -> ToolDefinition:
        """What the model is shown of one; made once, because most runs are short."""
        made = self._definition_by_name.get(name)
        if made is None:
            made = self._definition_by_name[name] = make_tool_definition(name, target)
        return made

    def add_guidance(self, instructions: str | None) -> str | None:
        """The instructions, with what the agent's own abilities ask of the model."""
        return "\n\n".join([*([instructions] if instructions else []), *self._guidance]) or None

    # What the authoring room asks of a workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The prompt and the history as they are recorded; the deps are not."""
        given = dict(kwargs)
        deps = given.pop("deps", None)
        if args:
            prompt, *rest = args
            args = (self._dump_prompt(prompt), *rest)
        elif "prompt" in given:
            given["prompt"] = self._dump_prompt(given["prompt"])
        given = {name: value for name, value in given.items() if value is not None}
        if "message_history" in given:
            given["message_history"] = self._dump_history(given["message_history"])

        def bind_run(run_id: str) -> None:
            handing.set_run_deps(run_id, deps)

        # A run that another one starts has that one's deps, unless it is given its own.
        if deps is None and (self.deps_type is None or get_current_execution() is not None):
            return PreparedStart(args, given)
        return PreparedStart(args, given, bind_run, handing.clear_run_deps)

    def get_handle(self, access: RunStoreAccess, run_id: str) -> AgentHandle[T]:
        """A handle to one of its runs."""
        return AgentHandle(access, run_id, self.definition.output_codec.decode, self._build_instructions)  # type: ignore[arg-type]

    def _build_instructions(self, generated: str | None) -> str | None:
        """What the model is told at the beginning, given what the function of its instructions has returned."""
        return self.add_guidance(
            generated if generated is not None or not isinstance(self.instructions, str) else self.instructions
        )

    def __repr__(self) -> str:
        return f"<agent {self.name!r}: {get_model_name(self.model_chain.models[0])}>"

    def _dump_history(self, messages: Any) -> list[Any]:
        try:
            return dump_messages(messages)
        except (CodecError, TypeError) as error:
            raise InputError(
                f"message_history of agent {self.name!r} is a list of messages, such as `result.messages`: {error}"
            ) from error

    def _dump_prompt(self, prompt: Any) -> Any:
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
        queue: str | Queue | None,
        timeout: Duration | None,
        tags: Collection[str],
        budget: Budget | None,
        max_deliveries: int,
        version: str,
        serves: Collection[str],
        subject: str,
    ) -> WorkflowDefinition:
        async def run(
            prompt: str | list[Any], message_history: list[Any] | None = None, session: str | None = None
        ) -> AgentResult[Any]:
            return await run_agent(self, prompt, message_history, session)

        namespace = attribute_to_caller(run, name, os.path.dirname(holdfast.__file__) + os.sep)
        run.__doc__ = self.description or None
        signature = inspect.signature(run)
        hints: dict[str, Any] = {
            "prompt": str | list[Any],
            "message_history": list[Any] | None,
            "session": str | None,
        }
        defaults: dict[str, Any] = {"message_history": None, "session": None}
        return WorkflowDefinition(
            name=name,
            function=run,
            inputs_codec=InputsCodec(name, signature, hints),
            output_codec=AgentResultCodec(self.output_spec.codec),
            namespace=namespace,
            defaults=defaults,
            queue_key=make_queue_key(queue or name, signature, defaults, subject),
            queue=resolve_queue_name(queue or name, subject),
            timeout_s=declared_seconds(timeout, f"{subject}: timeout"),
            tags=tuple(tags),
            budget=budget,
            is_agent=True,
            max_deliveries=resolve_max_deliveries(max_deliveries, subject),
            version=validate_version(version, subject),
            also_served_versions=validate_served_versions(serves, version, subject),
            load_imports=load_library,
        )

    def _define_instructions(self, value: Any, name: str, subject: str) -> str | StepDefinition | None:
        """A text, or the step that makes one."""
        if value is None or isinstance(value, str):
            return value
        if not callable(value):
            raise DefinitionError(f"{subject}: instructions is a text, or a function that returns one, not {value!r}")
        function: Callable[..., Any] = value
        takes_context = bool(inspect.signature(function).parameters)

        def make_context(deps: Any) -> RunContext[Any]:
            step = current_context.get()
            return RunContext(deps, step.run_id, name, INSTRUCTIONS_STEP, "", step.idempotency_key, step.attempt, step)

        async def generate() -> str:
            if not takes_context:
                return await function()
            return await function(make_context(await handing.get_deps_async(name, self.deps_type)))

        def generate_sync() -> str:
            if not takes_context:
                return function()
            return function(make_context(handing.get_deps(name, self.deps_type)))

        is_coroutine = is_async(function)
        return StepDefinition(
            INSTRUCTIONS_STEP,
            generate if is_coroutine else generate_sync,
            is_coroutine,
            codec_for(str),
            (),
            getattr(function, "__globals__", {}),
        )


def _collect_callables(values: Sequence[Any], subject: str) -> dict[str, Tool | Agent[Any]]:
    """Tools and sub-agents by the names under which the model calls them."""
    members: dict[str, Tool | Agent[Any]] = {}
    for one in values:
        member: Tool | Agent[Any] = cast("Agent[Any]", one) if isinstance(one, Agent) else to_tool(one, subject)
        check_name(member.name, f"{subject}: {member!r}")
        known = members.get(member.name)
        if known is not None and known is not member:
            own = isinstance(member, Tool) and member.definition.function.__module__.startswith("holdfast.agents.")
            raise DefinitionError(
                f"{subject}: two of its tools and sub-agents are called {member.name!r}: a model calls them by name"
                + (". One comes with planning=, skills= or memory=: give yours another name." if own else "")
            )
        members[member.name] = member
    return members


def _collect_skill_tools(skills: Mapping[str, Skill], callables: Mapping[str, Any], subject: str) -> dict[str, Tool]:
    """The tools of skills by name, without those that the agent has anyway."""
    found: dict[str, Tool] = {}
    for skill in skills.values():
        for tool in skill.tools:
            known = callables.get(tool.name) or found.get(tool.name)
            if known is not None and known is not tool:
                raise DefinitionError(
                    f"{subject}: skill {skill.name!r} has a tool {tool.name!r}, and there is another one of this name: "
                    "a "
                    f"model calls them by name"
                )
            if tool.name not in callables:
                found[tool.name] = tool
    return found
