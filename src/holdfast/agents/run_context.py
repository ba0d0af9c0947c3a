"""``RunContext``: what a tool, or a function of an agent, may know of the run that calls it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, get_args, get_origin

from holdfast.engine.step_context import StepContext, current_context
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A bare `RunContext` means one with any deps.
    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")

_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class RunContext(Generic[Deps]):
    """What a tool may know of the run that calls it.

    A test that calls a tool's function itself makes its own: ``RunContext(deps=...)``.
    """

    deps: Deps
    """What was given to ``run``, or to the worker that executes the run. Never recorded."""
    run_id: str = ""
    agent: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    """The model's own name for this call."""
    idempotency_key: str = ""
    """Stable over attempts, crashes and replays of this call: hand it to whatever you call."""
    attempt: int = 1
    """1 for the first attempt; retries count on, also over a crash between two of them."""
    _step: StepContext | None = field(default=None, repr=False, compare=False)

    @property
    def progress(self) -> Any:
        """What an earlier attempt of this call last passed to ``heartbeat``, or ``None``."""
        return None if self._step is None else self._step.progress

    def heartbeat(self, progress: Any = None) -> None:
        """Keep ``progress`` for the next attempt, should this one fail or its process die.

        May be called from any thread, as often as you like. Raises ``FenceLost`` or ``asyncio.CancelledError`` in a
        call that should stop.
        """
        if self._step is not None:
            self._step.heartbeat(progress)


def make_run_context(deps: Any, agent: str, tool_name: str, tool_call_id: str = "") -> RunContext[Any]:
    """The context of a call in the running step."""
    step = current_context.get()
    key = step.idempotency_key
    return RunContext(deps, step.run_id, agent, tool_name, tool_call_id, key, step.attempt, step)


def find_context_parameter(
    parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], subject: str
) -> str | None:
    """The name of the first parameter, if that takes the context. Nowhere else can it be taken."""
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
    """All the classes that an annotation names."""
    origin = get_origin(hint)
    found = [one for one in (hint, origin) if isinstance(one, type)]
    return found + [kind for one in get_args(hint) for kind in _find_classes(one)]
