"""The message of a run that ended without a result says what to do next."""

from __future__ import annotations

import pytest

from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.errors import NonDeterminismError, StepOutcomeUnknown
from holdfast.services.run_outcome import EndedRun, make_unsuccessful_error


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (ValueError("no"), "Continue the run: `holdfast retry r`."),
        (
            NonDeterminismError("run 'r' cannot continue"),
            "To continue it with the earlier code, run `holdfast retry r` first, then start the program or worker "
            "again.",
        ),
        (
            StepOutcomeUnknown("it may have happened", "pay"),
            "Settle the outcome of that step, and the run continues: `holdfast settle r STEP`.",
        ),
    ],
)
def test_a_failed_run_says_how_it_continues(error: Exception, next_step: str):
    run = EndedRun("r", "flow", RunState.FAILED, None, encode_error(error))
    assert str(make_unsuccessful_error(run)) == (
        f"run 'r' of workflow 'flow' failed: {type(error).__name__}: {error}\n"
        f"See what happened: `holdfast show r`. {next_step} For a new run, use another id."
    )


def test_an_undone_run_does_not_continue():
    run = EndedRun("r", "flow", RunState.FAILED, None, encode_error(ValueError("no")))
    assert "It cannot continue, because compensations" in str(make_unsuccessful_error(run, undone=True))
