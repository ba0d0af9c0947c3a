"""What a run did, how long that took and what it cost, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.codec.formatting import capitalize_first
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.formatting import format_count, format_duration, format_list, to_one_line
from holdfast.reports.run_usage import format_cost
from holdfast.reports.types import RunReport, RunWorker
from holdfast.reports.worker_deaths import WorkerDeath

_MAX_ERROR_CHARS = 200
_KIND_NOUNS = {RecordKind.CHILD: "child run", RecordKind.START: "started run", RecordKind.PATCH: "patch marker"}
"""What a record is called, if not by its kind."""
_UNCOUNTED_KINDS = (RecordKind.DEADLINE, RecordKind.CANCEL)
"""What happens to a run, and is not work of its own."""


@dataclass(frozen=True, slots=True)
class JournalStats:
    """What the whole journal says of how the run went."""

    record_counts: Mapping[RecordKind, int] = field(default_factory=dict[RecordKind, int])
    """How many records of each kind it has, without internal ones."""
    is_forkable: bool = False
    """It has a record that a fork can begin at."""
    worker_deaths: Sequence[WorkerDeath] = ()
    reopen_count: int = 0
    """How often somebody let it go on after it had ended."""
    unknown_steps: Sequence[tuple[int, str]] = ()
    """The ``once`` steps of unknown outcome that ended the run: number and name."""


def summarize(report: RunReport, stats: JournalStats) -> str:
    """What the run did."""
    told = [
        _summarize_work(report, stats),
        _describe_worker_deaths(stats.worker_deaths),
        _describe_reopenings(stats.reopen_count),
    ]
    holder = report.find_worker(report.claimed_by)
    if report.state is RunState.RUNNING and holder is not None and not holder.is_alive:
        told.append(f"{_format_worker_name(holder, capitalize=True)}, which holds it, is dead.")
    return " ".join(sentence for sentence in told if sentence)


def _summarize_work(report: RunReport, stats: JournalStats) -> str:
    steps = [
        format_count(many, _KIND_NOUNS.get(kind, kind.label))
        for kind, many in sorted(stats.record_counts.items())
        if many > 0 and kind not in _UNCOUNTED_KINDS
    ]
    if report.skipped_steps:
        steps.append(f"{len(report.skipped_steps)} skipped")
    used = Usage() if report.usage is None else report.usage
    spent = (
        [format_count(used.calls, "model call"), format_count(used.tokens, "token"), format_cost(used)]
        if used.calls
        else []
    )
    did = ", ".join([*steps, *spent])
    if not report.state.is_terminal:
        return f"{_describe_unfinished(report)}, {did} so far." if did else f"{_describe_unfinished(report)}."
    took = format_duration(report.duration_s or 0.0)
    how = f"{report.state.value.capitalize()} {'in' if report.state is RunState.COMPLETED else 'after'} {took}"
    how += f" with {did}" if did else ""
    how += "" if report.error is None else f": {to_one_line(report.error.summary, _MAX_ERROR_CHARS)}"
    return how if how.endswith((".", "…")) else f"{how}."


def _describe_unfinished(report: RunReport) -> str:
    """How a run is that has not ended, and how long ago it was started."""
    since = f"started {format_duration((report.reported_at - report.created_at).total_seconds())} ago"
    if report.is_paused:
        return f"Paused, {since}"
    if report.state is RunState.PENDING:
        return f"To be taken up again, {since}" if report.epoch else f"Not begun yet, {since}"
    return f"{report.state.value.capitalize()}, {since}"


def _describe_worker_deaths(worker_deaths: Sequence[WorkerDeath]) -> str:
    if not worker_deaths:
        return ""
    last = worker_deaths[-1]
    died = format_list(
        [
            f"{_format_worker_name(one.worker, capitalize=one is worker_deaths[0])} died in step {one.step_number}"
            for one in worker_deaths
        ]
    )
    heir = "another worker" if last.successor is None else _format_worker_name(last.successor)
    repeated = sum(one.repeated_count for one in worker_deaths)
    replayed = format_count(last.replayed_count, "step")
    again = f"{format_count(repeated, 'step')} repeated in all" if repeated else "none was repeated"
    if len(worker_deaths) == 1:
        return f"{died}; {heir} took over, replayed {replayed} and repeated {repeated or 'none'}."
    return f"{died}; {heir} took over last and replayed {replayed}; {again}."


def _describe_reopenings(count: int) -> str:
    """That it had ended before."""
    if not count:
        return ""
    return f"It had ended, and {'somebody let it go on' if count == 1 else f'was let go on {count} times'}."


def _format_worker_name(worker: RunWorker, *, capitalize: bool = False) -> str:
    """Its name, which is told as it is; if it has none of its own, where it is."""
    if worker.name and worker.name != worker.location:
        return to_one_line(worker.name)
    return (
        f"{capitalize_first(worker.kind) if capitalize else worker.kind} "
        f"{to_one_line(worker.location) if worker.name else worker.id}"
    )
