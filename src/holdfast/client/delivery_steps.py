"""Steps of a delivery: how one is begun, tried again and recorded, whoever calls the function.

``StepCall`` is one step on its way. Both forms of a delivery go the same way with it: look whether an outcome is
recorded (``find_recorded``), say that it begins if somebody needs to know (``start_attempt``), call the function, and
hand in the outcome (``record``). They differ only in who calls the function: an event loop with threads beside it, or
the thread of code that has no loop.

What a step returns is always what was recorded, read back: the function may run in this delivery, or have run in an
earlier one, and the code behind it must not see a difference. The function's return annotation says how it is read, so
that a pydantic model comes back as one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, get_origin

from pydantic import BaseModel

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.codec import ValueCodec, codec_for, get_error_message, preview_arguments
from holdfast.errors import DeliveryLost, StepOutcomeUnknown, UsageError
from holdfast.services.wire_values import encoded_to_wire, from_wire

if TYPE_CHECKING:
    from holdfast.client.delivery import Delivery

_any_codec = codec_for(Any)
NON_RETRYABLE_ERRORS = (DeliveryLost, UsageError)
"""What no further attempt can help."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An outcome that is recorded, under its name."""

    name: str
    kind: str
    """``step``, ``approval`` or ``signal``."""
    output: Any
    recorded_at: datetime

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedStep:
        """From what a server tells."""
        name = str(data["name"])
        output = from_wire(data["output"], f"the output of step {name!r}")
        return cls(name, str(data["kind"]), output, parse_datetime(data["recorded_at"]))


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that an earlier delivery has begun, and of which nothing is recorded."""

    name: str
    attempt: int
    once: bool
    """It was to happen at most once, and may have happened."""
    started_at: datetime
    progress: Any = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UnfinishedStep:
        """From what a server tells."""
        progress = from_wire(data.get("progress"), "the progress")
        return cls(
            str(data["name"]), int(data["attempt"]), bool(data["once"]), parse_datetime(data["started_at"]), progress
        )


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What the model calls of a step have used. It counts towards the run's budget, and in usage reports."""

    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: float | None = None
    """What they have cost; ``None``: that is not known."""
    model: str = ""


UsageSource = StepUsage | Callable[[Any], StepUsage | None]
"""What a step has used, or a function that tells it of the step's outcome."""


@dataclass(frozen=True, slots=True)
class OutcomeCodec:
    """How outcomes of a function are written and read."""

    codec: ValueCodec

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> OutcomeCodec:
        """By its return annotation; of a class, by what it makes."""
        if inspect.isclass(function):
            return cls(codec_for(function) if _is_typed(function) else _any_codec)
        try:
            declared: Any = inspect.signature(function, eval_str=True).return_annotation
        except (NameError, TypeError, ValueError, AttributeError):
            declared = Any  # there is none, or none that can be found out, as with functions written in C
        return cls(_any_codec if get_origin(declared) in (Awaitable, Coroutine) else codec_for(declared))

    @classmethod
    def from_value(cls, value: Any) -> OutcomeCodec:
        """Of a value that nothing declares: models and dataclasses by their own class."""
        kind = cast("type[Any]", type(value))
        return cls(codec_for(kind) if _is_typed(kind) else _any_codec)

    def encode(self, value: Any, subject: str) -> Any:
        """For the server."""
        return encoded_to_wire(self.codec.encode(value, subject))

    def decode(self, value: Any, subject: str) -> Any:
        """From plain data, as it is recorded."""
        return value if self.codec is _any_codec else self.codec.decode(_any_codec.encode(value, subject), subject)


def _is_typed(kind: type[Any]) -> bool:
    return issubclass(kind, BaseModel) or is_dataclass(kind)


class StepCall:
    """One step of a delivery, on its way."""

    def __init__(
        self,
        delivery: Delivery,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        retries: int,
        once: bool,
        usage: UsageSource | None,
    ) -> None:
        if not callable(function):
            raise UsageError(f"step {name!r} is given no function, but {function!r}: step(name, function, *arguments)")
        if once and retries:
            raise UsageError(f"step {name!r} is to happen at most once, so it gets one attempt: drop retries={retries}")
        self._delivery = delivery
        self._name = name
        self._once = once
        self._usage = usage
        self._policy = RetryPolicy(
            retries=retries, max_backoff=60.0, give_up_after=None, give_up_on=NON_RETRYABLE_ERRORS
        )
        self._codec = OutcomeCodec.from_function(function)
        self._subject = f"the output of step {name!r}"
        self._preview = preview_arguments(_list_parameters(function), args, kwargs)
        self._started_at = datetime.now(UTC)
        delivery.reserve_name(name, self._preview)

    def find_recorded(self) -> tuple[bool, Any]:
        """Whether there is an outcome, and which.

        Raises ``StepOutcomeUnknown`` if there is none, and must be no second attempt.
        """
        found = self._delivery.steps.get(self._name)
        if found is not None:
            with self._delivery.guard_decoding():
                return True, self._codec.decode(found.output, self._subject)
        begun = self._delivery.in_flight.get(self._name)
        if begun is not None and (begun.once or self._once):
            raise StepOutcomeUnknown(
                f"step {self._name!r} of run {self._delivery.run_id!r} was begun by an earlier delivery, at "
                f"{begun.started_at:%Y-%m-%d %H:%M:%S} UTC, and nothing is recorded of it: it may have happened, and "
                "must not "
                f"happen twice. Look whether it has, and say so with delivery.record({self._name!r}, outcome)",
                self._name,
            )
        return False, None

    async def start_attempt(self, attempt: int, error: BaseException | None = None) -> None:
        """An attempt begins. The server is told what the next listener must know, if this one dies over it."""
        if attempt == 1:
            self._started_at = datetime.now(UTC)
        if not self._once and attempt == 1:
            return
        told = {"name": self._name, "attempt": attempt, "once": self._once, "error": _format_error(error)}
        await self._delivery.call("attempts", told)

    def get_retry_delay_s(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, after this one has failed; ``None``: it was the last one."""
        return self._policy.compute_next_delay_s(attempt, error, random.random())

    async def record(self, value: Any, attempt: int) -> Any:
        """Record the outcome, and return what is recorded."""
        used = self._usage(value) if callable(self._usage) else self._usage
        body: dict[str, Any] = {
            "name": self._name,
            "output": self._codec.encode(value, self._subject),
            "started_at": self._started_at.isoformat(),
            "attempts": attempt,
            "arguments": self._preview,
        }
        if used is not None:
            body["usage"] = asdict(used)
        step = RecordedStep.from_json((await self._delivery.call("steps", body))[1])
        self._delivery.steps[self._name] = step
        return self._codec.decode(step.output, self._subject)


def _list_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name for one in parameters]


def _format_error(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {get_error_message(error)}"[:500]


def parse_datetime(text: Any) -> datetime:
    """A time that a server tells."""
    return datetime.fromisoformat(str(text))


# Calling


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is called under the event loop, and not in a thread."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call it: here if it is async, else in a thread of its own."""
    if is_async(function):
        return await function(*args, **kwargs)
    found = await _call_in_thread(lambda: function(*args, **kwargs))
    return await found if inspect.isawaitable(found) else found


async def _call_in_thread(call: Callable[[], Any]) -> Any:
    """A thread cannot be stopped. Whoever does not wait for it any more must not have to when the process ends either:
    so it is a daemon, and none of a pool that would be short of it from then on.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # which no future takes
            done.set_exception(RuntimeError(f"the step's function raised {error!r}"))
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(call)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has closed meanwhile

    threading.Thread(target=work, name="holdfast-step", daemon=True).start()
    return await done
