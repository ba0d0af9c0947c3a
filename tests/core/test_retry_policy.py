"""When a failed attempt is made again, and after how long."""

from __future__ import annotations

import pytest

from holdfast.core.retry import RetryPolicy


def test_without_retries_the_first_failure_is_the_last():
    assert not RetryPolicy().wants_retry(1, ValueError())


def test_retries_count_the_attempts_after_the_first():
    policy = RetryPolicy(retries=2)
    assert [policy.wants_retry(attempt, ValueError()) for attempt in (1, 2, 3)] == [True, True, False]


def test_only_the_given_classes_are_retried():
    policy = RetryPolicy(retries=5, retry_on=(ConnectionError, TimeoutError))
    assert policy.wants_retry(1, ConnectionResetError())
    assert policy.wants_retry(1, TimeoutError())
    assert not policy.wants_retry(1, ValueError())


def test_a_predicate_decides_by_the_exception_itself():
    policy = RetryPolicy(retries=5, retry_if=lambda error: "busy" in str(error))
    assert policy.wants_retry(1, RuntimeError("the server is busy"))
    assert not policy.wants_retry(1, RuntimeError("not found"))


def test_classes_and_a_predicate_must_both_agree():
    policy = RetryPolicy(retries=5, retry_on=(OSError,), retry_if=lambda error: "busy" in str(error))
    assert policy.wants_retry(1, OSError("busy"))
    assert not policy.wants_retry(1, OSError("gone"))
    assert not policy.wants_retry(1, ValueError("busy"))


def test_what_is_given_up_on_is_not_retried_whatever_else_is_said():
    policy = RetryPolicy(retries=5, retry_on=(OSError,), give_up_on=(PermissionError,))
    assert policy.wants_retry(1, OSError())
    assert not policy.wants_retry(1, PermissionError())


@pytest.mark.parametrize("stop", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_is_never_retried(stop: BaseException):
    assert not RetryPolicy(retries=5).wants_retry(1, stop)


def test_waits_double_up_to_the_longest():
    policy = RetryPolicy(retries=9, backoff=2.0, max_backoff=10.0)
    assert [policy.delay(attempt, 0.0) for attempt in range(1, 6)] == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_jitter_takes_away_up_to_half_of_a_wait():
    policy = RetryPolicy(backoff=8.0)
    assert policy.delay(1, 0.0) == 8.0
    assert policy.delay(1, 0.5) == 6.0
    assert 4.0 < policy.delay(1, 0.999) < 4.1


def test_a_large_attempt_number_does_not_overflow():
    assert RetryPolicy(backoff=1.0, max_backoff=60.0).delay(10_000, 0.0) == 60.0
