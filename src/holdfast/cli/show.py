"""``holdfast show``: all that is known of one run, for people (the ``Story`` for programs is told beside it)."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.text import Text

from holdfast.cli.approvals import tell_question
from holdfast.cli.budgets import how_to_go_on
from holdfast.cli.liveness import is_held, is_paused, is_short, kind_of, place_of
from holdfast.cli.opening import existing_store
from holdfast.cli.plans import plan_as_json, tell_plan
from holdfast.cli.recorded import (
    RecordedError,
    brief,
    brief_inputs,
    error_of,
    failure_of,
    is_agents,
    is_large,
    own_frames,
    pretty,
)
from holdfast.cli.replies import reason_of
from holdfast.cli.spending import in_words, tell_shares
from holdfast.cli.story import Story, read_story, story_as_json
from holdfast.cli.timeline import tell_family, tell_journal
from holdfast.cli.wording import (
    STATE_STYLES,
    ago,
    clock_time,
    command,
    console,
    counted,
    duration,
    echo_json,
    listed,
    one_line,
    printable,
    size,
    wrapped,
)
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.stores.contract import Worker
from holdfast.stores.operations import Cancel
from holdfast.stores.rules import REOPENABLE

_RESULT_LINES = 12
_TRACEBACK_LINES = 14
_LABEL = 11
_OF_MODEL_CALL = "PassingFault: "
"""So the errors of attempts begin that asked a model: see ``agents.models.calls``."""
_FORKABLE = (Kind.STEP, Kind.CHILD, Kind.SIGNAL, Kind.APPROVAL)
"""What ``fork --at`` can name."""


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print what is known of a run."""
    story = asyncio.run(_read(url, run_id))
    if as_json:
        echo_json({**story_as_json(story), "plan": plan_as_json(story)})
    else:
        _tell(console(), story, url)


async def _read(url: str | None, run_id: str) -> Story:
    async with existing_store(url) as store:
        return await read_story(store, run_id)


# For people


def _tell(out: Console, story: Story, url: str | None) -> None:
    _tell_header(out, story)
    tell_plan(out, story)
    tell_journal(out, story)
    _tell_in_flight(out, story)
    _tell_questions(out, story, url)
    tell_family(out, story)
    _tell_usage(out, story)
    _tell_signals(out, story)
    _tell_workers(out, story)
    if story.refusal is not None:
        _tell_advice(out, how_to_go_on(story.run.id, story.refusal, story.budgets))
    elif short := [run.id for run in story.family.values() if is_short(run)]:
        wait = "waits" if len(short) == 1 else "wait"
        runs = listed([f"run {run_id!r}" for run_id in short])
        _tell_advice(out, f"{runs} {wait} for a higher budget: `{command('show', short[0])}` tells for which")
    if story.stalled:
        _tell_advice(out, story.stalled)


def _tell_advice(out: Console, text: str) -> None:
    out.print()
    for line in wrapped(out, text, 0):
        out.print(Text(line, "yellow"), soft_wrap=True)


def _tell_header(out: Console, story: Story) -> None:
    run, now = story.run, story.now
    _field(out, "run", printable(run.id), "bold")
    more = [f"version {run.version}"] * bool(run.version) + [f"queue {run.queue}"] * (run.queue != "default")
    more += [f"key {run.queue_key}"] * bool(run.queue_key)
    _field(out, "workflow", printable(run.workflow + (f" ({', '.join(more)})" if more else "")))
    took = "" if run.finished_at is None else f" in {duration(run.finished_at - run.created_at)}"
    _field(out, "state", f"{run.state}{took}", STATE_STYLES[run.state])
    _field(out, "started", f"{ago(now - run.created_at)} ({clock_time(run.created_at)}, Python {run.python})")
    if inputs := brief_inputs(run.inputs):
        _field(out, "inputs", one_line(inputs))
    if run.tags:
        _field(out, "tags", printable(", ".join(run.tags)))
    if run.deadline is not None and not run.state.is_terminal:
        _field(out, "deadline", f"{ago(now - run.deadline)} ({clock_time(run.deadline)})")
    if run.parent:
        _field(out, "parent", printable(run.parent))
    if run.forked_from:
        _field(out, "fork of", printable(run.forked_from))
    _tell_whereabouts(out, story)
    _tell_requests(out, story)
    if run.output is not None and is_agents(run.output) and not is_large(run.output):
        _field(
            out,
            "answer",
            _cut("\n".join(wrapped(out, pretty(run.output), _LABEL)), _RESULT_LINES, "--conversation --full"),
        )
    elif run.output is not None:
        _field(out, "result", _result(run.output))
    if error := error_of(run.error):
        _field(out, "error", printable(error.in_short), "red")
        for line in _places(story, error)[-_TRACEBACK_LINES:]:
            out.print(Text(" " * _LABEL + printable(line), "dim"), soft_wrap=True)
    if story.retry is not None:
        _prose(out, "retry", story.retry.in_words)
    if run.state in REOPENABLE and any(record.kind in _FORKABLE for record in story.history.records):
        _prose(out, "fork", f"`{command('fork', run.id, '--at', 'STEP')}` goes on from one of its steps in a new run")


