"""``Agent``: a workflow whose steps a model chooses."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import holdfast
from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.usage import Budget
from holdfast.agents.agent_handle import AgentHandle
from holdfast.agents.agent_keyword_hints import AGENT_KEYWORD_HINTS
from holdfast.agents.agent_loop import run_agent
from holdfast.agents.deps import check_deps_type, clear_run_deps, set_agent_deps, set_run_deps
from holdfast.agents.instructions import define_instructions
from holdfast.agents.memory_tools import MEMORY_GUIDANCE, MemoryNamespace, make_memory_tools, validate_namespace
from holdfast.agents.models.context_limit import Compaction, validate_compaction
from holdfast.agents.models.messages import dump_content, dump_messages
from holdfast.agents.models.model_options import ModelOptions, make_model_chain
from holdfast.agents.models.model_resolution import get_model_name, load_library
from holdfast.agents.output import Output, OutputSpec
from holdfast.agents.planner import PLANNING_GUIDANCE, get_plan_tool
from holdfast.agents.skills.skill import Skill
from holdfast.agents.skills.skill_folders import collect_skills
from holdfast.agents.skills.skill_tools import format_catalog, make_skill_tools
from holdfast.agents.tool_approvals import validate_approval_policy
from holdfast.agents.tools import Tool, check_name, to_tool
from holdfast.agents.toolsets import Toolset
from holdfast.authoring.approval_requests import ApprovalPolicy
from holdfast.authoring.children import call_child
from holdfast.authoring.introspection import attribute_to_caller, resolve_hints
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.registry import register
from holdfast.authoring.runtime import DEFAULT_GRACE_S, MAX_BLOCKED_S, Runtime
from holdfast.authoring.workflow import PreparedStart, Workflow
from holdfast.authoring.workflow_options import (
    WorkflowOptions,
    make_queue_key,
    resolve_max_deliveries,
    resolve_queue_name,
    validate_served_versions,
)
from holdfast.codec import InputsCodec
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import CodecError, DefinitionError, InputError
from holdfast.reports.agent_result import AgentResult, AgentResultCodec
from holdfast.services.store_provider import StoreProvider
from holdfast.sync_methods import run_sync

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.models import Model
    from pydantic_ai.tools import ToolDefinition

T = TypeVar("T")

DEFAULT_MAX_TURNS = 50
"""Maximum number of model calls in one run."""

_TASK_SCHEMA = {
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
    """A workflow whose steps a model chooses: every model call, tool call, and sub-agent is recorded.

    Args:
        model: ``"provider:name"``, or a model of the pydantic-ai library (for an endpoint with its own base URL).
        name: its name in the store. Clients start its runs by this name.
        tools: functions with ``@tool``, plain functions, other agents, and toolsets (such as those of MCP servers).
        instructions: the instructions for the model; or a function that returns them (it may take a ``RunContext``)
            and is called once in each run, as a step.
        output_type: the type of the answer: ``str``, a type that pydantic can validate, or an ``Output`` that also says
            how often an answer may be corrected, or whether a truncated text is continued.
        deps_type: the type of ``ctx.deps`` in tools.
        description: the description that other agents see. Default: its instructions.
        subagents: agents that the model can delegate tasks to. Each task is a run of its own.
        memory: the namespace of its memory across runs, or a function of the ``RunContext`` that returns one. The model
            then has tools to remember, search, and forget.
        planning: whether the model keeps a plan, a list of tasks that followers of the run see, and works through it.
        skills: instructions and tools that the model loads when it needs them: from ``@skill``, from ``Skill``, and
            paths of folders that contain a ``SKILL.md``, or whose subfolders do.
        approvals: the people to ask about calls of tools that need an approval, for how long, and whether a call
            without an answer is made (``on_timeout="approve"``) or not (``"deny"``, the default).
        fallback: one model or several, called in order when the previous one gives no answer.
        model_options: how the models are called: settings, timeout, retries, streaming.
        compaction: whether older turns are summarized when a conversation nears the limit of its model's context; or a
            ``Compaction`` that says when and how.
        max_turns: maximum number of model calls in one run, not counting summaries. A run that needs more fails.
        budget: what one run may use, with all the runs that it starts.
        workflow_options: how its runs are queued and executed: queue, timeout, tags, versions.
    """

    @reject_unknown_keywords("Agent(...)", **AGENT_KEYWORD_HINTS)
    def __init__(
        self,
        model: str | Model,
        *,
        name: str,
        tools: Sequence[Callable[..., Any] | Tool | Agent[Any] | Toolset] = (),
        instructions: str | Callable[..., str | Awaitable[str]] | None = None,
        output_type: type[T] | Output[T] = str,  # type: ignore[assignment]
        deps_type: Any = None,
        description: str | None = None,
        subagents: Sequence[Agent[Any]] = (),
        memory: MemoryNamespace | None = None,
        planning: bool = False,
        skills: Sequence[Skill | str | Path] = (),
        approvals: ApprovalPolicy | None = None,
        fallback: str | Model | Sequence[str | Model] = (),
        model_options: ModelOptions | None = None,
        compaction: bool | Compaction = True,
        max_turns: int = DEFAULT_MAX_TURNS,
        budget: Budget | None = None,
        workflow_options: WorkflowOptions | None = None,
    ) -> None:
        where = f"agent {name!r}"
        _check_arguments(name, planning, max_turns, budget, workflow_options)
        self.model_chain = make_model_chain(model, fallback, model_options, where)
        self.output: Output[T] = output_type if isinstance(output_type, Output) else Output(output_type)
        self.output_spec = OutputSpec(self.output.output_type)
        self.compaction = validate_compaction(compaction, where)
        self.approvals = validate_approval_policy(approvals, where)
        self.max_turns = max_turns
        self.deps_type = deps_type
        self.instructions = define_instructions(instructions, name, deps_type)
        self.description = description or (instructions if isinstance(instructions, str) else "") or ""
        self.toolsets = [item for item in tools if isinstance(item, Toolset)]
        self.skills = collect_skills(skills, where)
        self.has_planning = planning
        own_tools, self._guidance = _make_own_tools(memory, self.skills, planning, where)
        single_tools = [item for item in tools if not isinstance(item, Toolset)]
        self.callables = _collect_callables([*single_tools, *subagents, *own_tools], where)
        """Its tools and sub-agents, by the names that the model uses."""
        self.skill_tools = _collect_skill_tools(self.skills, self.callables, where)
        """The tools of its skills by name, without those that the agent has anyway."""
        super().__init__(self._define(name, budget, workflow_options or WorkflowOptions()))
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
            prompt: the task: a text, or a list of texts, images, and documents of the pydantic-ai library.
            deps: the ``ctx.deps`` of its tools and those of its sub-agents, of the agent's ``deps_type``. Never
                recorded.
            message_history: earlier messages, such as ``result.messages`` of another run.
            session: the name of a conversation: this run continues where the last run of this agent and session ended.
        """
        return await self(prompt, deps=deps, message_history=message_history, session=session)

    async def __call__(self, *args: Any, **kwargs: Any) -> AgentResult[T]:
        """The same as ``run``."""
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
            """Start a run (or join the existing one) and return a handle to it; also from workflow code."""
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

    async def run_worker(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        deps: Any = None,
        include_subagents: bool = True,
        max_concurrency: int = 1000,
        lease: Duration = 10.0,
        grace: Duration = DEFAULT_GRACE_S,
        max_blocked: Duration = MAX_BLOCKED_S,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Execute runs of this agent until SIGTERM, SIGINT, or ``stop``; then finish or hand over the runs in flight.

        Args:
            url: the store. Default: ``HOLDFAST_URL``, else the default file.
            namespace: the namespace of the runs; see ``Runtime``.
            deps: the ``ctx.deps`` of tools in every run that has no deps of its own in this process.
            include_subagents: whether to execute the runs of its sub-agents, too, and of theirs.
            max_concurrency: maximum number of runs in memory.
            lease: how long a silent worker counts as alive, if no lock shows earlier that it died.
            grace: how long steps in flight may take to end.
            max_blocked: how long a step may block the event loop; see ``Runtime``.
            stop: stop when this is set.
        """
        check_deps_type(deps, self.deps_type, self.name)
        served = self.collect_agents() if include_subagents else [self]
        if deps is not None:
            set_agent_deps([agent.name for agent in served], deps)
        queues = {agent.definition.queue for agent in served}
        names = [name for agent in served for name in agent.definition.served_names]
        runtime = Runtime(
            url,
            namespace=namespace,
            lease=lease,
            max_concurrency=max_concurrency,
            queues=queues,
            workflows=names,
            max_blocked=max_blocked,
        )
        await runtime.open()
        await runtime.run_worker(grace=grace, stop=stop)

    # Its parts

    @property
    def subagents(self) -> list[Agent[Any]]:
        """The agents that it can delegate tasks to."""
        return [member for member in self.callables.values() if isinstance(member, Agent)]

    def collect_agents(self) -> list[Agent[Any]]:
        """The agent, its sub-agents, theirs, and so on."""
        found: dict[str, Agent[Any]] = {}
        queue: list[Agent[Any]] = [self]
        while queue:
            agent = queue.pop(0)
            if found.setdefault(agent.name, agent) is agent:
                queue += agent.subagents
        return list(found.values())

    @cached_property
    def tool_definition(self) -> ToolDefinition:
        """The definition that the model of another agent sees, if this one is its sub-agent."""
        from pydantic_ai.tools import ToolDefinition

        return ToolDefinition(name=self.name, parameters_json_schema=_TASK_SCHEMA, description=self.description or None)

    def add_guidance(self, instructions: str | None) -> str | None:
        """The instructions, with guidance for the agent's memory, skills, and planning."""
        return "\n\n".join([*([instructions] if instructions else []), *self._guidance]) or None

    # Overrides of Workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The prompt and the history in their recorded form. The deps are not recorded."""
        given = dict(kwargs)
        deps = given.pop("deps", None)
        check_deps_type(deps, self.deps_type, self.name)
        if args:
            prompt, *rest = args
            args = (self._dump_prompt(prompt), *rest)
        elif "prompt" in given:
            given["prompt"] = self._dump_prompt(given["prompt"])
        given = {name: value for name, value in given.items() if value is not None}
        if "message_history" in given:
            given["message_history"] = self._dump_history(given["message_history"])

        def bind_run(run_id: str) -> None:
            set_run_deps(run_id, deps)

        # A run that another run starts has the other run's deps, unless it gets its own.
        if deps is None and (self.deps_type is None or get_current_execution() is not None):
            return PreparedStart(args, given)
        return PreparedStart(args, given, bind_run, clear_run_deps)

    def get_handle(self, provider: StoreProvider, run_id: str) -> AgentHandle[T]:
        """A handle to one of its runs."""
        return AgentHandle(provider, run_id, self.definition.output_codec.decode, self._build_instructions)  # type: ignore[arg-type]

    def _build_instructions(self, generated: str | None) -> str | None:
        """The instructions in the first message, given the result of the instructions function, if it is one."""
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

    def _define(self, name: str, budget: Budget | None, options: WorkflowOptions) -> WorkflowDefinition:
        subject, queue = f"agent {name!r}", options.queue or name

        async def run(
            prompt: str | list[Any], message_history: list[Any] | None = None, session: str | None = None
        ) -> AgentResult[Any]:
            return await run_agent(self, prompt, message_history, session)

        signature, hints = inspect.signature(run), resolve_hints(run)
        defaults: dict[str, Any] = {"message_history": None, "session": None}
        namespace = attribute_to_caller(run, name, os.path.dirname(holdfast.__file__) + os.sep)
        run.__doc__ = self.description or None
        return WorkflowDefinition(
            name=name,
            function=run,
            inputs_codec=InputsCodec(name, signature, hints),
            output_codec=AgentResultCodec(self.output_spec.codec),
            namespace=namespace,
            defaults=defaults,
            queue_key=make_queue_key(queue, signature, defaults, subject),
            queue=resolve_queue_name(queue, subject),
            timeout_s=declared_seconds(options.timeout, f"{subject}: timeout"),
            tags=tuple(options.tags),
            budget=budget,
            is_agent=True,
            max_deliveries=resolve_max_deliveries(options.max_deliveries, subject),
            version=options.version,
            also_served_versions=validate_served_versions(options.serves, options.version, subject),
            load_imports=load_library,
        )


def _check_arguments(
    name: object, planning: object, max_turns: object, budget: object, workflow_options: object
) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DefinitionError(f"Agent(name={name!r}): an agent has a name, by which its runs are found")
    subject = f"agent {name!r}"
    if not isinstance(planning, bool):
        raise DefinitionError(f"{subject}: planning={planning!r} is True or False")
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise DefinitionError(f"{subject}: max_turns={max_turns!r} must be a whole number, 1 or more")
    if not isinstance(budget, Budget | None):
        raise DefinitionError(f"{subject}: budget is a Budget, as in Budget(usd=1.5), not {budget!r}")
    if not isinstance(workflow_options, WorkflowOptions | None):
        raise DefinitionError(
            f"{subject}: workflow_options is a WorkflowOptions, as in WorkflowOptions(queue='llm'), not "
            f"{workflow_options!r}"
        )


def _make_own_tools(
    memory: MemoryNamespace | None, skills: Mapping[str, Skill], planning: bool, subject: str
) -> tuple[list[Tool], list[str]]:
    """The tools for an agent's memory, skills, and planning, and the guidance that is added to its instructions."""
    tools: list[Tool] = []
    guidance: list[str] = []
    if memory is not None:
        tools += make_memory_tools(validate_namespace(memory, subject))
        guidance.append(MEMORY_GUIDANCE)
    if skills:
        tools += make_skill_tools(skills)
        guidance.append(format_catalog(skills))
    if planning:
        tools.append(get_plan_tool())
        guidance.append(PLANNING_GUIDANCE)
    return tools, guidance


def _collect_callables(values: Sequence[Any], subject: str) -> dict[str, Tool | Agent[Any]]:
    """Tools and sub-agents by the names that the model uses."""
    members: dict[str, Tool | Agent[Any]] = {}
    for value in values:
        member: Tool | Agent[Any] = cast("Agent[Any]", value) if isinstance(value, Agent) else to_tool(value, subject)
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
                    f"a model calls them by name"
                )
            if tool.name not in callables:
                found[tool.name] = tool
    return found
