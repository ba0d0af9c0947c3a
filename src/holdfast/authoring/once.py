"""``once``: a call of any function as a recorded step with the effect ``once``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.authoring import program_calls
from holdfast.authoring.step import define_step, invoke
from holdfast.core.execution import get_current_execution
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


@overload
def once(
    key: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...
@overload
def once(key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
def once(key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function at most once in a run: when the run's code runs again, the call returns the recorded result.

    It is for scripts (``holdfast run``), programs, and workflows. Anywhere else, the function is just called. If the
    process dies during the call, its outcome is unknown: the call then raises ``StepOutcomeUnknown``,
    and continues after ``holdfast settle``.

    Args:
        key: the name of the step in the run, such as ``"charge-42"``.
        function: an async function, whose call must be awaited, or a plain one.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"once({key!r}, ...): the key must be a text that names the call, such as 'charge-42'")
    execution, program = get_current_execution(), find_program()
    if execution is None and program is None:
        return function(*args, **kwargs)
    definition = define_step(function, name=key, effect=Effect.ONCE)
    if execution is not None:
        if not definition.is_async:
            raise UsageError(
                f"once({key!r}, ...): a workflow cannot call a plain function this way. Pass an async function, or "
                "make it a @step(effect='once') and await its call"
            )
        return invoke(execution, definition, args, kwargs)
    assert program is not None
    if definition.is_async:
        return program_calls.call_step(program, definition, args, kwargs)
    return program_calls.open_step(program, definition, args, kwargs).call_sync(partial(function, *args, **kwargs))
