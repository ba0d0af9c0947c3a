"""``holdfast show``: all that is known of one run.

``Story`` is what was read, at one moment; it is told to people (``_tell``) or to programs (``as_json``).

A record that was written under an earlier lease than the run's last one was replayed by every later holder: the epoch
rises by one with each claim, so the difference says how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.liveness import is_alive, place_of, why_stalled
from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.recorded import RecordedError, brief, brief_inputs, error_of, own_frames, pretty, value_of
from holdfast.cli.wording import (
    STATE_STYLES,
    ago,
    clock_time,
    console,
    counted,
    duration,
    echo_json,
    iso,
    one_line,
    printable,
)
from holdfast.core.records import Attempt, Kind, Record
from holdfast.core.states import RunState
from holdfast.stores.contract import History, Run, Worker

_RESULT_LINES = 12
_TRACEBACK_LINES = 14
_LABEL = 11


@dataclass(frozen=True, slots=True)
class Story:
    """What the store knows of a run."""

    run: Run
    history: History
    workers: Mapping[int, Worker]
    now: float

    def replays(self, record: Record) -> int:
        """How many later holders of the run have replayed this record."""
        return max(0, self.run.epoch - record.epoch)  # the row may be a moment older than the journal

    def is_alive(self, worker: int) -> bool:
        """Whether that worker is; one that is not known any more is not."""
        return worker in self.workers and is_alive(self.workers[worker], self.now)

    @property
    def stalled(self) -> str | None:
        """Why the run does not go on, if it does not."""
        return why_stalled(self.run, self.workers.values(), self.now)

    @property
    def in_flight(self) -> Sequence[Attempt]:
        """What is known of steps that have no outcome, unless the run went on without them."""
        if self.run.state is RunState.COMPLETED:
            return ()
        return sorted(self.history.attempts.values())


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print what is known of a run."""
    story = asyncio.run(_read(url, run_id))
    if as_json:
        echo_json(_as_json(story))
    else:
        _tell(console(), story)


async def _read(url: str | None, run_id: str) -> Story:
    async with existing_store(url) as store:
        run = await find_run(store, run_id)
        [history] = await store.histories([run.key])
        workers = await store.workers(also={record.worker for record in history.records})
        return Story(run, history, {worker.id: worker for worker in workers}, store.now())


# For people


def _tell(out: Console, story: Story) -> None:
    _tell_header(out, story)
    _tell_journal(out, story)
    _tell_in_flight(out, story)
    _tell_signals(out, story)
    _tell_workers(out, story)
    if story.stalled:
        out.print(f"\n{story.stalled}", style="yellow")


def _tell_header(out: Console, story: Story) -> None:
    run, now = story.run, story.now
    _field(out, "run", printable(run.id), "bold")
    _field(out, "workflow", printable(run.workflow) + ("" if run.queue == "default" else f" (queue {run.queue})"))
    took = "" if run.finished_at is None else f" in {duration(run.finished_at - run.created_at)}"
    _field(out, "state", f"{run.state}{took}", STATE_STYLES[run.state])
    _field(out, "started", f"{ago(now - run.created_at)} ({clock_time(run.created_at)}, Python {run.python})")
    if inputs := brief_inputs(run.inputs):
        _field(out, "inputs", one_line(inputs))
    if run.tags:
        _field(out, "tags", printable(", ".join(run.tags)))
    if run.deadline is not None and not run.state.is_terminal:
        _field(out, "deadline", f"{ago(now - run.deadline)} ({clock_time(run.deadline)})")
    _tell_whereabouts(out, story)
    if run.output is not None:
        _field(out, "result", _cut(pretty(run.output), _RESULT_LINES))
    if error := error_of(run.error):
        _field(out, "error", printable(error.in_short), "red")
        for line in _places(story, error)[-_TRACEBACK_LINES:]:
            out.print(Text(" " * _LABEL + printable(line), "dim"), soft_wrap=True)


