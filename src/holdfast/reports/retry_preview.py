"""What a retry of a run would do, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.reports.formatting import command, counted, listed, one_line
from holdfast.reports.run_info import RunInfo
from holdfast.services.settlement import to_be_settled
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import REOPENABLE

R = TypeVar("R", Run, RunInfo)

_IN_WORDS = {
    Kind.STEP: "step {number} ({name})",
    Kind.TIMER: "timer t{number}",
    Kind.SIGNAL: "signal {number} ({name})",
    Kind.DEADLINE: "the deadline",
    Kind.CHILD: "the end of child {number} ({name})",
    Kind.START: "the start {number} ({name})",
    Kind.COMPENSATION: "undoing {number} ({name})",
    Kind.CANCEL: "the cancel",
    Kind.APPROVAL: "the answer to question {number}",
    Kind.PATCH: "patch {name}",
}


def in_words(record: Record) -> str:
    """A record, as ``show`` numbers it."""
    return _IN_WORDS[record.kind].format(number=record.position + 1, name=one_line(record.name))


def taken_back(run: Run, records: Sequence[Record]) -> list[Record]:
    """The records that a retry of the run takes back, in order."""
    return [] if run.rewind is None else [record for record in records if run.rewind.takes(record)]


class Prospect(NamedTuple):
    """What a retry would do."""

    is_possible: bool
    needs_run_again: bool
    """A ``once`` step would run a second time: somebody has to say that it may."""
    in_words: str


def prospect(run: Run, taken: Sequence[Record], recorded: int, others: Mapping[str, Run]) -> Prospect | None:
    """What a retry would do, or why it is refused; ``None`` for a run that needs none.

    ``taken`` are the records that it takes back, of so many that are ``recorded``; ``others`` are known by id.
    """
    if run.state not in REOPENABLE:
        return None
    if run.rewind is not None and run.rewind.undone:
        return Prospect(False, False, "not possible: its compensations have undone what it had done")
    children = reopened(run, taken, others)
    for child in children:
        if child.rewind is not None and child.rewind.undone:
            return Prospect(
                False, False, f"not possible: what run {child.id!r} had done was undone by its compensations"
            )
    retry = f"`{command('retry', run.id)}`"
    if not taken:
        keeps = f"{retry} goes on from its {counted(recorded, 'record')}" if recorded else f"{retry} begins anew"
        return Prospect(True, False, keeps if run.state is RunState.CANCELLED else f"{keeps}: see to the cause first")
    what = listed([in_words(record) for record in taken])
    also = f"; {retried_as_well(children)}" if children else ""
    if any(one.rewind is not None and one.rewind.once for one in (run, *children)):
        again = (
            f"takes back {what}{also}. A `once` step would run a second time: check whether it happened. "
            f"{_if_it_happened(run, taken)}If it may run again: `{command('retry', run.id, '--run-again')}`"
        )
        return Prospect(True, True, again)
    return Prospect(True, False, f"{retry} takes back {what}{also}")


def _if_it_happened(run: Run, taken: Sequence[Record]) -> str:
    unknown = to_be_settled(run, taken)
    if not unknown:
        return ""
    return f"If it did: `{command('settle', run.id, str(unknown[0].position + 1), '--output', 'JSON')}`. "


def reopened(run: Run, taken: Sequence[Record], others: Mapping[str, R]) -> list[R]:
    """The runs that a retry of this one retries as well: it has started them, and their ends are taken back."""
    ids = dict.fromkeys(record.preview for record in taken if record.kind is Kind.CHILD)
    found = [others[run_id] for run_id in ids if run_id in others]
    return [other for other in found if other.parent == run.id and other.state in REOPENABLE]


def retried_as_well(runs: Sequence[Run | RunInfo]) -> str:
    """Which runs go on with the one that is retried."""
    return f"{listed([f'run {run.id!r}' for run in runs])} {'is' if len(runs) == 1 else 'are'} retried as well"


async def known_runs(store: Store, records: Sequence[Record]) -> dict[str, Run]:
    """The runs that these records name, by id."""
    ids = list(dict.fromkeys(one.preview for one in records if one.kind in (Kind.CHILD, Kind.START) and one.preview))
    found: dict[str, Run] = {}
    for at in range(0, len(ids), 500):
        found.update({run.id: run for run in await store.get_many(ids[at : at + 500])})
    return found
