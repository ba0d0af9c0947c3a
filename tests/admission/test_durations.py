"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import UsageError
from holdfast.admission.durations import duration_to_seconds, timeout_to_seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(1.5, 1.5), (900, 900.0), (timedelta(minutes=15), 900.0), ("15 min", 900.0), ("day", 86400)],
)
def test_all_forms_mean_the_same(written: float | timedelta | str, seconds: float):
    assert duration_to_seconds(written, "delay") == timeout_to_seconds(written) == seconds


@pytest.mark.parametrize("nothing", [0, 0.0, timedelta(0)])
def test_only_a_timeout_may_be_zero(nothing: float | timedelta):
    assert timeout_to_seconds(nothing) == 0.0
    with pytest.raises(UsageError, match=r"delay .*longer than zero"):
        duration_to_seconds(nothing, "delay")


def test_a_timeout_that_has_passed_is_zero_and_none_is_none():
    assert timeout_to_seconds(-3.5) == 0.0
    assert timeout_to_seconds(None) is None


@pytest.mark.parametrize("value", ["soon", "", "15", "5 min soon", True, float("nan"), float("inf"), [1]])
def test_anything_else_is_refused_with_its_name_its_value_and_what_is_accepted(value: object):
    with pytest.raises(UsageError) as raised:
        timeout_to_seconds(value)  # type: ignore[arg-type]
    assert str(raised.value) == (
        f"timeout {value!r} is not a duration: use seconds, a timedelta, or text such as '15 min' or '1 h 30 min' "
        "(units: s, min, hour, day, week), zero or longer and shorter than a thousand years"
    )


@pytest.mark.parametrize("text", ["month", "3 months", "1year", "2 y"])
def test_months_and_years_get_a_hint(text: str):
    with pytest.raises(UsageError, match=r"cron expression such as '0 0 1 \* \*'"):
        duration_to_seconds(text, "every")
