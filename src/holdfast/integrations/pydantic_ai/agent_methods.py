"""The methods of a durable agent: ``run``, ``iter``, ``run_stream`` and ``run_stream_events`` as they are called.

The library tells a capability neither what a caller has given nor in which way the agent is run. So these methods of a
durable agent are replaced by ones that know. In workflow code they are the library's. Elsewhere, ``run`` starts a run
and waits for it, and the others follow it: see ``followed_run``. ``run_sync`` and ``run_stream_sync`` call these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import TracebackType
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
"""What an agent is being called with, while the library sets the run up."""
_is_result_only: ContextVar[bool] = ContextVar("holdfast_pydantic_ai_waits_only", default=False)
"""Whether the library's ``run`` is about to call ``iter`` for a caller who wants nothing but the result."""


def replace_methods(agent: Agent[Any, Any], workflow: AgentWorkflow) -> None:
    """Make the methods of an agent those of a durable one."""
    original = {name: _get_original(agent, name) for name in ("iter", "run", "run_stream", "run_stream_events")}

    def follow(prompt: Any, arguments: dict[str, Any], *, is_stream: bool = False) -> FollowedRunContext:
        # It uses private names of the library, which an agent that is only run must not depend on.
        from holdfast.integrations.pydantic_ai.followed_run import FollowedRunContext

        token = arguments.pop("cancellation_token", None)
        call = AgentCall(agent, prompt, arguments)
        call.is_stream = is_stream

        async def start(live: LiveRun) -> Handle[Any]:
            call.live_run = live
            return await start_run(workflow, call)

        def open_ended(result: AgentRunResult[Any]) -> AbstractAsyncContextManager[AgentRun[Any, Any]]:
            call.result = result
            return _RunOpener(original["iter"](prompt, **arguments), call)

        return FollowedRunContext(start, lambda handle: await_result(handle, call), open_ended, token)

    def iter(user_prompt: Any = None, **arguments: Any) -> Any:
        if get_current_execution() is not None:
            return _RunOpener(original["iter"](user_prompt, **arguments), None)
        if _is_result_only.get():
            _is_result_only.set(False)
            return _RunOpener(original["iter"](user_prompt, **arguments), AgentCall(agent, user_prompt, arguments))
        return follow(user_prompt, arguments)

    async def run(*args: Any, **arguments: Any) -> Any:
        only = all(arguments.get(name) is None for name in ("event_stream_handler", "cancellation_token"))
        token = _is_result_only.set(only and get_current_execution() is None)
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
        return events if get_current_execution() is not None else _EventStreamContext(events)

    replacements: dict[str, Callable[..., Any]] = {
        "iter": iter, "run": run, "run_stream": stream, "run_stream_events": stream_events,
    }  # fmt: skip
    for name, replacement in replacements.items():
        functools.update_wrapper(cast(Any, replacement), original[name])
        cast(Any, replacement).holdfast_original = original[name]
        setattr(agent, name, replacement)


def _get_original(agent: Agent[Any, Any], name: str) -> Any:
    """The library's own method, also if an agent is made durable for a second time."""
    method = getattr(agent, name)
    return getattr(method, "holdfast_original", method)


async def start_run(workflow: AgentWorkflow, call: AgentCall) -> Handle[Any]:
    """Start the run of a call, or join it."""
    run_id = call.arguments.get("run_id")
    return await (workflow if run_id is None else workflow.options(id=run_id)).start(call)


async def await_result(handle: Handle[Any], call: AgentCall) -> AgentRunResult[Any]:
    """The result of the run of a call; raises what the agent raised."""
    try:
        result: AgentRunResult[Any] = await handle.result()
    except RunFailed as failed:
        raise _get_agent_error(failed) from None
    if "usage" in call.arguments:  # the caller's own account, which the run has been counting on a copy of
        call.arguments["usage"].incr(result.usage - call.arguments["usage"])
    _capture_messages(result)
    return result


def _capture_messages(result: AgentRunResult[Any]) -> None:
    """Hand the messages to the caller's ``capture_run_messages()``, which is for the first run in its block."""
    try:
        captured = get_captured_run_messages()
    except LookupError:
        return
    if not captured.used:
        captured.used = True
        captured.messages[:] = result.all_messages()


def _get_agent_error(failed: RunFailed) -> BaseException:
    """What the agent raised, where its caller expects that; else what has become of the run."""
    cause = failed.__cause__
    if cause is None or isinstance(cause, HoldfastError):
        return failed
    cause.add_note(str(failed))
    return cause


class _RunOpener:
    """What the library's ``iter`` returns. While it sets the run up, the call is in ``current_call``."""

    def __init__(self, run_context: AbstractAsyncContextManager[AgentRun[Any, Any]], call: AgentCall | None) -> None:
        self._run_context = run_context
        self._call = call

    async def __aenter__(self) -> AgentRun[Any, Any]:
        token = current_call.set(self._call)
        try:
            run = await self._run_context.__aenter__()
        finally:
            current_call.reset(token)
        if (position := get_position(run.run_id)) is not None:
            position.attach_run(run)
        return run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._run_context.__aexit__(kind, error, traceback)


class _EventStreamContext:
    """What ``run_stream_events`` returns. Leaving it by ``break`` or by an exception cancels the run."""

    def __init__(self, events: AbstractAsyncContextManager[Any]) -> None:
        self._context = events

    async def __aenter__(self) -> Any:
        self._events = await self._context.__aenter__()
        return self._events

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if (error is None or isinstance(error, Exception)) and self._events.result is None:
            self._events.cancel()
        return await self._context.__aexit__(kind, error, traceback)