def _places(story: Story, error: RecordedError) -> list[str]:
    """Where it was raised: in the workflow's code, and below that in the step whose failure ended the run."""
    last = story.history.records[-1] if story.history.records else None
    step = None if last is None or last.ok else error_of(last.payload)
    same = step is not None and (step.type, step.message) == (error.type, error.message)
    return [*own_frames(error.traceback), *(own_frames(step.traceback) if step is not None and same else [])]


def _tell_whereabouts(out: Console, story: Story) -> None:
    run, now = story.run, story.now
    if run.owner is not None and run.state is RunState.RUNNING:
        worker = story.workers.get(run.owner)
        who = f"worker {run.owner}" + ("" if worker is None else f" ({place_of(worker)})")
        if story.is_alive(run.owner):
            _field(out, "held by", f"{who}, alive")
        else:
            _field(out, "held by", f"{who}, which is dead: the next worker takes it over", "yellow")
    elif run.state is RunState.WAITING:
        due = "" if run.wake_at is None else f" (due {ago(now - run.wake_at)})"
        _field(out, "waits for", printable(run.waits_for) + due)
    elif run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        _field(out, "starts", f"{ago(now - run.wake_at)} ({clock_time(run.wake_at)})")
    if run.deliveries:
        _field(out, "deaths", f"{run.deliveries} of {run.max_deliveries} in a row without a new record")


def _field(out: Console, label: str, value: str, style: str = "") -> None:
    first, *rest = value.splitlines() or [""]
    out.print(Text.assemble((label.ljust(_LABEL), "dim"), (first, style)), soft_wrap=True)
    for line in rest:
        out.print(Text(" " * _LABEL + line, style), soft_wrap=True)


def _cut(text: str, most: int) -> str:
    lines = printable(text).splitlines()
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… {len(lines) - most + 1} more lines: see all with --json"]
    return "\n".join(lines)


def _tell_journal(out: Console, story: Story) -> None:
    records = story.history.records
    if not records:
        out.print("\nnothing is recorded yet", style="dim")
        return
    narrow = out.is_terminal
    limit = out.width - 6 if narrow else None
    names = [_what(record) for record in records]
    room = max(12, min(40, out.width - 52)) if narrow else 200
    width = min(room, max(len(name) for name in (*names, "step")))
    times = [_offset(record, story.run) for record in records]
    broad = max(len(time) for time in (*times, " " * 8))
    head = f"{'#':>4}  {'step'.ljust(width)}  {'at':>{broad}}  {'took':>8}  {'worker':>6}  outcome"
    out.print(f"\n{head}", style="bold", soft_wrap=True)
    for record, name, time in zip(records, names, times, strict=True):
        took = duration(record.at - record.started_at) if record.kind is Kind.STEP else ""
        line = Text.assemble(
            f"{_number(record):>4}  ",
            (one_line(name, width if narrow else None).ljust(width), "" if record.kind is Kind.STEP else "blue"),
            f"  {time:>{broad}}  {took:>8}  {record.worker:>6}  ",
            *_outcome(record, story.replays(record)),
        )
        out.print(line, soft_wrap=True)
        if record.preview:
            out.print(Text("      " + one_line(record.preview, limit), "dim"), soft_wrap=True)
        if not record.ok and (error := error_of(record.payload)):
            out.print(Text("      " + one_line(error.in_short, limit), "red"), soft_wrap=True)


def _number(record: Record) -> str:
    """Steps and signals are counted together, timers on their own."""
    if record.kind is Kind.DEADLINE:
        return "–"
    return f"t{record.position + 1}" if record.kind is Kind.TIMER else str(record.position + 1)


def _offset(record: Record, run: Run) -> str:
    """How long after the run's start it began; for what only happens, when it did."""
    at = record.started_at if record.kind is Kind.STEP else record.at
    return f"+{duration(at - run.created_at)}"


def _what(record: Record) -> str:
    if record.kind is Kind.DEADLINE:
        return "deadline"
    return one_line(record.name if record.kind is Kind.STEP else f"{record.kind.label} {record.name}")


