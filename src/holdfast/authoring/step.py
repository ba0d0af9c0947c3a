"""``@step``: a function whose outcome is recorded when workflow code calls it.

In workflow code a call is a command: it is carried out by the engine, its outcome is committed to the journal, and only
then does the workflow see it, decoded from the recorded bytes. Anywhere else a call is a plain call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast.authoring.durations import Duration, seconds
from holdfast.authoring.functions import hints_of, is_async, place_of
from holdfast.codec import codec_for, decode_error
from holdfast.core.execution import UNREAD, Execution, Outcome, current_execution
from holdfast.core.records import Kind
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepCall, StepDefinition
from holdfast.errors import DefinitionError, UnreadableRecord

P = ParamSpec("P")
R = TypeVar("R")

RetryOn = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]


class Step(Generic[P, R]):
    """A function that became a step. Call it as before; in workflow code, ``await`` the call."""

    def __init__(self, definition: StepDefinition) -> None:
        self.definition = definition
        self.name = definition.name
        functools.update_wrapper(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In workflow code: a recorded call, to be awaited. Anywhere else: the plain function."""
        execution = current_execution()
        if execution is None:
            return self.definition.function(*args, **kwargs)
        return _invoke(execution, self.definition, args, kwargs)

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


async def _invoke(execution: Execution, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outcome = await execution.issue(Kind.STEP, step.name, StepCall(step, args, kwargs))
    return _read(execution, step, outcome)


def _read(execution: Execution, step: StepDefinition, outcome: Outcome) -> Any:
    """The value of a recorded outcome, or its exception."""
    record, value = outcome
    if value is not UNREAD:
        return value
    payload = record.payload or b"null"
    try:
        if record.ok:
            return step.output.decode(payload, f"the output of step {step.name!r}")
        error = decode_error(payload, [step.namespace])
    except UnreadableRecord as unreadable:
        # Not something to catch: the code no longer fits the journal.
        execution.fault = execution.fault or unreadable
        raise
    error.add_note(f"raised in step {step.name!r} (#{record.position + 1}) of run {execution.run_id!r}")
    raise error


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
) -> _StepDecorator: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
) -> Any:
    """Make a function a step: its outcome is recorded, and never computed again for the same run.

    Args:
        function: an async function, or a plain one (which runs in a thread).
        name: what the journal calls it; the function's name unless given.
        retries: how many more attempts after a failed one.
        backoff: seconds before the first retry; each further wait is twice as long, with jitter.
        max_backoff: the longest wait between two attempts.
        retry_on: retry only these exceptions, or those for which this function returns true; by default every one.
        give_up_on: never retry these.
        timeout: seconds that one attempt may take. The thread of a plain function cannot be stopped: it runs on, and
            its outcome is dropped.
        effect: ``read`` (may run again), ``idempotent`` (may run again, with ``current_step().idempotency_key`` to make
            that harmless) or ``once`` (never again: see ``StepOutcomeUnknown``).
    """

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        return _define(function, name, retries, backoff, max_backoff, retry_on, give_up_on, timeout, effect)

    return decorate if function is None else decorate(function)


class _StepDecorator:
    """The type of ``@step(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any: ...


def _define(
    function: Callable[..., Any],
    name: str | None,
    retries: int,
    backoff: Duration,
    max_backoff: Duration,
    retry_on: RetryOn | None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]],
    timeout: Duration | None,
    effect: Effect | str,
) -> Step[..., Any]:
    if isinstance(function, Step) or not callable(function):
        raise DefinitionError(f"@step goes on a function, not on {function!r}")
    label = name or getattr(function, "__name__", None)
    if not label:
        raise DefinitionError(f"{function!r} has no name: give it one with `@step(name=...)`")
    where = f"step {label!r} ({place_of(function)})"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{where} is a generator; a step returns one value: collect the items and return a list")
    try:
        kind = Effect(effect)
    except ValueError:
        raise DefinitionError(f"{where}: effect={effect!r} is none of {', '.join(Effect)}") from None
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{where}: retries={retries!r} must be a whole number, 0 or more")
    if kind is Effect.ONCE and retries:
        raise DefinitionError(
            f"{where} has effect='once', so it gets one attempt: drop retries={retries}, or make it idempotent"
        )
    # A predicate is callable and no class; exception classes are callable, too.
    retry_if = retry_on if callable(retry_on) and not isinstance(retry_on, type) else None
    retry = RetryPolicy(
        retries=retries,
        backoff=seconds(backoff, f"{where}: backoff") or 1.0,
        max_backoff=seconds(max_backoff, f"{where}: max_backoff") or 60.0,
        retry_on=(Exception,) if retry_if or retry_on is None else _exception_types(retry_on, f"{where}: retry_on"),
        retry_if=retry_if,
        give_up_on=_exception_types(give_up_on, f"{where}: give_up_on"),
    )
    hints = hints_of(function)
    return Step(
        StepDefinition(
            name=label,
            function=function,
            is_async=is_async(function),
            output=codec_for(hints.get("return", inspect.Signature.empty)),
            parameters=tuple(inspect.signature(function).parameters),
            namespace=getattr(function, "__globals__", {}),
            retry=retry,
            timeout=seconds(timeout, f"{where}: timeout"),
            effect=kind,
        )
    )


def _exception_types(given: Any, what: str) -> tuple[type[BaseException], ...]:
    types: tuple[Any, ...] = tuple(given) if isinstance(given, Sequence) else (given,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise DefinitionError(f"{what} takes exception classes, not {one!r}")
    return types
