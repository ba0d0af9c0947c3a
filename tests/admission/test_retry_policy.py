"""When a failed attempt is made again, and after how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import DefinitionError
from holdfast.admission.retry_policy import NO_RETRIES, RetryPolicy


def test_without_retries_the_first_failure_is_the_last():
    assert not NO_RETRIES.should_retry(1, ValueError())


def test_retries_count_the_attempts_after_the_first():
    policy = RetryPolicy(retries=2)
    assert [policy.should_retry(attempt, ValueError()) for attempt in (1, 2, 3)] == [True, True, False]


def test_only_the_given_classes_are_retried():
    policy = RetryPolicy(retries=5, retry_on=(ConnectionError, TimeoutError))
    assert policy.should_retry(1, ConnectionResetError())
    assert policy.should_retry(1, TimeoutError())
    assert not policy.should_retry(1, ValueError())


def test_a_predicate_decides_by_the_exception_itself():
    policy = RetryPolicy(retries=5, retry_if=lambda error: "busy" in str(error))
    assert policy.should_retry(1, RuntimeError("the server is busy"))
    assert not policy.should_retry(1, RuntimeError("not found"))


def test_classes_and_a_predicate_must_both_agree():
    policy = RetryPolicy(retries=5, retry_on=(OSError,), retry_if=lambda error: "busy" in str(error))
    assert policy.should_retry(1, OSError("busy"))
    assert not policy.should_retry(1, OSError("gone"))
    assert not policy.should_retry(1, ValueError("busy"))


def test_give_up_on_overrides_every_other_option():
    policy = RetryPolicy(retries=5, retry_on=(OSError,), give_up_on=(PermissionError,))
    assert policy.should_retry(1, OSError())
    assert not policy.should_retry(1, PermissionError())


@pytest.mark.parametrize("stop", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_is_never_retried(stop: BaseException):
    assert not RetryPolicy(retries=5).should_retry(1, stop)


def test_waits_double_up_to_the_longest():
    policy = RetryPolicy(retries=9, backoff=2.0, max_backoff=10.0)
    assert [policy.compute_delay_s(attempt, 0.0) for attempt in range(1, 6)] == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_jitter_takes_away_up_to_half_of_a_wait():
    policy = RetryPolicy(backoff=8.0)
    assert policy.compute_delay_s(1, 0.0) == 8.0
    assert policy.compute_delay_s(1, 0.5) == 6.0
    assert 4.0 < policy.compute_delay_s(1, 0.999) < 4.1


def test_a_large_attempt_number_does_not_overflow():
    assert RetryPolicy(backoff=1.0, max_backoff=60.0).compute_delay_s(10_000, 0.0) == 60.0


def test_by_default_attempts_go_on_for_a_day_at_least_every_five_minutes():
    policy, error, waited, attempts = RetryPolicy(), ConnectionError(), 0.0, 1
    while (wait := policy.compute_next_delay_s(attempts, error, 0.0, waited)) is not None:
        assert wait <= 300.0
        waited += wait
        attempts += 1
    assert 86_400.0 - 300.0 < waited <= 86_400.0


def test_durations_are_seconds_a_timedelta_or_text():
    policy = RetryPolicy(backoff="2 s", max_backoff=timedelta(minutes=10), give_up_after="3 days")
    assert policy == RetryPolicy(backoff=2, max_backoff=600, give_up_after=3 * 86_400)
    assert policy.compute_next_delay_s(20, OSError(), 0.0, failing_for_s=86_400) == 600
    assert policy.compute_next_delay_s(20, OSError(), 0.0, failing_for_s=3 * 86_400) is None


# What an error asks for


class Busy(Exception):
    def __init__(self, wait: float | None) -> None:
        self.wait = wait


def make_policy(**options: Any) -> RetryPolicy:
    return RetryPolicy(read_retry_after=lambda error: error.wait if isinstance(error, Busy) else None, **options)


def test_an_attempt_is_never_sooner_than_the_backoff_nor_than_the_error_asks_for():
    assert make_policy().compute_next_delay_s(1, Busy(30.0), 0.0) == 30.0
    assert make_policy().compute_next_delay_s(5, Busy(1.0), 0.0) == 16.0
    assert make_policy().compute_next_delay_s(5, Busy(None), 0.0) == 16.0
    assert make_policy().compute_next_delay_s(5, ValueError(), 0.0) == 16.0


def test_an_error_that_asks_for_no_wait_waits_for_the_backoff_all_the_same():
    assert [make_policy().compute_next_delay_s(attempt, Busy(0.0), 0.0) for attempt in (1, 2, 3)] == [1.0, 2.0, 4.0]


def test_jitter_spreads_callers_with_the_same_retry_after():
    waits = [make_policy().compute_next_delay_s(3, Busy(10.0), draw) for draw in (0.0, 0.5, 0.99)]
    assert waits[0] == 10.0
    assert sorted(set(waits)) == waits
    assert all(wait >= 10.0 for wait in waits)


def test_a_wait_that_is_longer_than_the_longest_backoff_is_heeded():
    assert make_policy().compute_next_delay_s(1, Busy(7200.0), 0.0) == 7200.0


def test_an_attempt_that_would_come_too_late_is_not_waited_for():
    policy = make_policy(give_up_after=100.0)
    assert policy.compute_next_delay_s(1, Busy(99.0), 0.0, 0.0) == 99.0
    assert policy.compute_next_delay_s(2, Busy(99.0), 0.0, 50.0) is None
    assert policy.compute_next_delay_s(50, Busy(1.0), 0.0, 99.0) is None


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": True},
        {"retries": 1.5},
        {"backoff": -1},
        {"backoff": None},
        {"factor": 0.5},
        {"max_backoff": "60"},
        {"jitter": 2},
        {"give_up_after": -1},
        {"give_up_after": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]):
    with pytest.raises(DefinitionError, match=f"RetryPolicy: {next(iter(options))}[= ]"):
        RetryPolicy(**options)
