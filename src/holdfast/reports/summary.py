"""What a run did, how long that took, and what it cost, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.codec.formatting import capitalize_first
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.formatting import format_count, format_duration, format_list, to_one_line
from holdfast.reports.run_usage import format_cost
from holdfast.reports.types import RunReport, RunWorker
from holdfast.reports.worker_deaths import WorkerDeath

_MAX_ERROR_CHARS = 200
_MAX_QUESTION_CHARS = 100
_KIND_NOUNS = {RecordKind.CHILD: "child run", RecordKind.START: "started run", RecordKind.PATCH: "patch marker"}
"""Nouns for records that differ from the label of their kind."""
_UNCOUNTED_KINDS = (RecordKind.DEADLINE, RecordKind.CANCEL)
"""Events that happen to a run, and are not its own work."""


@dataclass(frozen=True, slots=True)
class JournalStats:
    """Facts about the whole journal of a run."""

    record_counts: Mapping[RecordKind, int] = field(default_factory=dict[RecordKind, int])
    """Number of records of each kind, without internal ones."""
    is_forkable: bool = False
    """It has a record that a fork can start at."""
    worker_deaths: Sequence[WorkerDeath] = ()
    reopen_count: int = 0
    """How often a person reopened the run after it had ended."""
    unknown_steps: Sequence[tuple[int, str]] = ()
    """The ``once`` steps of unknown outcome that ended the run: number and name."""


def summarize(report: RunReport, stats: JournalStats) -> str:
    """What the run did."""
    sentences = [
        _summarize_work(report, stats),
        _describe_open_approvals(report),
        _describe_worker_deaths(stats.worker_deaths),
        _describe_reopenings(stats.reopen_count),
    ]
    holder = report.find_worker(report.claimed_by)
    if report.state is RunState.RUNNING and holder is not None and not holder.is_alive:
        sentences.append(f"{_format_worker_name(holder, capitalize=True)}, which holds it, is dead.")
    return " ".join(sentence for sentence in sentences if sentence)


def _summarize_work(report: RunReport, stats: JournalStats) -> str:
    parts = [
        format_count(count, _KIND_NOUNS.get(kind, kind.label))
        for kind, count in sorted(stats.record_counts.items())
        if count > 0 and kind not in _UNCOUNTED_KINDS
    ]
    if report.skipped_steps:
        parts.append(f"{len(report.skipped_steps)} skipped")
    if (usage := report.usage) is not None and usage.calls:
        parts += [format_count(usage.calls, "model call"), format_count(usage.tokens, "token"), format_cost(usage)]
    work = ", ".join(parts)
    if not report.state.is_terminal:
        return f"{_describe_unfinished(report)}, {work} so far." if work else f"{_describe_unfinished(report)}."
    duration = format_duration(report.duration_s or 0.0)
    sentence = f"{report.state.value.capitalize()} {'in' if report.state is RunState.COMPLETED else 'after'} {duration}"
    sentence += f" with {work}" if work else ""
    sentence += "" if report.error is None else f": {to_one_line(report.error.summary, _MAX_ERROR_CHARS)}"
    return sentence if sentence.endswith((".", "…")) else f"{sentence}."


def _describe_unfinished(report: RunReport) -> str:
    """The state of an unfinished run, and how long ago it was started."""
    since = f"started {format_duration((report.reported_at - report.created_at).total_seconds())} ago"
    if report.is_paused:
        return f"Paused, {since}"
    if report.state is RunState.PENDING:
        return f"To be taken up again, {since}" if report.epoch else f"Not begun yet, {since}"
    return f"{report.state.value.capitalize()}, {since}"


def _describe_open_approvals(report: RunReport) -> str:
    """What a running run waits for: a program stays in memory, so its state does not say that it waits."""
    open_approvals = report.open_approvals
    if report.state is not RunState.RUNNING or not open_approvals:
        return ""
    if len(open_approvals) > 1:
        return f"It waits for {len(open_approvals)} answers."
    return f"It waits for an answer to “{to_one_line(open_approvals[0].question, _MAX_QUESTION_CHARS)}”."


def _describe_worker_deaths(worker_deaths: Sequence[WorkerDeath]) -> str:
    if not worker_deaths:
        return ""
    last = worker_deaths[-1]
    deaths = format_list(
        [
            f"{_format_worker_name(death.worker, capitalize=death is worker_deaths[0])} died in step "
            f"{death.step_number}"
            for death in worker_deaths
        ]
    )
    successor = "another worker" if last.successor is None else _format_worker_name(last.successor)
    repeated_count = sum(death.repeated_count for death in worker_deaths)
    replayed = format_count(last.replayed_count, "step")
    if len(worker_deaths) == 1:
        return f"{deaths}; {successor} took over, replayed {replayed} and repeated {repeated_count or 'none'}."
    repeated = f"{format_count(repeated_count, 'step')} repeated in all" if repeated_count else "none was repeated"
    return f"{deaths}; {successor} took over last and replayed {replayed}; {repeated}."


def _describe_reopenings(count: int) -> str:
    """How often the run was reopened after it had ended."""
    if not count:
        return ""
    return f"It had ended, and {'somebody let it go on' if count == 1 else f'was let go on {count} times'}."


def _format_worker_name(worker: RunWorker, *, capitalize: bool = False) -> str:
    """The worker's own name; if it has none, its kind and location."""
    if worker.name and worker.name != worker.location:
        return to_one_line(worker.name)
    return (
        f"{capitalize_first(worker.kind) if capitalize else worker.kind} "
        f"{to_one_line(worker.location) if worker.name else worker.id}"
    )
