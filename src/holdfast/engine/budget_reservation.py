"""Reserving usage from budgets before a step uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.admission.usage import BudgetShortage, Usage
from holdfast.errors import BudgetExceeded, FenceLost, ModelRequestRejected
from holdfast.stores.operations import OpStatus, ReserveUsage

if TYPE_CHECKING:
    from holdfast.engine.step_run import StepRun

MIN_POLL_DELAY_S = 0.05
MAX_POLL_DELAY_S = 1.0
"""Seconds between two tries of a step that waits for other calls to end; the pause doubles each time."""


async def reserve_budget(step: StepRun, expected: Usage) -> None:
    """Reserve from every budget of the run and of the runs above it; returns at once if there is none."""
    run, host, name = step.run, step.host, step.step.name
    if not run.has_budget:
        return
    pause = MIN_POLL_DELAY_S
    while True:
        answer = await host.writer.perform(ReserveUsage(run.key, run.epoch, step.command.position, expected))
        if answer is OpStatus.DONE:
            return
        if not isinstance(answer, BudgetShortage):
            step.raise_claim_lost()
        if not answer.is_temporary:
            raise make_shortage_error(run.id, name, answer)
        await host.clock.sleep(pause)
        if step.driver.is_disabled:
            raise FenceLost(f"run {run.id!r} stops: its workflow was disabled while {name!r} waited")
        pause = min(MAX_POLL_DELAY_S, 2 * pause)


def make_shortage_error(run_id: str, step: str, shortage: BudgetShortage) -> BudgetExceeded | ModelRequestRejected:
    """The error of a step that a budget does not allow; not for a temporary shortage."""
    return (
        _make_unpriced_error(run_id, shortage)
        if shortage.limit_name == "price"
        else _make_exceeded_error(run_id, step, shortage)
    )


def _make_exceeded_error(run_id: str, step: str, shortage: BudgetShortage) -> BudgetExceeded:
    limit = shortage.limit_name

    def describe(amount: float) -> str:
        return f"${amount:,.6f}".rstrip("0").rstrip(".") if limit == "usd" else f"{amount:,.10g} {limit}"

    budget = "its budget" if shortage.run_id == run_id else f"the budget of run {shortage.run_id!r}, which started it,"
    expected = f", and this call may use {describe(shortage.expected)}" if shortage.expected else ""
    return BudgetExceeded(
        f"{step!r} of run {run_id!r} was not made: {budget} of {describe(shortage.max_amount)} would be passed "
        f"({describe(shortage.used)} used{expected}). The run waits: `holdfast budget {shortage.run_id} --{limit} "
        f"{_suggest_budget(shortage)}` gives it more, and lets it go on.",
        shortage.run_id,
        limit,
    )


def _make_unpriced_error(run_id: str, shortage: BudgetShortage) -> ModelRequestRejected:
    owner = "the run" if shortage.run_id == run_id else f"run {shortage.run_id!r}, which started this one,"
    return ModelRequestRejected(
        f"its price is not known, and {owner} has a budget of ${shortage.max_amount:,.10g}, which could not be kept: "
        "give it one in tokens, as in Budget(tokens=100_000), or use a model whose price is known"
    )


def _suggest_budget(shortage: BudgetShortage) -> str:
    """A budget that is large enough, for the command in the message."""
    enough = max(2 * shortage.max_amount, shortage.used + shortage.reserved + shortage.expected)
    return json.dumps(round(enough, 6)).removesuffix(".0")
