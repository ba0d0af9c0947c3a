"""When a failed attempt is made again, and after how long. Pure: randomness is handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ExceptionTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, for a bounded number of retries."""

    retries: int = 0
    """How many times more after the first attempt."""
    backoff: float = 1.0
    """Seconds before the first retry."""
    factor: float = 2.0
    max_backoff: float = 60.0
    jitter: float = 0.5
    """The share of each wait that is drawn at random, so that a crowd of failed calls does not come back as one."""
    retry_on: ExceptionTypes = (Exception,)
    """Only these are retried."""
    retry_if: Callable[[BaseException], bool] | None = None
    """Only those of them for which this returns true."""
    give_up_on: ExceptionTypes = ()
    """These are never retried."""
    wait_of: Callable[[BaseException], float | None] | None = None
    """How long an error itself says to wait (a server's ``Retry-After``); ``None``: it does not say."""

    def wants_retry(self, attempt: int, error: BaseException) -> bool:
        """Whether attempt number ``attempt``, which failed with ``error``, is to be followed by another."""
        if attempt > self.retries or isinstance(error, self.give_up_on):
            return False
        return isinstance(error, self.retry_on) and (self.retry_if is None or bool(self.retry_if(error)))

    def delay(self, attempt: int, draw: float, error: BaseException | None = None) -> float:
        """Seconds to wait after attempt number ``attempt`` failed; ``draw`` is a random number in [0, 1)."""
        told = None if self.wait_of is None or error is None else self.wait_of(error)
        if told is not None:
            return told
        # The exponent is bounded so that a large attempt number cannot overflow a float.
        full = min(self.max_backoff, self.backoff * self.factor ** min(attempt - 1, 64))
        return full * (1.0 - self.jitter * draw)
