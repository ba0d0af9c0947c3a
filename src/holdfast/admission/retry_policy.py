"""Whether a failed attempt is retried, and after how long. Pure: time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.errors import DefinitionError

ExceptionTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to retry a failed attempt: exponential backoff with jitter, bounded by a count, a time, or both.

    The defaults suit trouble that passes by itself, such as a provider's outage: retry for a day, at least every five
    minutes. Durations are seconds, a ``timedelta``, or text such as ``3 days``; they are stored as seconds.
    """

    retries: int | None = None
    """Attempts after the first one; ``None``: as many as fit into ``give_up_after``."""
    backoff: Duration = 1.0
    """The wait before the first retry."""
    factor: float = 2.0
    """How much longer each further wait is."""
    max_backoff: Duration = 300.0
    """The longest wait, unless the error itself asks for a longer one."""
    jitter: float = 0.5
    """The random share of each wait, which keeps many failed calls from coming back at the same time."""
    give_up_after: Duration | None = 86_400.0
    """The longest time from the first failure to the last attempt; ``None``: only ``retries`` is a limit."""
    retry_on: ExceptionTypes = (Exception,)
    """The exceptions to retry."""
    retry_if: Callable[[BaseException], bool] | None = None
    """Narrows ``retry_on``: retry only if this returns true."""
    give_up_on: ExceptionTypes = ()
    """The exceptions never to retry."""
    read_retry_after: Callable[[BaseException], float | None] | None = None
    """The seconds that an error itself asks to wait (a server's ``Retry-After``), or ``None`` if it does not say."""

    def __post_init__(self) -> None:
        retries: Any = self.retries
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
            raise DefinitionError(f"RetryPolicy: retries={retries!r} must be a whole number, 0 or more, or None")
        for name, min_value in (("factor", 1.0), ("jitter", 0.0)):
            _check_number(name, getattr(self, name), min_value)
        if self.jitter > 1.0:
            raise DefinitionError(f"RetryPolicy: jitter={self.jitter!r} must be between 0 and 1")
        for name in ("backoff", "max_backoff", "give_up_after"):
            seconds = declared_seconds(getattr(self, name), f"RetryPolicy: {name}", may_be_zero=True)
            if seconds is None and name != "give_up_after":
                raise DefinitionError(f"RetryPolicy: {name}=None must be a duration")
            object.__setattr__(self, name, seconds)

    def should_retry(self, attempt: int, error: BaseException) -> bool:
        """Whether attempt number ``attempt``, which failed with ``error``, may be followed by another."""
        if self.retries is not None and attempt > self.retries:
            return False
        if isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on):
            return False
        return self.retry_if is None or bool(self.retry_if(error))

    def compute_delay_s(self, attempt: int, random_value: float, requested_s: float | None = None) -> float:
        """Seconds to wait after attempt number ``attempt`` failed; ``random_value`` is a random number in [0, 1).

        The wait is never shorter than the backoff, nor than what the error asks for (``requested_s``). Jitter shortens
        the backoff but adds to the requested wait, because a server asks all its callers for the same one.
        """
        # The exponent is bounded so that a large attempt number cannot overflow a float.
        backoff_s, max_backoff_s = cast("float", self.backoff), cast("float", self.max_backoff)
        full = min(max_backoff_s, backoff_s * self.factor ** min(attempt - 1, 64))
        wait = full * (1.0 - self.jitter * random_value)
        return wait if requested_s is None else max(wait, requested_s + full * self.jitter * random_value)

    def compute_next_delay_s(
        self, attempt: int, error: BaseException, random_value: float, failing_for_s: float = 0.0
    ) -> float | None:
        """Seconds until the next attempt, or ``None`` if attempt number ``attempt`` was the last one.

        ``failing_for_s`` is the time since the first attempt failed.
        """
        if not self.should_retry(attempt, error):
            return None
        wait = self.compute_delay_s(
            attempt, random_value, None if self.read_retry_after is None else self.read_retry_after(error)
        )
        return None if self.is_past_limit(failing_for_s + wait) else wait

    def is_past_limit(self, failing_for_s: float) -> bool:
        """Whether it is too late for another attempt, this long after the first failure."""
        return self.give_up_after is not None and failing_for_s > cast("float", self.give_up_after)


def _check_number(name: str, value: Any, min_value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= min_value:
        raise DefinitionError(f"RetryPolicy: {name}={value!r} must be a number, {min_value:g} or more")


NO_RETRIES = RetryPolicy(retries=0)
"""The first failure is the last."""
