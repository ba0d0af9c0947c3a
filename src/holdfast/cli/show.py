"""``holdfast show``: a run's story, for people. What is in it is read elsewhere: see ``reports``."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.admission.usage import Usage
from holdfast.cli.approvals import tell_question
from holdfast.cli.budget_table import tell_shares
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import (
    STATE_STYLES,
    ago,
    bytes_in_words,
    clock_time,
    console,
    counted,
    duration,
    echo_json,
    listed,
    one_line,
    printable,
    wrapped,
)
from holdfast.cli.plans import tell_plan
from holdfast.cli.report_reader import whole_story
from holdfast.cli.store_access import placed
from holdfast.cli.timeline import tell_family, tell_journal
from holdfast.cli.value_formatting import brief, brief_inputs, own_frames, pretty
from holdfast.core.states import RunState
from holdfast.reports.model_replies import reason_in
from holdfast.reports.recorded_values import LARGE
from holdfast.reports.run_usage import in_words
from holdfast.reports.serialization import as_json as story_as_json
from holdfast.reports.types import Fault, Hand, Story
from holdfast.stores.operations import Cancel

_RESULT_LINES = 12
_TRACEBACK_LINES = 14
_LABEL = 11
_OF_MODEL_CALL = "PassingFault: "
"""So the errors of attempts begin that asked a model: see ``agents.models.errors``."""
_AT_THE_HEAD = ("retry", "run_again", "fork", "settle")
"""What is advised beside how the run has ended; the rest stands at the end, where one looks last."""


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print what is known of a run."""
    story = in_loop(whole_story(url, run_id))
    if as_json:
        echo_json(story_as_json(story))
    else:
        _tell(console(), story, url)


# For people


def _tell(out: Console, story: Story, url: str | None) -> None:
    _tell_header(out, story, url)
    tell_plan(out, story)
    tell_journal(out, story)
    _tell_in_flight(out, story)
    _tell_questions(out, story, url)
    tell_family(out, story, url)
    _tell_usage(out, story)
    _tell_signals(out, story)
    _tell_workers(out, story)
    for advice in story.advice:
        if advice.does not in _AT_THE_HEAD and advice.does != "approve" and story.retry is None:
            _tell_advice(out, placed(url, advice.text))


def _tell_advice(out: Console, text: str) -> None:
    out.print()
    for line in wrapped(out, text, 0):
        out.print(Text(line, "yellow"), soft_wrap=True)


def _tell_header(out: Console, story: Story, url: str | None) -> None:
    now = story.at.timestamp()
    _field(out, "run", printable(story.id), "bold")
    more = [f"version {story.version}"] * bool(story.version) + [f"queue {story.queue}"] * (story.queue != "default")
    more += [f"key {story.queue_key}"] * bool(story.queue_key)
    _field(out, "workflow", printable(story.workflow + (f" ({', '.join(more)})" if more else "")))
    took = (
        "" if story.finished_at is None else f" in {duration((story.finished_at - story.created_at).total_seconds())}"
    )
    _field(out, "state", f"{story.state}{took}", STATE_STYLES[story.state])
    _prose(out, "in short", story.told)
    created = story.created_at.timestamp()
    _field(out, "started", f"{ago(now - created)} ({clock_time(created)}, Python {story.python})")
    if inputs := brief_inputs(story.inputs):
        _field(out, "inputs", one_line(inputs))
    if story.tags:
        _field(out, "tags", printable(", ".join(story.tags)))
    if story.deadline is not None and not story.state.is_terminal:
        deadline = story.deadline.timestamp()
        _field(out, "deadline", f"{ago(now - deadline)} ({clock_time(deadline)})")
    if story.parent:
        _field(out, "parent", printable(story.parent))
    if story.forked_from:
        _field(out, "fork of", printable(story.forked_from))
    _tell_whereabouts(out, story)
    _tell_requests(out, story)
    _tell_end(out, story, url)


def _tell_end(out: Console, story: Story, url: str | None) -> None:
    """How the run has ended, and what can be done about it if it has no result."""
    size = story.output_size
    if size is not None and story.is_agent and size <= LARGE:
        answer = "\n".join(wrapped(out, pretty(story.output, of_agent=True), _LABEL))
        _field(out, "answer", _cut(answer, _RESULT_LINES, "--conversation --full"))
    elif size is not None:
        _field(out, "result", _result(story, size))
    if story.error is not None:
        _field(out, "error", printable(story.error.in_short), "red")
        for line in _places(story, story.error)[-_TRACEBACK_LINES:]:
            out.print(Text(" " * _LABEL + printable(line), "dim"), soft_wrap=True)
    if story.retry is not None:
        _prose(out, "retry", placed(url, story.retry.message))
    for advice in story.advice:
        if advice.does == "fork":
            _prose(out, "fork", placed(url, advice.text))


def _result(story: Story, size: int) -> str:
    if size > LARGE:
        return f"{bytes_in_words(size)}, see it with --json: {one_line(brief(story.output))}"
    return _cut(pretty(story.output), _RESULT_LINES)


def _tell_requests(out: Console, story: Story) -> None:
    """What somebody has asked for: a pause, a cancel."""
    if story.paused_at is not None:
        paused = story.paused_at.timestamp()
        since = f"{ago(story.at.timestamp() - paused)} ({clock_time(paused)})"
        rests = "; it rests once its steps in flight have ended" if story.is_held else ""
        _field(out, "paused", f"{since}{rests}", "yellow")
    if story.cancel is None or story.state is RunState.CANCELLED:
        return
    if story.state.is_terminal:
        _field(out, "cancel", f"was asked for; the run ended {story.state} all the same")
    elif story.cancel == Cancel.RECORDED:
        _field(out, "cancel", "is being carried out", "yellow")
    else:
        who = "its worker carries it out" if story.is_held else "not begun yet"
        _field(out, "cancel", f"asked for; {who}", "yellow")


