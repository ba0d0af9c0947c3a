"""A call of an agent outside workflow code, and its form as inputs of a run.

The prompt, the history, and the plain settings of a call are recorded. Objects that cannot be recorded stay in the
process that made the call, and the inputs record their names: see ``bindings``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.agents.models.messages import dump_content, dump_messages, load_content, load_messages
from holdfast.errors import CodecError, InputError, UsageError
from holdfast.integrations.pydantic_ai.bindings import Binding, Overrides
from holdfast.integrations.pydantic_ai.live_run import LiveRun

_TYPED_SETTINGS: dict[str, Any] = {
    "deferred_tool_results": DeferredToolResults,
    "usage_limits": UsageLimits,
    "usage": RunUsage,
}
_PLAIN_SETTINGS = frozenset(
    {"conversation_id", "instructions", "metadata", "model", "model_settings", "retries", "timeout"}
)
"""Settings of a call that are recorded if they are plain data, and bound to the process if they are not."""
_BOUND_SETTINGS = frozenset({"output_type", "toolsets", "capabilities", "spec", "workspace"})
"""Settings that are always bound to the process."""

_UNSUPPORTED_ARGUMENTS = {
    "cancellation_token": "cancel the run with its handle",  # of `workflow.start(...)`; the agent's methods take it
    "conversation": "give its messages as `message_history=`",
}


class AgentCall:
    """One call of an agent outside workflow code."""

    __slots__ = ("arguments", "deps_override", "is_stream", "live_run", "prompt", "result")

    def __init__(
        self, agent: Agent[Any, Any], prompt: str | Sequence[UserContent] | None, arguments: Mapping[str, Any]
    ) -> None:
        self.is_stream = False
        """Whether it is ``run_stream``, which ends a run with the first answer that is a final result."""
        self.live_run: LiveRun | None = None
        """For a caller that watches the run."""
        self.result: AgentRunResult[Any] | None = None
        """The result of a run that has already ended."""
        self.deps_override: ContextVar[Any] = agent._override_deps  # pyright: ignore[reportPrivateUsage]
        self.prompt = prompt
        self.arguments = {
            name: value for name, value in arguments.items() if value is not None and name != "infer_name"
        }


def call_to_inputs(call: AgentCall, name: str, models: Mapping[str, Model]) -> tuple[dict[str, Any], Binding]:
    """The inputs of a call's run, which are plain data, and the objects that are bound to this process."""
    settings: dict[str, Any] = {}
    bound: dict[str, Any] = {}
    inputs: dict[str, Any] = {"prompt": _dump_prompt(call.prompt, name)}
    overrides = dict(Overrides.capture().values)
    overridden = overrides.pop(call.deps_override, None)
    deps = call.arguments.get("deps") if overridden is None else overridden.value
    if deps is not None:
        settings["deps"] = True  # the run needs deps, but each process has its own
    for key, value in call.arguments.items():
        if key in ("run_id", "deps"):
            continue
        if key == "message_history":
            if value:
                inputs["message_history"] = _dump_history(value, name)
        elif key in _TYPED_SETTINGS:
            settings[key] = _get_adapter(key).dump_python(value, mode="json")
        elif key in _PLAIN_SETTINGS:
            plain = _to_plain_data(_get_model_name(value, models) if key == "model" else value)
            if plain is None:
                bound[key] = value
            else:
                settings[key] = plain
        elif key in _BOUND_SETTINGS:
            bound[key] = value
        else:
            raise _make_unsupported_error(key, name)
    if call.is_stream:
        settings["stream"] = True
    binding = Binding(deps, bound, Overrides(overrides), call.live_run)
    if binding.names:
        settings["bound"] = binding.names
    if settings:
        inputs["settings"] = settings
    return inputs, binding


def call_arguments_from_inputs(prompt: Any, message_history: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``agent.run`` from recorded inputs."""
    arguments: dict[str, Any] = {
        "user_prompt": load_content(cast("list[Any]", prompt)) if isinstance(prompt, list) else prompt
    }
    if message_history:
        arguments["message_history"] = load_messages(message_history)
    for key, value in settings.items():
        if key in _TYPED_SETTINGS:
            arguments[key] = _get_adapter(key).validate_python(value)
        elif key not in ("deps", "bound", "stream"):
            arguments[key] = value
    return arguments


def _dump_prompt(prompt: Any, name: str) -> Any:
    if prompt is None or isinstance(prompt, str):
        return prompt
    try:
        return dump_content(prompt)
    except (CodecError, TypeError, ValueError) as error:
        raise InputError(f"the prompt of agent {name!r} cannot be recorded: {error}") from error


def _dump_history(messages: Sequence[ModelMessage], name: str) -> list[Any]:
    try:
        return dump_messages(messages)
    except (CodecError, TypeError) as error:
        raise InputError(
            f"message_history of agent {name!r} is a list of messages, such as `result.all_messages()`: {error}"
        ) from error


def _get_model_name(model: Any, models: Mapping[str, Model]) -> Any:
    """The name of a model in ``Durable(models=...)``; any other model as it is."""
    return next((key for key, known in models.items() if known is model), model)


def _to_plain_data(value: Any) -> Any:
    """The value as plain data; ``None`` if it would not be the same when it is read back."""
    try:
        plain = from_json(to_json(value, inf_nan_mode="constants"))
    except (PydanticSerializationError, ValueError):
        return None
    return plain if plain == value else None


def _make_unsupported_error(key: str, name: str) -> UsageError:
    advice = _UNSUPPORTED_ARGUMENTS.get(key, f"`{key}` is not known to this version of Holdfast: leave it out")
    return UsageError(
        f"agent {name!r} is durable, and `{key}=` cannot be given to a run of its own. Instead: {advice}."
    )


@cache
def _get_adapter(key: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPED_SETTINGS[key])
