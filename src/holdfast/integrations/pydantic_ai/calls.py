"""What an agent is called with outside of workflow code, as inputs of a run.

A run goes on in other processes, so what it was started with must be recorded, or belong to the agent. The prompt, the
history and the plain settings of a call are recorded. ``deps`` are handed over, as to our own agents: each process
brings its own. A type, a function or a toolset can be neither, and is refused: in a workflow function, which every
process has, all of them may be given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.agents.models.messages import dump_content, dump_messages, load_content, load_messages
from holdfast.errors import CodecError, InputError, UsageError

_TYPED: dict[str, Any] = {
    "deferred_tool_results": DeferredToolResults,
    "usage_limits": UsageLimits,
    "usage": RunUsage,
}
_PLAIN = frozenset({"conversation_id", "instructions", "metadata", "model", "model_settings", "retries", "timeout"})
"""Settings of a call that are recorded as they are, if they are plain data."""

_ELSEWHERE = {
    "output_type": "give it to `Agent(output_type=...)`",
    "toolsets": "give them to `Agent(toolsets=...)`",
    "capabilities": "give them to `Agent(capabilities=...)`",
    "event_stream_handler": "give it to `Durable(event_stream_handler=...)`",
    "cancellation_token": "cancel the run instead, with `holdfast cancel` or the handle of `Durable.from_agent(agent)`",
    "conversation": "give its messages as `message_history=`",
    "spec": "build the agent from it",
    "workspace": "give it to the agent as a capability",
}
_IN_A_WORKFLOW = "or call the agent in a workflow function, where everything may be given"

_adapters: dict[str, TypeAdapter[Any]] = {}


class Call:
    """One call of an agent, outside of workflow code."""

    __slots__ = ("given", "prompt")

    def __init__(self, prompt: str | Sequence[UserContent] | None, given: Mapping[str, Any]) -> None:
        self.prompt = prompt
        self.given = {name: value for name, value in given.items() if value is not None and name != "infer_name"}


# From the caller to the capability


class Watched:
    """What ``agent.iter`` returns, through which the library goes whichever way an agent is run.

    The library does not tell a capability what the caller has given. While the run is being set up, it is in ``noted``.
    """

    def __init__(self, opened: Any, noted: ContextVar[Call | None], call: Call) -> None:
        self._opened = opened
        self._noted = noted
        self._call = call

    async def __aenter__(self) -> Any:
        token = self._noted.set(self._call)
        try:
            return await self._opened.__aenter__()
        finally:
            self._noted.reset(token)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, traceback)


def watch(agent: Agent[Any, Any], name: str, noted: ContextVar[Call | None], in_workflow: Callable[[], bool]) -> None:
    """See what an agent is called with."""
    enter, run, run_stream, run_stream_events = (
        _below(getattr(agent, one)) for one in ("iter", "run", "run_stream", "run_stream_events")
    )

    def iter(user_prompt: Any = None, **given: Any) -> Any:
        opened = enter(user_prompt, **given)
        return opened if in_workflow() else Watched(opened, noted, Call(user_prompt, given))

    # These keep one argument to themselves, and the last one makes one of its own.

    def refuse_handler(given: Mapping[str, Any]) -> None:
        if given.get("event_stream_handler") is not None and not in_workflow():
            raise _refused("event_stream_handler", name)

    async def watched_run(*args: Any, **given: Any) -> Any:
        refuse_handler(given)
        return await run(*args, **given)

    def watched_run_stream(*args: Any, **given: Any) -> Any:
        refuse_handler(given)
        return run_stream(*args, **given)

    def watched_run_stream_events(*args: Any, **given: Any) -> Any:
        if not in_workflow():
            raise UsageError(
                f"agent {name!r} is durable, and what `agent.run_stream_events(...)` would tell of happens in a run "
                f"that may be in another process. Instead: give `Durable(event_stream_handler=...)`, which is told in "
                f"whichever process the run is, or follow the run with `handle.events()`; {_IN_A_WORKFLOW}."
            )
        return run_stream_events(*args, **given)

    for original, watched in (
        (enter, iter),
        (run, watched_run),
        (run_stream, watched_run_stream),
        (run_stream_events, watched_run_stream_events),
    ):
        functools.update_wrapper(cast(Any, watched), original)
        cast(Any, watched).holdfast_below = original
        setattr(agent, original.__name__, watched)


def _below(method: Any) -> Any:
    """The library's own method, if an agent is made durable for a second time."""
    return getattr(method, "holdfast_below", method)


