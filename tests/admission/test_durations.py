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
    with pytest.raises(UsageError, match=r"delay 0.*longer than zero"):
        duration_to_seconds(nothing, "delay")


def test_a_timeout_that_has_passed_is_zero_and_none_is_none():
    assert timeout_to_seconds(-3.5) == 0.0
    assert timeout_to_seconds(None) is None


@pytest.mark.parametrize("wrong", ["soon", "", True, float("nan"), [1]])
def test_anything_else_is_refused_with_its_name(wrong: object):
    with pytest.raises(UsageError, match="timeout"):
        timeout_to_seconds(wrong)  # type: ignore[arg-type]
