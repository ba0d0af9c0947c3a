"""``once``: a call of any function as a recorded step with the effect ``once``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.authoring import program_calls
from holdfast.authoring.step import define_step, invoke
from holdfast.core.execution import get_current_execution
from holdfast.core.program_calls import LogicalThread
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.program_context import ProgramContext, find_program, in_thread
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

    It is for scripts (``holdfast run``), programs, and workflows. Anywhere else, the function is just called. In a
    script or program, a second call with the same key returns the result of the first one, wherever it is made.

    If the process dies during the call, its outcome is unknown: the call then raises ``StepOutcomeUnknown``, and
    continues after ``holdfast settle``.

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
        return _call_async(program, definition, args, kwargs)
    return _call(program, definition, args, kwargs)


async def _call_async(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    made, is_first = _find_made(program, step.name)
    if not is_first:
        return await asyncio.wrap_future(made)
    with _noting_outcome(program, step.name, made), in_thread(_get_thread(program, step.name)):
        value = await program_calls.call_step(program, step, args, kwargs)
        made.set_result(value)
        return value


def _call(program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made, is_first = _find_made(program, step.name)
    if not is_first:
        return made.result()
    with _noting_outcome(program, step.name, made):
        named = program._replace(thread=_get_thread(program, step.name))
        value = program_calls.open_step(named, step, args, kwargs).call_sync(partial(step.function, *args, **kwargs))
        made.set_result(value)
        return value


def _find_made(program: ProgramContext, key: str) -> tuple[Future[Any], bool]:
    """The call with this key, and whether it is about to be made for the first time in this process."""
    mine: Future[Any] = Future()
    made = program.run.once_calls.setdefault(key, mine)
    return made, made is mine


def _get_thread(program: ProgramContext, key: str) -> LogicalThread:
    """A key means the same call in the whole run, wherever it is made."""
    return program.run.execution.calls.get_named_thread(-1, f"once {key}")


@contextmanager
def _noting_outcome(program: ProgramContext, key: str, made: Future[Any]) -> Generator[None]:
    try:
        yield
    except Exception as error:
        made.set_exception(error)
        made.exception()
        raise
    except BaseException:  # it has no outcome, and may be called again
        program.run.once_calls.pop(key, None)
        made.cancel()
        raise
