"""What to do now about a run, the most urgent first; nothing about one that is well."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.reports.formatting import command, counted, listed, one_line
from holdfast.reports.run_usage import shares
from holdfast.reports.summary import Course
from holdfast.reports.types import Advice, Story
from holdfast.services.stalls import Stall
from holdfast.stores.contract import RunUsage
from holdfast.stores.rules import REOPENABLE


def advise(story: Story, course: Course, stall: Stall | None) -> tuple[Advice, ...]:
    """What to do now."""
    return (*_after_its_end(story, course), *_for_people(story), *_for_budgets(story), *_to_go_on(stall))


def _after_its_end(story: Story, course: Course) -> Iterator[Advice]:
    """What lets a run go on that has ended without a result."""
    if story.retry is None:
        return
    for number, name in course.unknown if story.retry.possible else ():
        settle = command("settle", story.id, str(number))
        yield Advice(
            f"nobody knows whether step {number} ({one_line(name)}) happened: find out. If it did, `{settle} --output "
            f"JSON` says what it returned; if not, `{settle} --did-not-happen` runs it again",
            "settle",
        )
    if story.retry.possible:
        yield Advice(story.retry.message, "run_again" if story.retry.needs_run_again else "retry")
    else:
        yield Advice(f"a retry is {story.retry.message}", None)
    if story.state in REOPENABLE and course.forkable:
        fork = command("fork", story.id, "--at", "STEP")
        yield Advice(f"`{fork}` goes on from one of its steps in a new run", "fork")


def _for_people(story: Story) -> Iterator[Advice]:
    if not (questions := story.questions):
        return
    asked = f"“{one_line(questions[0].question, 120)}”"
    more = f" and {counted(len(questions) - 1, 'more question')}" if len(questions) > 1 else ""
    yield Advice(f"it waits for an answer to {asked}{more}: `{command('approvals', story.id)}`", "approve")


def _for_budgets(story: Story) -> Iterator[Advice]:
    if story.short_of is not None:
        yield Advice(_higher_budget(story), "budget")
    elif short := [one.id for one in story.children if one.short]:
        wait = "waits" if len(short) == 1 else "wait"
        runs = listed([f"run {run_id!r}" for run_id in short])
        yield Advice(f"{runs} {wait} for a higher budget: `{command('show', short[0])}` tells for which", None)


def _higher_budget(story: Story) -> str:
    """What lets a run go on whose next model call was refused."""
    assert story.short_of is not None
    whose, limit = story.short_of.run, story.short_of.limit
    over = next((one.usage for one in story.budgets if one.run == whose), RunUsage())
    short = next((one for one in shares(over) if one.name == limit), None)
    if short is None:
        return f"run {story.id!r} waits for a higher budget: `{command('budget', whose)}` tells which"
    given = command("budget", whose, f"--{short.name}", short.enough)
    through = "" if whose == story.id else f" of run {whose!r}, which is above it"
    return f"run {story.id!r} waits for a higher budget{through}: `{given}` gives it more, and lets it go on"


def _to_go_on(stall: Stall | None) -> Iterator[Advice]:
    if stall is not None:
        yield Advice(stall.advice, stall.does)
