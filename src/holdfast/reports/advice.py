"""What to do about a run now, the most urgent first; nothing for a healthy run."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.reports.formatting import format_command, format_count, format_list, to_one_line
from holdfast.reports.run_usage import list_budget_limits
from holdfast.reports.summary import JournalStats
from holdfast.reports.types import Advice, RunReport
from holdfast.services.stalls import Stall
from holdfast.stores.contract import RunUsage
from holdfast.stores.rules import REOPENABLE


def build_advice(report: RunReport, stats: JournalStats, stall: Stall | None) -> tuple[Advice, ...]:
    """What to do about the run now."""
    return (
        *_advise_after_failure(report, stats),
        *_advise_approvals(report),
        *_advise_budgets(report),
        *_advise_stall(stall),
    )


def _advise_after_failure(report: RunReport, stats: JournalStats) -> Iterator[Advice]:
    """How to continue a run that ended without a result."""
    if report.retry is None:
        return
    for number, name in stats.unknown_steps if report.retry.is_possible else ():
        settle = format_command("settle", report.id, str(number))
        yield Advice(
            f"nobody knows whether step {number} ({to_one_line(name)}) happened: find out. If it did, `{settle} "
            f"--output JSON` says what it returned; if not, `{settle} --did-not-happen` runs it again",
            "settle",
        )
    if report.retry.is_possible:
        yield Advice(report.retry.message, "run_again" if report.retry.needs_run_again else "retry")
    else:
        yield Advice(f"a retry is {report.retry.message}", None)
    if report.state in REOPENABLE and stats.is_forkable:
        fork = format_command("fork", report.id, "--at", "STEP")
        yield Advice(f"`{fork}` goes on from one of its steps in a new run", "fork")


def _advise_approvals(report: RunReport) -> Iterator[Advice]:
    if not (approvals := report.open_approvals):
        return
    question = f"“{to_one_line(approvals[0].question, 120)}”"
    more = f" and {format_count(len(approvals) - 1, 'more question')}" if len(approvals) > 1 else ""
    yield Advice(f"it waits for an answer to {question}{more}: `{format_command('approvals', report.id)}`", "approve")


def _advise_budgets(report: RunReport) -> Iterator[Advice]:
    if report.budget_refusal is not None:
        yield Advice(_describe_budget_raise(report), "budget")
    elif waiting := [run.id for run in report.related_runs if run.is_waiting_for_budget]:
        wait = "waits" if len(waiting) == 1 else "wait"
        runs = format_list([f"run {run_id!r}" for run_id in waiting])
        yield Advice(f"{runs} {wait} for a higher budget: `{format_command('show', waiting[0])}` tells for which", None)


def _describe_budget_raise(report: RunReport) -> str:
    """How to continue a run after a budget refused its next model call."""
    assert report.budget_refusal is not None
    run_id, name = report.budget_refusal.run_id, report.budget_refusal.limit
    usage = next((budget.run_usage for budget in report.budgets if budget.run_id == run_id), RunUsage())
    limit = next((limit for limit in list_budget_limits(usage) if limit.name == name), None)
    if limit is None:
        return f"run {report.id!r} waits for a higher budget: `{format_command('budget', run_id)}` tells which"
    raise_limit = format_command("budget", run_id, f"--{limit.name}", limit.suggested_limit)
    above = "" if run_id == report.id else f" of run {run_id!r}, which is above it"
    return f"run {report.id!r} waits for a higher budget{above}: `{raise_limit}` gives it more, and lets it go on"


def _advise_stall(stall: Stall | None) -> Iterator[Advice]:
    if stall is not None:
        yield Advice(stall.advice, stall.action)
