"""The methods of a durable agent: ``run``, ``iter``, ``run_stream``, and ``run_stream_events``.

The library does not tell a capability the caller's arguments, nor which method was called. So Holdfast replaces these
methods of a durable agent. In workflow code, they do the same as the library's. Elsewhere, ``run`` starts a run and
waits for it, and the others follow it: see ``followed_run``. ``run_sync`` and ``run_stream_sync`` call these.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import Agent, AgentRunResult
from pydantic_ai._agent_graph import get_captured_run_messages
from pydantic_ai.run import AgentRun

from holdfast.client.handle import Handle
from holdfast.core.execution import get_current_execution
from holdfast.errors import HoldfastError, RunFailed
from holdfast.integrations.pydantic_ai.agent_call import AgentCall
from holdfast.integrations.pydantic_ai.live_run import LiveRun, get_position

if TYPE_CHECKING:
    from holdfast.integrations.pydantic_ai.agent_workflow import AgentWorkflow
    from holdfast.integrations.pydantic_ai.followed_run import FollowedRunContext

current_call: ContextVar[AgentCall | None] = ContextVar("holdfast_pydantic_ai_call", default=None)
"""The current call of an agent, while the library sets up the run."""
_is_result_only: ContextVar[bool] = ContextVar("holdfast_pydantic_ai_waits_only", default=False)
"""Whether the library's ``run`` is about to call ``iter`` for a caller that wants only the result."""


def replace_methods(agent: Agent[Any, Any], workflow: AgentWorkflow) -> None:
    """Replace the methods of an agent by those of a durable one."""
    original = {name: _get_original(agent, name) for name in ("iter", "run", "run_stream", "run_stream_events")}

    def follow(prompt: Any, arguments: dict[str, Any], *, is_stream: bool = False) -> FollowedRunContext:
        # Imported here: it uses private names of the library, on which `agent.run` must not depend.
        from holdfast.integrations.pydantic_ai.followed_run import FollowedRunContext

        token = arguments.pop("cancellation_token", None)
        call = AgentCall(agent, prompt, arguments)
        call.is_stream = is_stream

        async def start(live: LiveRun) -> Handle[Any]:
            call.live_run = live
            return await start_run(workflow, call)

        def open_finished(result: AgentRunResult[Any]) -> AbstractAsyncContextManager[AgentRun[Any, Any]]:
            call.result = result
            return _open_run(original["iter"](prompt, **arguments), call)

        return FollowedRunContext(start, lambda handle: await_result(handle, call), open_finished, token)

    def iter(user_prompt: Any = None, **arguments: Any) -> Any:
        if get_current_execution() is not None:
            return _open_run(original["iter"](user_prompt, **arguments), None)
        if _is_result_only.get():
            _is_result_only.set(False)
            return _open_run(original["iter"](user_prompt, **arguments), AgentCall(agent, user_prompt, arguments))
        return follow(user_prompt, arguments)

    async def run(*args: Any, **arguments: Any) -> Any:
        is_plain = all(arguments.get(name) is None for name in ("event_stream_handler", "cancellation_token"))
        token = _is_result_only.set(is_plain and get_current_execution() is None)
        try:
            return await original["run"](*args, **arguments)
        finally:
            _is_result_only.reset(token)

    def stream(user_prompt: Any = None, *, event_stream_handler: Any = None, **arguments: Any) -> Any:
        if get_current_execution() is not None:
            return original["run_stream"](user_prompt, event_stream_handler=event_stream_handler, **arguments)
        from holdfast.integrations.pydantic_ai.followed_run import run_stream

        return run_stream(follow(user_prompt, arguments, is_stream=True), event_stream_handler)

    def stream_events(*args: Any, **arguments: Any) -> Any:
        events = original["run_stream_events"](*args, **arguments)
        return events if get_current_execution() is not None else _cancel_on_exit(events)

    replacements: dict[str, Callable[..., Any]] = {
        "iter": iter, "run": run, "run_stream": stream, "run_stream_events": stream_events,
    }  # fmt: skip
    for name, replacement in replacements.items():
        functools.update_wrapper(cast(Any, replacement), original[name])
        cast(Any, replacement).holdfast_original = original[name]
        setattr(agent, name, replacement)


def _get_original(agent: Agent[Any, Any], name: str) -> Any:
    """The library's own method, also if the agent was made durable before."""
    method = getattr(agent, name)
    return getattr(method, "holdfast_original", method)


async def start_run(workflow: AgentWorkflow, call: AgentCall) -> Handle[Any]:
    """Start the run of a call, or join it."""
    run_id = call.arguments.get("run_id")
    return await (workflow if run_id is None else workflow.options(id=run_id)).start(call)


async def await_result(handle: Handle[Any], call: AgentCall) -> AgentRunResult[Any]:
    """The result of a call's run. Raises the agent's exception."""
    try:
        result: AgentRunResult[Any] = await handle.result()
    except RunFailed as failed:
        raise _get_agent_error(failed) from None
    if "usage" in call.arguments:  # the caller's object, of which the run has used a copy
        call.arguments["usage"].incr(result.usage - call.arguments["usage"])
    _capture_messages(result)
    return result


def _capture_messages(result: AgentRunResult[Any]) -> None:
    """Pass the messages to the caller's ``capture_run_messages()``, if this is the first run in its block."""
    try:
        captured = get_captured_run_messages()
    except LookupError:
        return
    if not captured.used:
        captured.used = True
        captured.messages[:] = result.all_messages()


def _get_agent_error(failed: RunFailed) -> BaseException:
    """The agent's own exception, as its caller expects; for failures of the run itself, ``RunFailed``."""
    cause = failed.__cause__
    if cause is None or isinstance(cause, HoldfastError):
        return failed
    cause.add_note(str(failed))
    return cause


@asynccontextmanager
async def _open_run(
    run_context: AbstractAsyncContextManager[AgentRun[Any, Any]], call: AgentCall | None
) -> AsyncGenerator[AgentRun[Any, Any]]:
    """The library's run context, with the call in ``current_call`` while the library sets up the run."""
    async with AsyncExitStack() as stack:
        token = current_call.set(call)
        try:
            run = await stack.enter_async_context(run_context)
        finally:
            current_call.reset(token)
        if (position := get_position(run.run_id)) is not None:
            position.attach_run(run)
        yield run


@asynccontextmanager
async def _cancel_on_exit(events_context: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    """The context of ``run_stream_events``, which cancels the run if it is left by ``break`` or an exception."""
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(events_context)

        def cancel(_kind: Any, error: BaseException | None, _traceback: Any) -> None:
            if (error is None or isinstance(error, Exception)) and events.result is None:
                events.cancel()

        stack.push(cancel)
        yield events
