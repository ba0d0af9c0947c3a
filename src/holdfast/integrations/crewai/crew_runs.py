"""Durable crews: ``crew = durable(Crew(...))``.

- **In a program**, a crew runs as it always does, and its model calls and tools are steps of the program's run.
- **In a workflow**, ``await crew.akickoff(...)`` is a child run.
- **Anywhere else**, each kickoff is a run of its own, of a program with the crew's name. The caller waits for it. So a
  process that was killed and is started again joins the run that it left.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from asyncio import events
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import crewai
from crewai import Crew
from crewai.crews.crew_output import CrewOutput
from crewai.utilities.string_utils import sanitize_tool_name

import holdfast
from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.authoring.introspection import attribute_to_caller, resolve_hints
from holdfast.authoring.registry import register
from holdfast.authoring.workflow import Workflow
from holdfast.authoring.workflow_options import make_queue_key, resolve_queue_name, validate_tags
from holdfast.codec import InputsCodec
from holdfast.core.execution import get_current_execution
from holdfast.core.states import Effect
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.program_context import find_program
from holdfast.errors import HoldfastError, RunFailed, UsageError
from holdfast.integrations.crewai.executor_threads import started_crew
from holdfast.integrations.crewai.human_input import use_approvals
from holdfast.integrations.crewai.method_wrappers import Method, wrap_method
from holdfast.integrations.crewai.outputs import CrewOutputCodec
from holdfast.integrations.crewai.tool_calls import applying_effects, parse_effects
from holdfast.integrations.tool_names import check_tool_names
from holdfast.sync_methods import run_sync

_PRIVATE_NAME = "_holdfast_durable"
"""The name under which a crew, which is a pydantic model, keeps what makes it durable, among its private attributes."""


def make_durable_crew(
    crew: Crew,
    effects: Mapping[str, Effect | str],
    name: str | None,
    id_template: str | None,
    queue: str | Queue,
    timeout: Duration | None,
    tags: Collection[str],
    budget: Budget | None,
) -> Crew:
    """The same crew, whose kickoffs are runs."""
    name = name or crew.name or "crew"
    subject = f"crew {name!r}"
    durable = DurableCrew(crew, name, parse_effects(effects, subject))
    durable.check_effects(subject)
    options: dict[str, Any] = {
        "output_codec": CrewOutputCodec(crew),
        "timeout_s": declared_seconds(timeout, f"{subject}: timeout"),
        "tags": validate_tags(tags, subject),
        "budget": budget,
    }
    durable.workflow = _define(durable.run_once, name, queue, id_template=id_template, **options)
    durable.for_each_workflow = _define(durable.run_for_each, f"{name}.for_each", queue, **options)
    private = crew.__pydantic_private__
    assert private is not None
    private[_PRIVATE_NAME] = durable
    return crew


def _find_durable(crew: Crew) -> DurableCrew | None:
    durable: DurableCrew | None = (crew.__pydantic_private__ or {}).get(_PRIVATE_NAME)
    return durable if durable is not None and durable.crew is crew else None  # not that of a copied crew


class DurableCrew:
    """What makes a crew durable."""

    workflow: Workflow[..., CrewOutput]
    """Its program."""
    for_each_workflow: Workflow[..., list[CrewOutput]]
    """The program of ``kickoff_for_each``."""

    def __init__(self, crew: Crew, name: str, effects: Mapping[str, Effect]) -> None:
        self.crew = crew
        self.name = name
        self.effects = effects
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> DurableCrew:
        return self  # a copied crew is not durable

    def check_effects(self, subject: str) -> None:
        """Refuse an effect for a tool that the crew does not have."""
        members: list[Any] = [
            *self.crew.agents,
            *self.crew.tasks,
            *([self.crew.manager_agent] if self.crew.manager_agent else []),
        ]
        is_complete = not any(getattr(member, "mcps", None) or getattr(member, "apps", None) for member in members)
        tools = {sanitize_tool_name(tool.name) for member in members for tool in cast("list[Any]", member.tools or ())}
        tools |= {"delegate_work_to_coworker", "ask_question_to_coworker"}
        check_tool_names(self.effects, tools, subject, is_complete=is_complete)

    # Its runs

    def run_once(self, **inputs: Any) -> CrewOutput:
        """The function of its program."""
        with self._claim_crew() as crew:
            return crew.kickoff(inputs=inputs or None)  # type: ignore[return-value]

    def run_for_each(self, items: list[dict[str, Any]], concurrently: bool = False) -> list[CrewOutput]:
        """The function of the program of ``kickoff_for_each``."""
        with self._claim_crew() as crew:
            if concurrently:
                return asyncio.run(crew.kickoff_for_each_async(items))  # type: ignore[return-value]
            return crew.kickoff_for_each(items)  # type: ignore[return-value]

    @contextmanager
    def _claim_crew(self) -> Generator[Crew]:
        """The crew, or a copy while another run of this process uses it: a crew is changed by its kickoff."""
        is_free = self._lock.acquire(blocking=False)
        crew = self.crew if is_free else _copy_crew(self.crew)
        try:
            with applying_effects(self.effects):
                yield crew
        finally:
            if is_free:
                self._lock.release()

    async def start(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Start a run, or join it, and wait for its result."""
        _check_arguments(self, method, arguments)
        inputs = arguments.get("inputs")
        try:
            if "for_each" in method:
                options = {"concurrently": True} if method != "kickoff_for_each" else {}
                return await self.for_each_workflow(list(inputs or ()), **options)
            result = await self.workflow(**dict(inputs or {}))
        except RunFailed as failed:
            raise _get_own_error(failed) from None
        self.crew.usage_metrics = result.token_usage
        return result