def _places(story: Story, error: Fault) -> list[str]:
    """Where it was raised: in the workflow's code, and below that in the step whose failure ended the run."""
    told = (error.type, error.message)
    failures = [entry.error for entry in reversed(story.journal) if entry.error is not None]
    step = next((failure for failure in failures if (failure.type, failure.message) == told), None)
    return [*own_frames(error.traceback), *(own_frames(step.traceback) if step is not None else [])]


def _tell_whereabouts(out: Console, story: Story) -> None:
    now = story.at.timestamp()
    wake_at = None if story.wake_at is None else story.wake_at.timestamp()
    if story.held_by is not None and story.state is RunState.RUNNING:
        hand = story.hand(story.held_by)
        kind = "worker" if hand is None else hand.kind
        who = f"{kind} {story.held_by}" + (f" ({hand.place})" if hand is not None and hand.state != "unknown" else "")
        if story.is_held:
            _field(out, "held by", f"{who}, alive")
        else:
            _field(out, "held by", f"{who}, which is dead: the next {kind} takes it over", "yellow")
    if story.short_of is not None:
        _prose(out, "waits for", f"a higher budget: {reason_in(story.short_of.message)}", "yellow")
    elif story.asks_again is not None:
        changed = ago(now - story.asks_again.timestamp())
        _prose(out, "waits for", f"a worker: its budget was changed {changed}, and it asks again")
    elif story.state is RunState.WAITING:
        due = "" if wake_at is None else f" (due {ago(now - wake_at)})"
        _field(out, "waits for", printable(story.waits_for or "") + due)
    elif story.state is RunState.PENDING and wake_at is not None and wake_at > now:
        _field(out, "starts", f"{ago(now - wake_at)} ({clock_time(wake_at)})")
    if story.deliveries:
        label = "deliveries" if story.by_delivery else "deaths"
        _field(out, label, f"{story.deliveries} of {story.max_deliveries} without a new record")


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
    for step in story.in_flight:
        since = ago((story.at - step.at).total_seconds())
        error = step.error or ""
        if step.once:
            what = f"`once` step, intent recorded {since}: if its worker dies, nobody runs it again"
        elif step.retry_at is not None:
            at = step.retry_at.timestamp()
            what = f"attempt {step.attempt} failed {since}; waiting for the next attempt at {clock_time(at)}"
        elif error:
            what = f"attempt {step.attempt} failed {since}"
        else:
            what = f"last heard of {since}"
        out.print(Text(f"{step.number:>4}  {step.name}  {what}"), soft_wrap=True)
        # What a model call keeps for its next attempt is its own affair; the error tells who did not answer.
        asked = error.startswith(_OF_MODEL_CALL)
        if error:
            out.print(Text(f"      {one_line(error.removeprefix(_OF_MODEL_CALL))}", "red"), soft_wrap=True)
        if step.progress is not None and not asked:
            out.print(Text(f"      progress {one_line(brief(step.progress))}", "dim"), soft_wrap=True)


def _tell_questions(out: Console, story: Story, url: str | None) -> None:
    """What people are asked, with the command that answers it."""
    if not story.questions:
        return
    out.print("\nwaits for an answer", style="bold yellow")
    for asked in story.questions:
        tell_question(out, asked.info, story.at.timestamp(), url, indent=2)


def _tell_usage(out: Console, story: Story) -> None:
    """What the model calls took, here and in the runs below, and what is left of the budgets for them."""
    if story.usage is None and not story.budgets:
        return
    below = ", with the runs below it" if story.children else ""
    out.print(f"\nused so far{below}" if not story.state.is_terminal else f"\nused{below}", style="bold")
    out.print(Text(f"      {in_words(Usage() if story.usage is None else story.usage.usage)}"), soft_wrap=True)
    for account in story.budgets:
        above = f"the budget of run {printable(account.run)!r}, which is above it"
        out.print(f"\n{'its budget' if account.run == story.id else above}", style="bold")
        tell_shares(out, account.usage)


def _tell_signals(out: Console, story: Story) -> None:
    if story.ends:
        waits = listed([f"#{end.number} ({end.state})" for end in story.ends])
        out.print(Text(f"\nends of runs that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if story.answers:
        waits = listed([f"#{answer.number}" for answer in story.answers])
        out.print(Text(f"\nanswers that are there, and not recorded yet: {waits}"), soft_wrap=True)
    if not story.signals:
        return
    out.print(f"\nsignals that nothing {'took' if story.state.is_terminal else 'has taken yet'}", style="bold")
    for signal in story.signals:
        sent = ago((story.at - signal.sent_at).total_seconds())
        out.print(Text(f"      {one_line(signal.name)} = {one_line(brief(signal.value))}, sent {sent}"), soft_wrap=True)


def _tell_workers(out: Console, story: Story) -> None:
    concerned = [hand for hand in story.workers if hand.records or hand.id == story.held_by]
    if not concerned:
        return
    out.print("\nworkers", style="bold")
    for hand in sorted(concerned, key=lambda hand: hand.id):
        alive = ("alive", "green") if hand.alive else (_END[hand.state], "dim")
        out.print(
            Text.assemble(f"{hand.id:>4}  {_place(hand)}", alive, f", {counted(hand.records, 'record')}"),
            soft_wrap=True,
        )


_END = {"live": "dead", "dead": "dead", "retired": "retired", "unknown": "not known any more"}
"""How one is told that is not alive: nobody may have noticed yet that it is dead."""


def _place(hand: Hand) -> str:
    if hand.state == "unknown":
        return ""
    return f"{'listener ' if hand.by_lease else ''}{hand.place}, "
