"""``durable(runner)``: a runner of the framework whose invocations survive the process."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

from google.adk.events.event import Event
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import Runner

from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import UsageError
from holdfast.integrations.google_adk.invocation import Invocation, check_arguments
from holdfast.integrations.google_adk.own_run import RunnerProgram, run_own
from holdfast.integrations.google_adk.plugin import HoldfastPlugin
from holdfast.integrations.google_adk.recorded_model import make_model_durable
from holdfast.integrations.google_adk.recorded_tool import FLOW_TOOL_NAMES, Effects
from holdfast.integrations.google_adk.runner_tools import ToolNames
from holdfast.integrations.tool_names import check_tool_names

_run_id: ContextVar[str | None] = ContextVar("holdfast_adk_run_id", default=None)
"""The run id that was given to ``run``, which calls ``run_async``."""


def durable(
    runner: Runner,
    *,
    name: str | None = None,
    effects: Mapping[str, Effect | str | None] | None = None,
    approvals: bool = True,
    queue: str | Queue = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
) -> DurableRunner:
    """The same runner, whose invocations survive the process: after a crash, only what was in flight is repeated.

    In a ``@program``, the calls of ``run_async``, ``run``, and ``run_debug`` are recorded in that program's run.
    Anywhere else, each invocation is a run of its own, which ``run_async(..., run_id=...)`` can name.

    Args:
        runner: a ``Runner``, such as ``InMemoryRunner(agent=...)``. It stays as it is.
        name: the name of the program of its runs (default: the name of the agent).
        effects: what tools do to the world, by their names: ``read``, ``idempotent`` (the default), or ``once``, which
            is never executed again. ``None`` makes a tool no step: it is executed again in a replay, and what it calls
            is recorded.
        approvals: whether a tool that requires a confirmation waits for an approval (``holdfast approve``). If not, the
            framework emits its own event, and a later invocation answers it.
        queue: the queue that its runs wait in.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: labels to list its runs by.
    """
    if isinstance(runner, DurableRunner):
        raise UsageError(f"runner {runner.program.name!r} is durable already: call durable(...) once")
    made = copy.copy(runner)
    object.__setattr__(made, "__class__", _make_durable_class(type(runner)))
    durable_runner = cast(DurableRunner, made)
    durable_runner.base = type(runner)
    manager = runner.plugin_manager
    plugin = HoldfastPlugin(runner.agent.name, _parse_effects(runner, effects or {}), asks=approvals)
    durable_runner.plugin_manager = PluginManager(
        [plugin, *manager.plugins],
        close_timeout=manager._close_timeout,  # pyright: ignore[reportPrivateUsage]
    )
    summarizer = getattr(runner.app.events_compaction_config, "summarizer", None)
    make_model_durable(getattr(summarizer, "_llm", None))
    durable_runner.program = RunnerProgram(durable_runner, name or runner.agent.name, queue, timeout, tuple(tags))
    return durable_runner


class DurableRunner(Runner):
    """A durable runner. It is also an instance of the class of the runner that it was made of."""

    program: RunnerProgram
    """The program of its runs: ``program.start(user_id=..., session_id=..., new_message=...)`` returns a handle."""
    base: type[Runner]
    """The class of the runner that it was made of."""

    async def run_async(self, *, run_id: str | None = None, **arguments: Any) -> AsyncGenerator[Event]:
        """Run the agent, and yield its events. The arguments are those of ``Runner.run_async``, and:

        Args:
            run_id: the id of the run. Starting it again joins that run. Not in a program, whose run has an id.
            arguments: those of ``Runner.run_async``.
        """
        run_id = run_id or _run_id.get()
        check_arguments(self, arguments.get("run_config"))
        program = find_program()
        if program is None:
            events = run_own(self.program, self, {**arguments, "run_id": run_id})
        elif run_id is not None:
            raise UsageError(
                f"runner {self.program.name!r}: run_id={run_id!r} cannot be given in a program, because the invocation "
                "is a part of the program's run"
            )
        else:
            events = Invocation(program.run, self, self.base, arguments).run()
        async with aclosing(events):
            async for event in events:
                yield event

    def run(self, *, run_id: str | None = None, **arguments: Any) -> Generator[Event, None, None]:
        """The same for code that is not async. The arguments are those of ``Runner.run`` and ``run_id``."""
        token = _run_id.set(run_id)
        try:
            events = self.base.run(self, **arguments)
            first = next(events, None)  # it starts the thread, which inherits the context
        finally:
            _run_id.reset(token)
        if first is not None:
            yield first
            yield from events

    async def run_live(self, **_: Any) -> AsyncGenerator[Event]:
        """Refused: the connection of a live session cannot be recorded."""
        raise UsageError(
            f"runner {self.program.name!r} is durable, and a live session is a connection that cannot be recorded. "
            "Use the runner that is not durable for `run_live`"
        )
        yield  # an async generator, as the framework's is


@cache
def _make_durable_class(cls: type[Runner]) -> type[Runner]:
    """A durable runner that is also an instance of ``cls``."""
    if cls is Runner:
        return DurableRunner
    return type(cls.__name__, (DurableRunner, cls), {"__doc__": cls.__doc__, "__module__": cls.__module__})


def _parse_effects(runner: Runner, effects: Mapping[str, Effect | str | None]) -> Effects:
    parsed: dict[str, Effect | None] = {}
    for tool, effect in effects.items():
        try:
            parsed[tool] = None if effect is None else Effect(effect)
        except ValueError:
            known = ", ".join(repr(one.value) for one in Effect)
            raise UsageError(
                f"runner {runner.app_name!r}, tool {tool!r}: effect={effect!r} is not one of {known}, None"
            ) from None
    tools = ToolNames(runner.agent)
    given = parsed.keys() - FLOW_TOOL_NAMES
    check_tool_names(given, tools.names, f"runner {runner.app_name!r}", is_complete=tools.is_complete)
    return parsed