def _outcome(record: Record, replays: int) -> list[tuple[str, str]]:
    parts = [("ok", "green") if record.ok else ("failed", "red")]
    if record.attempts > 1:
        parts.append((f" after {record.attempts} attempts", ""))
    if replays > 0:
        parts.append((f", replayed ×{replays}", "dim"))
    return parts


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
        if attempt.error:
            out.print(Text(f"      {one_line(attempt.error)}", "red"), soft_wrap=True)
        if attempt.progress is not None:
            out.print(Text(f"      progress {one_line(brief(attempt.progress))}", "dim"), soft_wrap=True)


def _tell_signals(out: Console, story: Story) -> None:
    if not story.history.signals:
        return
    out.print("\nsignals that nothing has taken yet", style="bold")
    for signal in story.history.signals:
        sent = ago(story.now - signal.sent_at)
        out.print(
            Text(f"      {one_line(signal.name)} = {one_line(brief(signal.payload))}, sent {sent}"), soft_wrap=True
        )


def _tell_workers(out: Console, story: Story) -> None:
    concerned = sorted({record.worker for record in story.history.records} | {story.run.owner or 0} - {0})
    if not concerned:
        return
    out.print("\nworkers", style="bold")
    for number in concerned:
        worker = story.workers.get(number)
        recorded = sum(record.worker == number for record in story.history.records)
        alive = ("alive", "green") if story.is_alive(number) else (_end_of(worker), "dim")
        place = "" if worker is None else f"{place_of(worker)}, "
        out.print(
            Text.assemble(f"{number:>4}  {place}", alive, f", {counted(recorded, 'record')}"), soft_wrap=True
        )  # fmt: skip


def _end_of(worker: Worker | None) -> str:
    if worker is None:
        return "not known any more"
    return "retired" if worker.state == "retired" else "dead"


# For programs


def _as_json(story: Story) -> dict[str, Any]:
    run = story.run
    error = error_of(run.error)
    return {
        "id": run.id,
        "workflow": run.workflow,
        "state": run.state.value,
        "queue": run.queue,
        "tags": list(run.tags),
        "python": run.python,
        "created_at": iso(run.created_at),
        "finished_at": iso(run.finished_at),
        "seconds": None if run.finished_at is None else round(run.finished_at - run.created_at, 6),
        "deadline": iso(run.deadline),
        "waits_for": run.waits_for if run.state is RunState.WAITING else None,
        "wake_at": iso(run.wake_at),
        "epoch": run.epoch,
        "deliveries": run.deliveries,
        "max_deliveries": run.max_deliveries,
        "held_by": run.owner,
        "stalled": story.stalled,
        "inputs": value_of(run.inputs),
        "output": value_of(run.output),
        "error": None if error is None else asdict(error),
        "journal": [_record_as_json(story, record) for record in story.history.records],
        "in_flight": [
            {
                "number": attempt.position + 1,
                "name": attempt.name,
                "attempt": attempt.attempt,
                "once": attempt.intent,
                "error": attempt.error or None,
                "progress": value_of(attempt.progress),
                "at": iso(attempt.at),
            }
            for attempt in story.in_flight
        ],
        "signals": [
            {"id": signal.id, "name": signal.name, "value": value_of(signal.payload), "sent_at": iso(signal.sent_at)}
            for signal in story.history.signals
        ],
        "workers": [
            {
                "id": worker.id,
                "name": worker.name,
                "host": worker.host,
                "pid": worker.pid,
                "alive": story.is_alive(worker.id),
            }
            for worker in story.workers.values()
        ],
    }


def _record_as_json(story: Story, record: Record) -> dict[str, Any]:
    error = None if record.ok else error_of(record.payload)
    return {
        "seq": record.seq,
        "number": record.position + 1,
        "kind": record.kind.label,
        "name": record.name,
        "ok": record.ok,
        "attempts": record.attempts,
        "worker": record.worker,
        "epoch": record.epoch,
        "replays": story.replays(record),
        "started_at": iso(record.started_at),
        "at": iso(record.at),
        "seconds": round(record.at - record.started_at, 6) if record.kind is Kind.STEP else None,
        "arguments": record.preview,
        "output": value_of(record.payload) if record.ok else None,
        "error": None if error is None else asdict(error),
    }
