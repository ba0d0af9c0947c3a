"""Which run an agent's calls are recorded in: that of the calling program, a child run, or one of their own."""

from __future__ import annotations

from typing import Any

from agents import Agent, RunResult, RunResultStreaming, RunState, TResponseInputItem
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.run_config import RunOptions
from typing_extensions import Unpack

from holdfast.authoring.runtime import Runtime
from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program, in_thread
from holdfast.errors import UsageError
from holdfast.integrations.openai_agents.agent_program import AgentCall, AgentProgram, clean_arguments
from holdfast.integrations.openai_agents.agent_run import AgentSettings, run_agent
from holdfast.integrations.openai_agents.event_streams import FollowedStream, ProgramStream
from holdfast.integrations.openai_agents.sdk_hooks import current_agent_run


class DurableRunner(AgentRunner):
    """Runs durable agents; others go to the runner that was the default before."""

    def __init__(self) -> None:
        self._other = get_default_agent_runner()

    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, starting_agent: Agent[Any], input: Any, *, run_id: str | None = None, **kwargs: Any
    ) -> RunResult:
        """``Runner.run``."""
        program = _get_program(starting_agent)
        if (settings := _find_settings(program)) is not None:
            _refuse_run_id(starting_agent, run_id)
            return await run_agent(settings, starting_agent, input, kwargs)
        if program is None:
            _refuse_not_durable(starting_agent, run_id)
            return await self._other.run(starting_agent, input, **kwargs)
        call = AgentCall(_check_input(starting_agent, input), clean_arguments(kwargs))
        if get_current_execution() is not None:
            workflow = program if run_id is None else program.options(id=run_id)
            return await program.load_result(await workflow(call), call.arguments.get("context"))
        handle = await program.start_call(call, run_id)
        return await program.await_result(handle, call)

    def run_sync(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, starting_agent: Agent[Any], input: Any, *, run_id: str | None = None, **kwargs: Any
    ) -> RunResult:
        """``Runner.run_sync``."""
        program = _get_program(starting_agent)
        if (settings := _find_settings(program)) is not None:
            _refuse_run_id(starting_agent, run_id)
            return _ProgramSyncRunner(settings).run_sync(starting_agent, input, **kwargs)
        if program is None:
            _refuse_not_durable(starting_agent, run_id)
            return self._other.run_sync(starting_agent, input, **kwargs)
        return _SyncRunner(self, run_id).run_sync(starting_agent, input, **kwargs)

    def run_streamed(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, starting_agent: Agent[Any], input: Any, *, run_id: str | None = None, **kwargs: Any
    ) -> RunResultStreaming:
        """``Runner.run_streamed``."""
        program = _get_program(starting_agent)
        if (settings := _find_settings(program)) is not None:
            _refuse_run_id(starting_agent, run_id)
            return ProgramStream(settings, starting_agent, input, kwargs)
        if program is None:
            _refuse_not_durable(starting_agent, run_id)
            return self._other.run_streamed(starting_agent, input, **kwargs)
        if get_current_execution() is not None:
            raise UsageError(
                f"agent {starting_agent.name!r}: a workflow cannot stream, because it runs again from its records. Use "
                "`await Runner.run(...)`, or stream in a @program"
            )
        call = AgentCall(_check_input(starting_agent, input), clean_arguments(kwargs), is_streamed=True)
        return FollowedStream(program, call, run_id)


class _ProgramSyncRunner(AgentRunner):
    """Runs in a program, in the logical thread of the caller, which waits: the SDK makes a task for each of them."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        program = find_program()
        assert program is not None
        self._thread = program.thread

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> RunResult:
        """``Runner.run``."""
        with in_thread(self._thread):
            return await run_agent(self._settings, starting_agent, input, kwargs)


class _SyncRunner(AgentRunner):
    """Runs of their own without an event loop, on the loop that the SDK keeps for such runs and its HTTP client."""

    def __init__(self, runner: DurableRunner, run_id: str | None) -> None:
        self._runner = runner
        self._run_id = run_id

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> RunResult:
        """``Runner.run``. Closes the runtime, because the loop stops afterwards."""
        try:
            return await self._runner.run(starting_agent, input, run_id=self._run_id, **kwargs)
        finally:
            await (await Runtime.current()).close()


def _get_program(agent: Agent[Any]) -> AgentProgram | None:
    program = getattr(agent, "holdfast_workflow", None)
    return program if isinstance(program, AgentProgram) else None


def _find_settings(program: AgentProgram | None) -> AgentSettings | None:
    """The settings for a run in the calling program; ``None``: this is no program, or the agent is not durable."""
    if find_program() is None or get_current_execution() is not None:
        return None
    if program is not None:
        return program.settings
    agent_run = current_agent_run.get()  # an agent as a tool, or one that a tool runs
    return None if agent_run is None else agent_run.settings


def _check_input(agent: Agent[Any], input: Any) -> Any:
    if isinstance(input, RunState):
        raise UsageError(
            f"agent {agent.name!r}: a RunState cannot be the input of a run of its own: a durable run waits for "
            "its approvals itself (`holdfast approvals`) and continues. In a @program, it can be."
        )
    return input


def _refuse_run_id(agent: Agent[Any], run_id: str | None) -> None:
    if run_id is not None:
        raise UsageError(
            f"agent {agent.name!r}: run_id={run_id!r} is for runs of their own, and this call belongs to the program "
            "that makes it: leave it out"
        )


def _refuse_not_durable(agent: Agent[Any], run_id: str | None) -> None:
    if run_id is not None:
        raise UsageError(
            f"agent {agent.name!r} is not durable, so its run has no id: `agent = durable(agent)`, or leave out run_id="
        )


_runner = DurableRunner()
set_default_agent_runner(_runner)


class Runner:
    """The SDK's ``Runner``, with ``run_id=``: the id of the run. Starting it again joins the run with this id."""

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],
        *,
        run_id: str | None = None,
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """``Runner.run`` of the SDK."""
        return await _runner.run(starting_agent, input, run_id=run_id, **kwargs)

    @classmethod
    def run_sync(
        cls,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],
        *,
        run_id: str | None = None,
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """``Runner.run_sync`` of the SDK."""
        return _runner.run_sync(starting_agent, input, run_id=run_id, **kwargs)

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],
        *,
        run_id: str | None = None,
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        """``Runner.run_streamed`` of the SDK."""
        return _runner.run_streamed(starting_agent, input, run_id=run_id, **kwargs)
