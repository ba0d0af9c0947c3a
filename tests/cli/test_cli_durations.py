"""Options for durations accept what duration arguments in Python accept, with the same errors."""

from __future__ import annotations

import click
import pytest
from cli_project import Project

from holdfast.admission.durations import duration_to_seconds
from holdfast.cli.shared.parsing import DurationType
from holdfast.errors import UsageError


@pytest.mark.parametrize("text", ["15 min", "1h 30m", "1 h 30 min", "day", "2 weeks", "0.5s"])
def test_text_is_a_duration_as_in_python(text: str):
    assert DurationType().convert(text, None, None) == duration_to_seconds(text, "duration")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("0.25", 0.25), ("1e3", 1000.0)])
def test_a_bare_number_is_seconds(text: str, seconds: float):
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["soon", "10 parsecs", "3 months", "", "-5", "0", "nan", "inf", "9999999 weeks"])
def test_other_text_is_refused_with_the_error_of_python(text: str):
    try:
        value: float | str = float(text)
    except ValueError:
        value = text
    with pytest.raises(UsageError) as expected:
        duration_to_seconds(value, "")
    with pytest.raises(click.BadParameter) as raised:
        DurationType().convert(text, None, None)
    assert raised.value.message == str(expected.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("worker", "app", "--lease", "0.5"), "'0.5' is too short: at least 1 s is needed."),
        (("addresses", "set", "a", "--webhook-timeout", "1h"), "'1h' is too long: at most 300 s is possible."),
        (("send", "a", "--deadline", "0"), "longer than zero"),
        (("cancel", "etl-acme", "--wait", "3 fortnights"), "'3 fortnights' is not a duration"),
    ],
)
def test_a_duration_that_an_option_cannot_take_is_a_usage_error(project: Project, words: tuple[str, ...], message: str):
    done = project.here(*words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
