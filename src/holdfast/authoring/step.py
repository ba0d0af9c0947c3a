"""``@step``: a function whose outcome is recorded when workflow code calls it.

In workflow code a call is a command: the engine executes it and commits its outcome to the journal, and only then does
the workflow see the outcome, decoded from the recorded bytes. Anywhere else a call is a plain call.

With a number, ``@step(2, depends_on=1)``, it is a step of a class workflow (see ``classes``): the graph calls it.

**Further decorators.** A decorator that modifies a step, such as ``@parallel``, may be above or below ``@step``. It
makes a ``StepModifier`` and passes it to ``apply_modifier``. Above, there is a ``Step`` already, and the modifier is
applied to it; below, there is only a function, which keeps the modifier until ``@step`` finds it. Either way the
modifier is applied once, and returns the step that replaces the given one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.authoring import program_calls
from holdfast.authoring.compensation import make_compensation
from holdfast.authoring.introspection import format_location, is_async, resolve_hints
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.step_declaration import References, StepDeclaration, check_no_graph_options, make_declaration
from holdfast.codec import codec_for, decode_error
from holdfast.core.commands import UNDECODED, Outcome
from holdfast.core.execution import Execution, get_current_execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.records import RecordKind
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition, make_step_call
from holdfast.engine.program_context import find_program
from holdfast.errors import DefinitionError, StepOutcomeUnknown, StoreUnavailable, UnreadableRecord, UsageError

P = ParamSpec("P")
R = TypeVar("R")

STORE_RETRY_POLICY = RetryPolicy(backoff=0.05, max_backoff=2.0, give_up_after=None, retry_on=(StoreUnavailable,))
"""For Holdfast's own steps that only change the store. While the store is unavailable, the run waits: that is not an
outcome that the workflow should see."""

RetryOn = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]


class Step(Generic[P, R]):
    """A function that became a step. Call it as before; in workflow code, ``await`` the call."""

    def __init__(self, definition: StepDefinition, declaration: StepDeclaration | None = None) -> None:
        self.definition = definition
        self.name = definition.name
        self.declaration = declaration
        """Its place in the graph of a class workflow; ``None`` for a step that workflow functions call."""
        functools.update_wrapper(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In workflow code: a recorded call, to be awaited. Anywhere else: the plain function."""
        execution = get_current_execution()
        if execution is None:
            if (program := find_program()) is not None:
                return program_calls.call_step(program, self.definition, args, kwargs)
            return (self.definition.call_outside_run or self.definition.function)(*args, **kwargs)
        if self.declaration is not None:
            raise UsageError(
                f"step {self.name!r} has the number {self.declaration.number}: it is called by the class workflow that "
                f"it belongs to. To call it in a workflow function, write `@step` without a number."
            )
        return (self.definition.invoke or invoke)(execution, self.definition, args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Step[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[..., Coroutine[Any, Any, R]]: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        # As functions do; but a step without `self` in a class is not a method.
        is_method = self.declaration is not None or self.definition.parameters[:1] == ("self",)
        return self if instance is None or not is_method else functools.partial(cast(Any, self), instance)

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class StepModifier(Protocol):
    """A modification of a step by a further decorator."""

    @property
    def decorator_name(self) -> str:
        """The decorator as users write it, for messages."""
        ...

    def apply_to(self, step: Step[..., Any], /) -> Step[..., Any]:
        """The step that replaces this one."""
        ...


def apply_modifier(modifier: StepModifier, target: Any) -> Any:
    """Apply a modifier to a step, or leave it on a function for the ``@step`` above."""
    modifiers, target = get_modifiers(target), get_wrapped_function(target)
    if isinstance(target, Step):
        return modifier.apply_to(target)  # pyright: ignore[reportUnknownArgumentType]
    if not inspect.isfunction(target):
        raise DefinitionError(f"{modifier.decorator_name} goes on a method of a class workflow, not on {target!r}")
    target.holdfast_modifiers = [*modifiers, modifier]  # type: ignore[attr-defined]
    return target


def get_wrapped_function(target: Any) -> Any:
    """The function below a decorator such as ``@llm_step``, which makes a step of it already; else the target."""
    return getattr(target, "holdfast_below", target)


def get_modifiers(function: Callable[..., Any]) -> list[StepModifier]:
    """The modifiers that wait for ``@step``, the lowest first."""
    return getattr(function, "holdfast_modifiers", [])


async def invoke(execution: Execution, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step from workflow code: one command."""
    outcome = await execution.issue(RecordKind.STEP, step.name, make_step_call((step, args, kwargs)))
    return read_outcome(execution, step, outcome)


def read_outcome(execution: Execution, step: StepDefinition, outcome: Outcome) -> Any:
    """The value of a recorded outcome, or its exception."""
    record, value = outcome.record, outcome.value
    if value is not UNDECODED:
        return value
    payload = record.payload or b"null"
    try:
        if record.ok:
            return step.output_codec.decode(payload, step.output_subject)
        subject = f"step {step.name!r} (#{record.position + 1}) of run {execution.run_id!r}"
        error = decode_error(payload, [step.namespace], f"the error of {subject}")
    except UnreadableRecord as unreadable:
        if record.is_settled:
            raise _make_bad_settlement_error(execution, step, outcome, unreadable) from unreadable
        # The run must stop, even if the workflow catches this: the code no longer fits the journal.
        execution.fatal_error = execution.fatal_error or unreadable
        raise
    mark_origin(error, outcome.origin)
    error.add_note(f"raised in {subject}")
    raise error


def _make_bad_settlement_error(
    execution: Execution, step: StepDefinition, outcome: Outcome, unreadable: UnreadableRecord
) -> StepOutcomeUnknown:
    """The outcome is still unknown: a person without the code settled the step with an invalid value."""
    error = StepOutcomeUnknown(
        f"step {step.name!r} of run {execution.run_id!r} was settled with a value that it cannot have returned: "
        f"{unreadable} Settle it again, with one that fits.",
        step.name,
    )
    mark_origin(error, outcome.origin)
    return error


_KEYWORD_HINTS = {
    "max_retries": "write retries=, the number of further attempts after the first",
    "max_attempts": "write retries=, the number of further attempts after the first",
    "retry_policy": "write retry=RetryPolicy(...), or retries=, backoff= and max_backoff=",
    "timeout_seconds": "write timeout=, in seconds",
    "start_to_close_timeout": "write timeout=, in seconds",
    "compensation": "write compensate=",
    "idempotent": "write effect='idempotent'",
    "once": "write effect='once'",
}
"""What to write instead of arguments that other frameworks have."""


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
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    transaction: bool = False,
    compensate: Callable[..., Any] | None = None,
) -> _StepDecorator: ...
@overload
def step(
    number: int,
    /,
    *,
    depends_on: References = (),
    after: References = (),
    when: Callable[..., Any] | None = None,
    each: str | None = None,
    name: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    transaction: bool = False,
    compensate: Callable[..., Any] | str | None = None,
) -> _StepDecorator: ...
@reject_unknown_keywords("@step", **_KEYWORD_HINTS)
def step(
    first: Callable[..., Any] | int | None = None,
    /,
    *,
    depends_on: References = (),
    after: References = (),
    when: Callable[..., Any] | None = None,
    each: str | None = None,
    name: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    transaction: bool = False,
    compensate: Callable[..., Any] | str | None = None,
) -> Any:
    """Make a function a step: its outcome is recorded, and never computed again for the same run.

    Args:
        first: an async function, or a plain one (which runs in a thread); or, in a class workflow, the step's number.
        depends_on: in a class workflow, the steps whose outputs this one takes: a number, the name of a method, or
            several of them.
        after: in a class workflow, steps that must have ended before, without taking their outputs.
        when: in a class workflow, a plain function that decides whether the step runs. Its parameters are named like
            earlier steps or inputs; if the step has one dependency, one other parameter may take its output.
        each: in a class workflow, the parameter that takes the items of a list one by one; the output is a list, too.
        name: the step's name in the journal (default: the function's name).
        retries: how many more attempts after a failed one.
        backoff: seconds before the first retry; each further wait is twice as long, with jitter.
        max_backoff: the longest wait between two attempts.
        retry_on: retry only these exceptions, or those for which this function returns true (default: all).
        give_up_on: never retry these.
        retry: a ``RetryPolicy``, in place of ``retries``, ``backoff``, ``max_backoff``, ``retry_on`` and
            ``give_up_on``; it can also retry for a time (``give_up_after``), and wait as long as a server asks for.
        timeout: seconds that one attempt may take. The thread of a plain function cannot be stopped: it continues, and
            its outcome is dropped.
        effect: ``read`` (may run again), ``idempotent`` (may run again, with ``current_step().idempotency_key`` to make
            that harmless) or ``once`` (never again: see ``StepOutcomeUnknown``).
        transaction: commit what the step does with ``current_step().connection``, in the store's own database,
            together with its outcome: exactly once, whenever a process dies.
        compensate: undoes this step if the run fails or is cancelled: a function, or a step with its own retries and
            timeout; in a class workflow, also the name of a method. A parameter that is named like one of this step's
            takes that argument, and the one other parameter without a default takes this step's output.
    """
    declared: StepDeclaration | None = None
    if first is not None and not callable(first) and not isinstance(first, staticmethod | classmethod):
        declared = make_declaration(first, depends_on, after, when, each, compensate)

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        modifiers, function = get_modifiers(function), get_wrapped_function(function)
        made = define_step(function, name, retries, backoff, max_backoff, retry_on, give_up_on, timeout, effect, retry)
        made = replace(made, is_transactional=transaction)
        subject = f"step {made.name!r} ({format_location(function)})"
        if transaction and made.effect is Effect.ONCE:
            raise DefinitionError(
                f"{subject} has transaction=True, so it is run again only if nothing of it was committed: drop "
                f"effect='once', which would never run it again"
            )
        if declared is None:
            check_no_graph_options(subject, {"depends_on": depends_on, "after": after, "when": when, "each": each})
        if declared is None and compensate is not None:
            undo = resolve_compensation(compensate, subject)
            made = replace(made, compensation=make_compensation(made, undo, subject))
        step: Step[..., Any] = Step(made, declared)
        for modifier in modifiers:
            step = modifier.apply_to(step)
        return step

    return decorate if first is None or declared is not None else decorate(cast(Any, first))


class _StepDecorator:
    """The type of ``@step(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any: ...


def define_step(
    function: Callable[..., Any],
    name: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    retry: RetryPolicy | None = None,
    noun: str = "step",
) -> StepDefinition:
    """A function as a step, with the options of its decorator; messages call it a ``noun``."""
    if isinstance(function, staticmethod | classmethod):
        method = cast(Any, function)
        raise DefinitionError(
            f"@{noun} goes on an ordinary function, and {method.__qualname__!r} is a {type(method).__name__}: in a "
            f"class workflow a step takes `self`; anywhere else put @{noun} below @{type(method).__name__}"
        )
    if isinstance(function, Step) or not callable(function):
        raise DefinitionError(f"@{noun} goes on a function, not on {function!r}")
    step_name = name or getattr(function, "__name__", None)
    if not step_name:
        raise DefinitionError(f"{function!r} has no name: give it one with `@{noun}(name=...)`")
    subject = f"{noun} {step_name!r} ({format_location(function)})"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{subject} is a generator; a {noun} returns one value: collect the items and return a list"
        )
    try:
        parsed_effect = Effect(effect)
    except ValueError:
        raise DefinitionError(f"{subject}: effect={effect!r} is none of {', '.join(Effect)}") from None
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{subject}: retries={retries!r} must be a whole number, 0 or more")
    if retry is None:
        # Exception classes are callable, too, so a predicate is a callable that is not a class.
        retry_if = retry_on if callable(retry_on) and not isinstance(retry_on, type) else None
        policy = RetryPolicy(
            retries=retries,
            backoff=declared_seconds(backoff, f"{subject}: backoff") or 1.0,
            max_backoff=declared_seconds(max_backoff, f"{subject}: max_backoff") or 60.0,
            give_up_after=None,
            retry_on=_validate_exception_types(
                Exception if retry_if or retry_on is None else retry_on, f"{subject}: retry_on"
            ),
            retry_if=retry_if,
            give_up_on=_validate_exception_types(give_up_on, f"{subject}: give_up_on"),
        )
    else:
        policy = validate_retry_policy(retry, subject)
        if (retries, backoff, max_backoff, retry_on) != (0, 1.0, 60.0, None) or give_up_on != ():
            raise DefinitionError(
                f"{subject} has retry=, which replaces the other options of retries: put them into it"
            )
    if parsed_effect is Effect.ONCE and policy.retries != 0:
        raise DefinitionError(
            f"{subject} has effect='once', so it gets one attempt: drop "
            f"{'retry=' if policy is retry else f'retries={retries}'}, or make it idempotent"
        )
    hints = resolve_hints(function)
    return StepDefinition(
        name=step_name,
        function=function,
        is_async=is_async(function),
        output_codec=codec_for(hints.get("return", inspect.Signature.empty)),
        parameters=tuple(inspect.signature(function).parameters),
        namespace=getattr(function, "__globals__", {}),
        retry=policy,
        timeout_s=declared_seconds(timeout, f"{subject}: timeout"),
        effect=parsed_effect,
    )


def validate_retry_policy(retry: Any, subject: str) -> RetryPolicy:
    """The value of ``retry=``. Raises ``DefinitionError`` unless it is a policy."""
    if not isinstance(retry, RetryPolicy):
        raise DefinitionError(
            f"{subject}: retry is a RetryPolicy, as in RetryPolicy(give_up_after=3600), not {retry!r}"
        )
    return retry


def resolve_compensation(value: Any, subject: str) -> StepDefinition:
    """The value of ``compensate=``, as a step."""
    if isinstance(value, Step):
        step = cast("Step[..., Any]", value)
        if step.declaration is not None:
            raise DefinitionError(
                f"{subject}: compensate={step.name!r} is step {step.declaration.number} of a class workflow, which "
                "runs anyway: write it without a number"
            )
        return step.definition
    if isinstance(value, str):
        raise DefinitionError(
            f"{subject}: compensate={value!r} names a method, which only a numbered step of a class workflow can do: "
            f"pass the function"
        )
    if not callable(value):
        raise DefinitionError(f"{subject}: compensate= is a function or a step, not {value!r}")
    return define_step(value)


def _validate_exception_types(value: Any, subject: str) -> tuple[type[BaseException], ...]:
    types: tuple[Any, ...] = tuple(value) if isinstance(value, Sequence) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise DefinitionError(f"{subject} takes exception classes, not {one!r}")
    return types
