"""What a retry of a run would do, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.reports.formatting import format_command, format_count, format_list, to_one_line
from holdfast.reports.run_info import RunInfo
from holdfast.reports.types import RetryReport
from holdfast.services.settlement import find_unsettled_steps
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import REOPENABLE

R = TypeVar("R", Run, RunInfo)

_RECORD_FORMATS = {
    RecordKind.STEP: "step {number} ({name})",
    RecordKind.TIMER: "timer t{number}",
    RecordKind.SIGNAL: "signal {number} ({name})",
    RecordKind.DEADLINE: "the deadline",
    RecordKind.CHILD: "the end of child {number} ({name})",
    RecordKind.START: "the start {number} ({name})",
    RecordKind.COMPENSATION: "undoing {number} ({name})",
    RecordKind.CANCEL: "the cancel",
    RecordKind.APPROVAL: "the answer to question {number}",
    RecordKind.PATCH: "patch {name}",
}


def describe_record(record: Record) -> str:
    """A record, with its number in ``holdfast show``."""
    return _RECORD_FORMATS[record.kind].format(number=record.position + 1, name=to_one_line(record.name))


def find_rewound_records(run: Run, records: Sequence[Record]) -> list[Record]:
    """The records that a retry of the run removes, in order."""
    return [] if run.rewind is None else [record for record in records if run.rewind.should_remove(record)]


def preview_retry(
    run: Run, rewound: Sequence[Record], record_count: int, runs_by_id: Mapping[str, Run]
) -> RetryReport | None:
    """What a retry would do, or why it is refused; ``None`` for a run that needs none.

    ``rewound`` are the records that it removes, of ``record_count`` in all; ``runs_by_id`` has other runs.
    """
    if run.state not in REOPENABLE:
        return None
    rewound_seqs = tuple(record.seq for record in rewound)
    if run.rewind is not None and run.rewind.is_compensated:
        return RetryReport(False, False, rewound_seqs, "not possible: its compensations have undone what it had done")
    children = find_reopened_children(run, rewound, runs_by_id)
    for child in children:
        if child.rewind is not None and child.rewind.is_compensated:
            message = f"not possible: what run {child.id!r} had done was undone by its compensations"
            return RetryReport(False, False, rewound_seqs, message)
    retry = f"`{format_command('retry', run.id)}`"
    if not rewound:
        start = f"continues from its {format_count(record_count, 'record')}" if record_count else "starts it again"
        hint = "" if run.state is RunState.CANCELLED else ". Fix the cause first."
        return RetryReport(True, False, rewound_seqs, f"{retry} {start}{hint}")
    records = format_list([describe_record(record) for record in rewound])
    also = f"; {describe_retried_children(children)}" if children else ""
    if any(one.rewind is not None and one.rewind.once_seqs for one in (run, *children)):
        message = (
            f"takes back {records}{also}. A `once` step would run a second time: check whether it happened. "
            f"{_format_settle_hint(run, rewound)}If it may run again: "
            f"`{format_command('retry', run.id, '--run-again')}`"
        )
        return RetryReport(True, True, rewound_seqs, message)
    return RetryReport(True, False, rewound_seqs, f"{retry} takes back {records}{also}")


def _format_settle_hint(run: Run, rewound: Sequence[Record]) -> str:
    unknown = find_unsettled_steps(run, rewound)
    if not unknown:
        return ""
    return f"If it did: `{format_command('settle', run.id, str(unknown[0].position + 1), '--output', 'JSON')}`. "


def find_reopened_children(run: Run, rewound: Sequence[Record], runs_by_id: Mapping[str, R]) -> list[R]:
    """The runs that a retry of this one also retries: it started them, and their ends are removed."""
    ids = dict.fromkeys(record.preview for record in rewound if record.kind is RecordKind.CHILD)
    found = [runs_by_id[run_id] for run_id in ids if run_id in runs_by_id]
    return [other for other in found if other.parent == run.id and other.state in REOPENABLE]


def describe_retried_children(runs: Sequence[Run | RunInfo]) -> str:
    """The runs that are retried together with another one."""
    return f"{format_list([f'run {run.id!r}' for run in runs])} {'is' if len(runs) == 1 else 'are'} retried as well"


async def load_related_runs(store: Store, records: Sequence[Record]) -> dict[str, Run]:
    """The runs that these records name, by id."""
    kinds = (RecordKind.CHILD, RecordKind.START)
    ids = list(dict.fromkeys(record.preview for record in records if record.kind in kinds and record.preview))
    found: dict[str, Run] = {}
    for start in range(0, len(ids), 500):
        found.update({run.id: run for run in await store.get_runs(ids[start : start + 500])})
    return found