def _copy_crew(crew: Crew) -> Crew:
    """A copy of a crew that is at work. Its texts are those of the crew before that put its inputs into them."""
    copied = crew.copy()
    for task, copied_task in zip(crew.tasks, copied.tasks, strict=True):
        _restore_texts(task, copied_task, ("description", "expected_output", "output_file"))
    agents, copied_agents = [*crew.agents, crew.manager_agent], [*copied.agents, copied.manager_agent]
    for agent, copied_agent in zip(agents, copied_agents, strict=True):
        if agent is not None:
            _restore_texts(agent, copied_agent, ("role", "goal", "backstory"))
    return copied


def _restore_texts(member: Any, copied: Any, names: Sequence[str]) -> None:
    for name in names:
        text = getattr(member, name)  # first: the original is kept before the text is changed
        setattr(copied, name, getattr(member, f"_original_{name}") or text)


def _check_arguments(durable: DurableCrew, method: str, arguments: Mapping[str, Any]) -> None:
    for name in ("input_files", "from_checkpoint"):
        if arguments.get(name) is not None:
            raise UsageError(
                f"crew {durable.name!r} is durable, and {method}({name}=...) cannot be recorded as an input of its own "
                "run: call it in a @program, or pass what it needs in inputs="
            )
    if durable.crew.stream:
        raise UsageError(
            f"crew {durable.name!r} has stream=True: a run of its own returns its result when it has ended. Call it in "
            "a @program, where it streams, or set stream=False and read the text with `holdfast tail`"
        )


def _get_own_error(failed: RunFailed) -> BaseException:
    """The crew's own exception, as its caller expects; for failures of the run itself, ``RunFailed``."""
    cause = failed.__cause__
    if cause is None or isinstance(cause, HoldfastError):
        return failed
    cause.add_note(str(failed))
    return cause


def _define(method: Callable[..., Any], name: str, queue: str | Queue, **options: Any) -> Workflow[..., Any]:
    """A program whose function is this method."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    signature = inspect.signature(method)
    skipped = (os.path.dirname(str(package.__file__)) + os.sep for package in (holdfast, crewai))
    hints = resolve_hints(method)
    namespace = attribute_to_caller(run, name, *skipped, "<")
    definition = WorkflowDefinition(
        name=name,
        function=run,
        inputs_codec=InputsCodec(name, signature, hints),
        namespace=namespace,
        defaults={"concurrently": False} if "concurrently" in signature.parameters else {},
        queue=resolve_queue_name(queue, f"crew {name!r}"),
        queue_key=make_queue_key(queue, signature, {}, f"crew {name!r}"),
        is_program=True,
        is_async=False,
        **options,
    )
    register(definition)
    return Workflow(definition)


# The methods of crews


def replace_methods() -> None:
    """Let the kickoffs of durable crews be runs, and those in a program be part of its run."""
    for name in ("kickoff", "kickoff_for_each"):
        wrap_method(Crew, name, lambda original, name=name: _wrap_sync(name, original))
    for name in ("kickoff_async", "akickoff", "kickoff_for_each_async", "akickoff_for_each"):
        wrap_method(Crew, name, lambda original, name=name: _wrap_async(name, original))
    Crew.holdfast_workflow = property(_get_workflow)  # type: ignore[attr-defined]


def _get_workflow(crew: Crew) -> Workflow[..., CrewOutput]:
    """The program of a durable crew, for ``holdfast worker app:crew`` and for starting runs with options."""
    if (durable := _find_durable(crew)) is None:
        raise AttributeError("holdfast_workflow")
    return durable.workflow


def _wrap_sync(name: str, original: Method) -> Method:
    signature = inspect.signature(original)

    def kickoff(crew: Crew, *args: Any, **kwargs: Any) -> Any:
        durable = _find_durable(crew)
        program = find_program()
        if program is not None:
            if events._get_running_loop() is program.run.loop:
                raise UsageError(
                    f"Crew.{name}() would block the event loop that records its steps: `await "
                    f"crew.{_get_async(name)}(...)`, or make the @program a plain function"
                )
            with _in_program(crew, durable, name):
                return original(crew, *args, **kwargs)
        if durable is None:
            return original(crew, *args, **kwargs)
        if get_current_execution() is not None:
            raise UsageError(f"crew {durable.name!r}: in a workflow, `await crew.{_get_async(name)}(...)`")
        arguments = signature.bind(crew, *args, **kwargs).arguments
        return run_sync(durable.start(name, arguments))

    return kickoff


def _wrap_async(name: str, original: Method) -> Method:
    signature = inspect.signature(original)

    async def kickoff(crew: Crew, *args: Any, **kwargs: Any) -> Any:
        durable = _find_durable(crew)
        program = find_program()
        if program is not None:
            with _in_program(crew, durable, name):
                if events._get_running_loop() is program.run.loop and not crew.stream:
                    return await run_in_own_loop(lambda: original(crew, *args, **kwargs))
                return await original(crew, *args, **kwargs)
        if durable is None:
            return await original(crew, *args, **kwargs)
        return await durable.start(name, signature.bind(crew, *args, **kwargs).arguments)

    return kickoff


@contextmanager
def _in_program(crew: Crew, durable: DurableCrew | None, method: str) -> Generator[None]:
    use_approvals()
    # The kickoffs for several inputs may run at the same time, so each of them has its own starter.
    starting = nullcontext() if "for_each" in method else started_crew(crew)
    with starting, applying_effects({} if durable is None else durable.effects):
        yield


async def run_in_own_loop(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Await a coroutine on an event loop in a thread of its own.

    CrewAI's async code calls models and tools that block its loop. The loop that records them must not be blocked.
    """
    return await asyncio.to_thread(lambda: asyncio.run(make()))


def _get_async(name: str) -> str:
    return "akickoff" if name == "kickoff" else "akickoff_for_each"