def _result(output: bytes) -> str:
    if is_large(output):
        return f"{size(output)}, see it with --json: {one_line(brief(output))}"
    return _cut(pretty(output), _RESULT_LINES)


def _tell_requests(out: Console, story: Story) -> None:
    """What somebody has asked for: a pause, a cancel."""
    run = story.run
    if run.paused_at is not None and is_paused(run):
        since = f"{ago(story.now - run.paused_at)} ({clock_time(run.paused_at)})"
        rests = "; it rests once its steps in flight have ended" if is_held(run, story.around) else ""
        _field(out, "paused", f"{since}{rests}", "yellow")
    if run.cancel is Cancel.NO or run.state is RunState.CANCELLED:
        return
    if run.state.is_terminal:
        _field(out, "cancel", f"was asked for; the run ended {run.state} all the same")
    elif run.cancel is Cancel.RECORDED:
        _field(out, "cancel", "is being carried out", "yellow")
    else:
        who = "its worker carries it out" if is_held(run, story.around) else "not begun yet"
        _field(out, "cancel", f"asked for; {who}", "yellow")


def _places(story: Story, error: RecordedError) -> list[str]:
    """Where it was raised: in the workflow's code, and below that in the step whose failure ended the run."""
    told = (error.type, error.message)
    failures = [failure for record in reversed(story.history.records) if (failure := failure_of(record)) is not None]
    step = next((failure for failure in failures if (failure.type, failure.message) == told), None)
    return [*own_frames(error.traceback), *(own_frames(step.traceback) if step is not None else [])]


def _tell_whereabouts(out: Console, story: Story) -> None:
    run, now = story.run, story.now
    if run.owner is not None and run.state is RunState.RUNNING:
        worker = story.workers.get(run.owner)
        who = f"{kind_of(worker)} {run.owner}" + ("" if worker is None else f" ({place_of(worker)})")
        if story.is_alive(run.owner):
            _field(out, "held by", f"{who}, alive")
        else:
            _field(out, "held by", f"{who}, which is dead: the next {kind_of(worker)} takes it over", "yellow")
    if story.refusal is not None:
        _prose(out, "waits for", f"a higher budget: {reason_of(story.refusal)}", "yellow")
    elif story.asks_again:
        _prose(out, "waits for", f"a worker: its budget was changed {ago(now - story.asks_again)}, and it asks again")
    elif run.state is RunState.WAITING:
        due = "" if run.wake_at is None else f" (due {ago(now - run.wake_at)})"
        _field(out, "waits for", printable(run.waits_for) + due)
    elif run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        _field(out, "starts", f"{ago(now - run.wake_at)} ({clock_time(run.wake_at)})")
    if run.deliveries:
        label = "deliveries" if run.by_delivery else "deaths"
        _field(out, label, f"{run.deliveries} of {run.max_deliveries} in a row without a new record")


def _field(out: Console, label: str, value: str, style: str = "") -> None:
    first, *rest = value.splitlines() or [""]
    out.print(Text.assemble((label.ljust(_LABEL), "dim"), (first, style)), soft_wrap=True)
    for line in rest:
        out.print(Text((" " * _LABEL + line).rstrip(), style), soft_wrap=True)


