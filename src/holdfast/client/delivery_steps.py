"""Steps of a delivery: how a step is started, attempted again, and recorded.

``DeliveryStep`` is one step in progress. ``Delivery`` and ``SyncDelivery`` use it in the same way: look for a recorded
outcome (``find_recorded``), announce the attempt if the next listener would need to know of it (``start_attempt``),
call the function, and record the outcome (``record``). They differ only in where the function runs: on the event loop
or in a thread of its own, or in the thread of code that has no event loop.

A step always returns the recorded outcome, decoded: the function may run in this delivery, or have run in an earlier
one, and the code after it must see the same value. The function's return annotation decides how the outcome is decoded,
so a pydantic model comes back as one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
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

log = logging.getLogger("holdfast.listeners")

_any_codec = codec_for(Any)
NON_RETRYABLE_ERRORS = (DeliveryLost, UsageError)
"""Errors that another attempt would meet again."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded outcome and its name."""

    name: str
    kind: str
    """``step``, ``approval``, or ``signal``."""
    output: Any
    recorded_at: datetime

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedStep:
        """From the server's JSON."""
        name = str(data["name"])
        output = from_wire(data["output"], f"the output of step {name!r}")
        return cls(name, str(data["kind"]), output, parse_datetime(data["recorded_at"]))


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that an earlier delivery started, and that has no recorded outcome."""

    name: str
    attempt: int
    once: bool
    """It must happen at most once, and may have happened."""
    started_at: datetime
    progress: Any = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UnfinishedStep:
        """From the server's JSON."""
        progress = from_wire(data.get("progress"), "the progress")
        return cls(
            str(data["name"]), int(data["attempt"]), bool(data["once"]), parse_datetime(data["started_at"]), progress
        )


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What the model calls of a step used. It counts towards the run's budget, and in usage reports."""

    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: float | None = None
    """Their cost; ``None``: unknown."""
    model: str = ""


UsageSource = StepUsage | Callable[[Any], StepUsage | None]
"""What a step used, or a function that returns it for the step's outcome."""


@dataclass(frozen=True, slots=True)
class OutcomeCodec:
    """Encodes and decodes the outcomes of a function."""

    codec: ValueCodec

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> OutcomeCodec:
        """By the return annotation; for a class, by its instances."""
        if inspect.isclass(function):
            return cls(codec_for(function) if _is_typed(function) else _any_codec)
        try:
            declared: Any = inspect.signature(function, eval_str=True).return_annotation
        except (NameError, TypeError, ValueError, AttributeError):
            declared = Any  # there is none, or it cannot be read, as for functions written in C
        return cls(_any_codec if get_origin(declared) in (Awaitable, Coroutine) else codec_for(declared))

    @classmethod
    def from_value(cls, value: Any) -> OutcomeCodec:
        """For a value without a declared type: models and dataclasses by their own class."""
        kind = cast("type[Any]", type(value))
        return cls(codec_for(kind) if _is_typed(kind) else _any_codec)

    def encode(self, value: Any, subject: str) -> Any:
        """The JSON that is sent to the server."""
        return encoded_to_wire(self.codec.encode(value, subject))

    def decode(self, value: Any, subject: str) -> Any:
        """The value of recorded plain data."""
        return value if self.codec is _any_codec else self.codec.decode(_any_codec.encode(value, subject), subject)


def _is_typed(kind: type[Any]) -> bool:
    return issubclass(kind, BaseModel) or is_dataclass(kind)


class DeliveryStep:
    """One step of a delivery, in progress."""

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
        self._preview = preview_arguments(_list_parameters(function), args, kwargs) if args or kwargs else ""
        self._started_at: datetime
        self._attempt = 1
        self._error: BaseException | None = None
        """Why the attempt before this one failed."""
        delivery.reserve_name(name, self._preview)

    def find_recorded(self) -> tuple[bool, Any]:
        """Whether there is a recorded outcome, and the outcome.

        Raises ``StepOutcomeUnknown`` if there is none, and a second attempt is not allowed.
        """
        found = self._delivery.steps.get(self._name)
        if found is not None:
            with self._delivery.guard_decoding():
                return True, self._codec.decode(found.output, self._subject)
        started = self._delivery.in_flight.get(self._name)
        if started is not None and (started.once or self._once):
            raise StepOutcomeUnknown(
                f"step {self._name!r} of run {self._delivery.run_id!r} was begun by an earlier delivery, at "
                f"{started.started_at:%Y-%m-%d %H:%M:%S} UTC, and nothing is recorded of it: it may have happened, and "
                f"must not happen twice. Look whether it has, and say so with delivery.record({self._name!r}, outcome)",
                self._name,
            )
        return False, None

    async def start_attempt(self) -> None:
        """Start an attempt. The server records what the next listener must know if this process dies during it."""
        if self._attempt == 1:
            self._started_at = datetime.now(UTC)
            if not self._once:
                return
        body = {
            "name": self._name,
            "attempt": self._attempt,
            "once": self._once,
            "error": "" if self._error is None else _format_error(self._error)[:500],
        }
        await self._delivery.call("attempts", body)

    def begin_retry(self, error: Exception) -> float:
        """Move on to the next attempt, and return the seconds to wait before it. Raises ``error`` if there is none."""
        delay_s = self._policy.compute_next_delay_s(self._attempt, error, random.random())
        if delay_s is None:
            raise error
        log.warning(
            "%s: attempt %d of step %r has failed: %s", self._delivery, self._attempt, self._name, _format_error(error)
        )
        self._attempt, self._error = self._attempt + 1, error
        return delay_s

    async def record(self, value: Any) -> Any:
        """Record the outcome, and return the recorded one."""
        used = self._usage(value) if callable(self._usage) else self._usage
        body: dict[str, Any] = {
            "name": self._name,
            "output": self._codec.encode(value, self._subject),
            "started_at": self._started_at.isoformat(),
            "attempts": self._attempt,
            "arguments": self._preview,
        }
        if used is not None:
            body["usage"] = asdict(used)
        step = await self._delivery.record_step(body)
        return self._codec.decode(step.output, self._subject)


def _list_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name for one in parameters]


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {get_error_message(error)}"


def parse_datetime(text: Any) -> datetime:
    """A time in the server's JSON."""
    return datetime.fromisoformat(str(text))


# Calling the function


def is_async(function: Callable[..., Any]) -> bool:
    """Whether the function runs on the event loop, and not in a thread."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function: on this event loop if it is async, else in a thread of its own."""
    if is_async(function):
        return await function(*args, **kwargs)
    result = await _call_in_thread(lambda: function(*args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def _call_in_thread(call: Callable[[], Any]) -> Any:
    """Call in a daemon thread, not in one of a pool.

    A thread cannot be stopped. When the caller stops waiting for it, the process must still be able to end, and no pool
    may run short of a thread.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.done():
            return  # the caller was cancelled
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # a future does not accept it
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
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            pass  # the loop has closed in the meantime

    threading.Thread(target=work, name="holdfast-step", daemon=True).start()
    return await done
