"""What a retry of a run would do, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.reports.formatting import format_command, format_count, format_list, to_one_line
from holdfast.reports.run_info import RunInfo
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
    """A record, as ``show`` numbers it."""
    return _RECORD_FORMATS[record.kind].format(number=record.position + 1, name=to_one_line(record.name))


def find_rewound_records(run: Run, records: Sequence[Record]) -> list[Record]:
    """The records that a retry of the run takes back, in order."""
    return [] if run.rewind is None else [record for record in records if run.rewind.should_remove(record)]


class RetryPreview(NamedTuple):
    """What a retry would do."""

    is_possible: bool
    needs_run_again: bool
    """A ``once`` step would run a second time: somebody has to say that it may."""
    message: str


def preview_retry(
    run: Run, rewound: Sequence[Record], record_count: int, runs_by_id: Mapping[str, Run]
) -> RetryPreview | None:
    """What a retry would do, or why it is refused; ``None`` for a run that needs none.

    ``rewound`` are the records that it takes back, of ``record_count`` in all; ``runs_by_id`` has other runs.
    """
    if run.state not in REOPENABLE:
        return None
    if run.rewind is not None and run.rewind.is_compensated:
        return RetryPreview(False, False, "not possible: its compensations have undone what it had done")
    children = find_reopened_children(run, rewound, runs_by_id)
    for child in children:
        if child.rewind is not None and child.rewind.is_compensated:
            return RetryPreview(
                False, False, f"not possible: what run {child.id!r} had done was undone by its compensations"
            )
    retry = f"`{format_command('retry', run.id)}`"
    if not rewound:
        keeps = (
            f"{retry} goes on from its {format_count(record_count, 'record')}"
            if record_count
            else f"{retry} begins anew"
        )
        return RetryPreview(
            True, False, keeps if run.state is RunState.CANCELLED else f"{keeps}: see to the cause first"
        )
    what = format_list([describe_record(record) for record in rewound])
    also = f"; {describe_retried_children(children)}" if children else ""
    if any(one.rewind is not None and one.rewind.once_seqs for one in (run, *children)):
        again = (
            f"takes back {what}{also}. A `once` step would run a second time: check whether it happened. "
            f"{_format_settle_hint(run, rewound)}If it may run again: "
            f"`{format_command('retry', run.id, '--run-again')}`"
        )
        return RetryPreview(True, True, again)
    return RetryPreview(True, False, f"{retry} takes back {what}{also}")


def _format_settle_hint(run: Run, rewound: Sequence[Record]) -> str:
    unknown = find_unsettled_steps(run, rewound)
    if not unknown:
        return ""
    return f"If it did: `{format_command('settle', run.id, str(unknown[0].position + 1), '--output', 'JSON')}`. "


def find_reopened_children(run: Run, rewound: Sequence[Record], runs_by_id: Mapping[str, R]) -> list[R]:
    """The runs that a retry of this one retries as well: it has started them, and their ends are taken back."""
    ids = dict.fromkeys(record.preview for record in rewound if record.kind is RecordKind.CHILD)
    found = [runs_by_id[run_id] for run_id in ids if run_id in runs_by_id]
    return [other for other in found if other.parent == run.id and other.state in REOPENABLE]


def describe_retried_children(runs: Sequence[Run | RunInfo]) -> str:
    """Which runs go on with the one that is retried."""
    return f"{format_list([f'run {run.id!r}' for run in runs])} {'is' if len(runs) == 1 else 'are'} retried as well"


async def load_related_runs(store: Store, records: Sequence[Record]) -> dict[str, Run]:
    """The runs that these records name, by id."""
    ids = list(
        dict.fromkeys(
            one.preview for one in records if one.kind in (RecordKind.CHILD, RecordKind.START) and one.preview
        )
    )
    found: dict[str, Run] = {}
    for at in range(0, len(ids), 500):
        found.update({run.id: run for run in await store.get_runs(ids[at : at + 500])})
    return found
