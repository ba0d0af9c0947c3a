"""``RunContext``: the run that calls a tool or another function of an agent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, get_args, get_origin

from typing_extensions import TypeVar

from holdfast.engine.step_context import StepContext, current_context
from holdfast.errors import DefinitionError

# A bare `RunContext` means one with any deps.
Deps = TypeVar("Deps", default=Any)

_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class RunContext(Generic[Deps]):
    """The run that calls a tool.

    A test that calls a tool's function itself makes its own: ``RunContext(deps=...)``.
    """

    deps: Deps
    """The deps that were passed to ``run``, or to the worker that executes the run. Never recorded."""
    run_id: str = ""
    agent: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    """The model's id of this call."""
    idempotency_key: str = ""
    """The same in all attempts of this call, also after a crash: pass it to the services that you call."""
    attempt: int = 1
    """1 for the first attempt. Retries count on, also after a crash between two of them."""
    _step: StepContext | None = field(default=None, repr=False, compare=False)

    @property
    def progress(self) -> Any:
        """The last value that an earlier attempt of this call passed to ``heartbeat``, or ``None``."""
        return None if self._step is None else self._step.progress

    def heartbeat(self, progress: Any = None) -> None:
        """Save ``progress`` for the next attempt, in case this one fails or its process dies.

        May be called from any thread, as often as you like. Raises ``FenceLost`` or ``asyncio.CancelledError`` in a
        call that should stop.
        """
        if self._step is not None:
            self._step.heartbeat(progress)


def make_run_context(deps: Any, agent: str, tool_name: str, tool_call_id: str = "") -> RunContext[Any]:
    """The context of a call in the running step."""
    step = current_context.get()
    return RunContext(deps, step.run_id, agent, tool_name, tool_call_id, step.idempotency_key, step.attempt, step)


def find_context_parameter(
    parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], subject: str
) -> str | None:
    """The name of the first parameter, if it takes the context. Refuses a context anywhere else."""
    context: str | None = None
    for index, parameter in enumerate(parameters):
        for kind in _find_classes(hints.get(parameter.name)):
            if kind.__name__ == "RunContext" and kind.__module__.startswith("pydantic_ai."):
                raise DefinitionError(f"{subject}: use holdfast.RunContext in place of pydantic_ai's")
            if not issubclass(kind, RunContext):
                continue
            hint = hints[parameter.name]
            if index or RunContext not in (hint, get_origin(hint)) or parameter.kind not in _POSITIONAL_KINDS:
                raise DefinitionError(
                    f"{subject}: a tool takes a RunContext as its first parameter, `ctx: RunContext[...]`, or not at "
                    "all"
                )
            context = parameter.name
    return context


def _find_classes(hint: Any) -> list[type[Any]]:
    own = [candidate for candidate in (hint, get_origin(hint)) if isinstance(candidate, type)]
    return own + [kind for argument in get_args(hint) for kind in _find_classes(argument)]