def refuse_overrides(agent: Agent[Any, Any], name: str) -> None:
    """What ``agent.override`` has changed for the calling task would be changed in this process only."""
    overrides = {key: value for key, value in vars(agent).items() if key.startswith("_override_")}
    for attribute, variable in overrides.items():
        if isinstance(variable, ContextVar) and cast("ContextVar[Any]", variable).get() is not None:
            what = attribute.removeprefix("_override_")
            raise UsageError(
                f"agent {name!r} is run under `agent.override({what}=...)`, which another process that goes on with "
                f"the run would know nothing of: write the override around the call in a workflow function, or make an "
                f"agent with it"
            )


# As inputs


def recorded(call: Call, name: str, models: Mapping[str, Model]) -> dict[str, Any]:
    """A call as inputs of a run: plain data. Raises ``UsageError`` for what cannot be recorded."""
    settings: dict[str, Any] = {}
    inputs: dict[str, Any] = {"prompt": _prompt(call.prompt, name)}
    for key, value in call.given.items():
        if key == "run_id":
            continue
        if key == "deps":
            settings["deps"] = True  # that there were some; what they are is each process's own
        elif key == "message_history":
            if value:
                inputs["message_history"] = _history(value, name)
        elif key in _TYPED:
            settings[key] = _adapter(key).dump_python(value, mode="json")
        elif key in _PLAIN:
            settings[key] = _plain(key, _name_of(value, models) if key == "model" else value, name)
        else:
            raise _refused(key, name)
    if settings:
        inputs["settings"] = settings
    return inputs


def restored(prompt: Any, message_history: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``agent.run`` in recorded inputs."""
    given: dict[str, Any] = {
        "user_prompt": load_content(cast("list[Any]", prompt)) if isinstance(prompt, list) else prompt
    }
    if message_history:
        given["message_history"] = load_messages(message_history)
    for key, value in settings.items():
        if key in _TYPED:
            given[key] = _adapter(key).validate_python(value)
        elif key != "deps":
            given[key] = value
    return given


def _prompt(prompt: Any, name: str) -> Any:
    if prompt is None or isinstance(prompt, str):
        return prompt
    try:
        return dump_content(prompt)
    except (CodecError, TypeError, ValueError) as error:
        raise InputError(f"the prompt of agent {name!r} cannot be recorded: {error}") from error


def _history(messages: Sequence[ModelMessage], name: str) -> list[Any]:
    try:
        return dump_messages(messages)
    except (CodecError, TypeError) as error:
        raise InputError(
            f"message_history of agent {name!r} is a list of messages, such as `result.all_messages()`: {error}"
        ) from error


def _name_of(model: Any, models: Mapping[str, Model]) -> Any:
    """A model that the capability was given under a name is recorded by it."""
    return next((key for key, known in models.items() if known is model), model)


def _plain(key: str, value: Any, name: str) -> Any:
    try:
        plain = from_json(to_json(value, inf_nan_mode="constants"))
    except (PydanticSerializationError, ValueError):
        plain = None
    if plain != value:
        raise _refused(key, name)
    return plain


def _refused(key: str, name: str) -> UsageError:
    if key == "model":
        how = "a model object cannot be recorded: name it in `Durable(models={'name': model})` and give `model='name'`"
    elif key in _PLAIN:
        how = f"only plain data can be recorded: give it to the agent, as `Agent({key}=...)`"
    else:
        how = _ELSEWHERE.get(key, f"`{key}` is not known to this version of Holdfast: leave it out")
    return UsageError(
        f"agent {name!r} is durable, and `{key}=` of this call cannot be brought to a process that goes on with the "
        f"run. Instead: {how}; {_IN_A_WORKFLOW}."
    )


def _adapter(key: str) -> TypeAdapter[Any]:
    if key not in _adapters:
        _adapters[key] = TypeAdapter(_TYPED[key])
    return _adapters[key]