def _prose(out: Console, label: str, text: str, style: str = "") -> None:
    """A field whose words wrap where the terminal ends; in a file they are one line."""
    _field(out, label, "\n".join(wrapped(out, text, _LABEL)), style)


def _cut(text: str, most: int, option: str = "--json") -> str:
    lines = printable(text).splitlines()
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… {len(lines) - most + 1} more lines: see all with {option}"]
    return "\n".join(lines)


def _tell_in_flight(out: Console, story: Story) -> None:
    if not story.in_flight:
        return
    out.print("\nin flight", style="bold")
    for attempt in story.in_flight:
        since = ago(story.now - attempt.at)
        if attempt.intent:
            what = f"`once` step, intent recorded {since}: if its worker dies, nobody runs it again"
        elif attempt.error:
            what = f"attempt {attempt.attempt} failed {since}"
        else:
            what = f"last heard of {since}"
        out.print(Text(f"{attempt.position + 1:>4}  {attempt.name}  {what}"), soft_wrap=True)
        # What a model call keeps for its next attempt is its own affair; the error tells who did not answer.
        asked = attempt.error.startswith(_OF_MODEL_CALL)
        if attempt.error:
            out.print(Text(f"      {one_line(attempt.error.removeprefix(_OF_MODEL_CALL))}", "red"), soft_wrap=True)
        if attempt.progress is not None and not asked:
            out.print(Text(f"      progress {one_line(brief(attempt.progress))}", "dim"), soft_wrap=True)


def _tell_questions(out: Console, story: Story, url: str | None) -> None:
    """What people are asked, with the command that answers it."""
    if not story.questions:
        return
    out.print("\nwaits for an answer", style="bold yellow")
    for asked in story.questions:
        tell_question(out, asked, story.now, url, indent=2)


def _tell_usage(out: Console, story: Story) -> None:
    """What the model calls took, here and in the runs below, and what is left of the budgets for them."""
    told = story.usage
    if not told.used.calls and not story.budgets:
        return
    below = ", with the runs below it" if story.family else ""
    out.print(f"\nused so far{below}" if not story.run.state.is_terminal else f"\nused{below}", style="bold")
    out.print(Text(f"      {in_words(told.used)}"), soft_wrap=True)
    for run_id, budget in story.budgets.items():
        whose = (
            "its budget" if run_id == story.run.id else f"the budget of run {printable(run_id)!r}, which is above it"
        )
        out.print(f"\n{whose}", style="bold")
        tell_shares(out, budget)


def _tell_signals(out: Console, story: Story) -> None:
    if story.ends:
        waits = listed([f"#{(end.position or 0) + 1} ({end.name})" for end in story.ends])
        out.print(Text(f"\nends of runs that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if story.answers:
        waits = listed([f"#{(answer.position or 0) + 1}" for answer in story.answers])
        out.print(Text(f"\nanswers that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if not story.signals:
        return
    out.print("\nsignals that nothing has taken yet", style="bold")
    for signal in story.signals:
        sent = ago(story.now - signal.sent_at)
        out.print(
            Text(f"      {one_line(signal.name)} = {one_line(brief(signal.payload))}, sent {sent}"), soft_wrap=True
        )


def _tell_workers(out: Console, story: Story) -> None:
    concerned = sorted({*(record.worker for record in story.history.records), story.run.owner or 0} - {0})
    if not concerned:
        return
    out.print("\nworkers", style="bold")
    for number in concerned:
        worker = story.workers.get(number)
        recorded = sum(record.worker == number for record in story.history.records)
        alive = ("alive", "green") if story.is_alive(number) else (_end_of(worker), "dim")
        place = "" if worker is None else f"{_listener(worker)}{place_of(worker)}, "
        out.print(
            Text.assemble(f"{number:>4}  {place}", alive, f", {counted(recorded, 'record')}"), soft_wrap=True
        )  # fmt: skip


def _listener(worker: Worker) -> str:
    return "listener " if worker.by_lease else ""


def _end_of(worker: Worker | None) -> str:
    if worker is None:
        return "not known any more"
    return "retired" if worker.state == "retired" else "dead"
