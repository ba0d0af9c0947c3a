"""Asking for a piece of a budget before a step uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.admission.usage import Shortage, Usage
from holdfast.errors import BudgetExceeded, FenceLost, ModelRefused
from holdfast.stores.operations import ReserveUsage, Verdict

if TYPE_CHECKING:
    from holdfast.engine.step_run import StepRun

FIRST_LOOK = 0.05
LONGEST_LOOK = 1.0
"""Seconds after which a step asks again that waits for the calls of others to end; twice as long each time."""


async def reserve(step: StepRun, expected: Usage) -> None:
    """Reserve with every budget of the run and of those above it; without any, nothing is asked."""
    run, host, name = step.run, step.host, step.step.name
    if not run.has_budget:
        return
    pause = FIRST_LOOK
    while True:
        answer = await host.writer.perform(ReserveUsage(run.key, run.epoch, step.command.position, expected))
        if answer is Verdict.DONE:
            return
        if not isinstance(answer, Shortage):
            step.lose()
        if not answer.passing:
            raise refusal(run.id, name, answer)
        await host.clock.sleep(pause)
        if step.driver.standing:
            raise FenceLost(f"run {run.id!r} stands still: its workflow was switched off while {name!r} waited")
        pause = min(LONGEST_LOOK, 2 * pause)


def refusal(run_id: str, step: str, shortage: Shortage) -> BudgetExceeded | ModelRefused:
    """Why a step of a run is not carried out, in words; not for a shortage that passes."""
    return _unpriced(run_id, shortage) if shortage.limit == "price" else _exceeded(run_id, step, shortage)


def _exceeded(run_id: str, step: str, shortage: Shortage) -> BudgetExceeded:
    limit = shortage.limit

    def words(amount: float) -> str:
        return f"${amount:,.6f}".rstrip("0").rstrip(".") if limit == "usd" else f"{amount:,.10g} {limit}"

    whose = "its budget" if shortage.run_id == run_id else f"the budget of run {shortage.run_id!r}, which started it,"
    expected = f", and this call may use {words(shortage.expected)}" if shortage.expected else ""
    return BudgetExceeded(
        f"{step!r} of run {run_id!r} was not made: {whose} of {words(shortage.most)} would be passed "
        f"({words(shortage.used)} used{expected}). "
        f"The run waits: `holdfast budget {shortage.run_id} --{limit} {_more(shortage)}` gives it more, and lets it go "
        f"on.",
        shortage.run_id,
        limit,
    )


def _unpriced(run_id: str, shortage: Shortage) -> ModelRefused:
    whose = "the run" if shortage.run_id == run_id else f"run {shortage.run_id!r}, which started this one,"
    return ModelRefused(
        f"its price is not known, and {whose} has a budget of ${shortage.most:,.10g}, which could not be kept: give it "
        f"one in tokens, as in Budget(tokens=100_000), or use a model whose price is known"
    )


def _more(shortage: Shortage) -> str:
    """A budget that would do, for the command in the message."""
    enough = max(2 * shortage.most, shortage.used + shortage.reserved + shortage.expected)
    return json.dumps(round(enough, 6)).removesuffix(".0")
