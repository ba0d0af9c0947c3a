"""``holdfast retry``, and what a retry would do, for ``holdfast show``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.cli.liveness import look_around
from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.wording import command, counted, listed, one_line
from holdfast.client.client import Client
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run
from holdfast.stores.rules import REOPENABLE

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


def prospect(run: Run, records: Sequence[Record], others: Mapping[str, Run]) -> Prospect | None:
    """What a retry would do, or why it is refused; ``None`` for a run that needs none. ``others`` are known by id."""
    if run.state not in REOPENABLE:
        return None
    if run.rewind is not None and run.rewind.undone:
        return Prospect(False, False, "not possible: its compensations have undone what it had done")
    taken = taken_back(run, records)
    children = reopened(run, taken, others)
    for child in children:
        if child.rewind is not None and child.rewind.undone:
            return Prospect(
                False, False, f"not possible: what run {child.id!r} had done was undone by its compensations"
            )
    retry = f"`{command('retry', run.id)}`"
    if not taken:
        keeps = f"{retry} goes on from its {counted(len(records), 'record')}" if records else f"{retry} begins anew"
        return Prospect(True, False, keeps if run.state is RunState.CANCELLED else f"{keeps}: see to the cause first")
    what = listed([in_words(record) for record in taken])
    also = f"; {_retried_as_well(children)}" if children else ""
    if any(one.rewind is not None and one.rewind.once for one in (run, *children)):
        again = (
            f"takes back {what}{also}. A `once` step would run a second time: check whether it happened. "
            f"If it may run again: `{command('retry', run.id, '--run-again')}`"
        )
        return Prospect(True, True, again)
    return Prospect(True, False, f"{retry} takes back {what}{also}")


def reopened(run: Run, taken: Sequence[Record], others: Mapping[str, Run]) -> list[Run]:
    """The runs that a retry of this one retries as well: it has started them, and their ends are taken back."""
    ids = dict.fromkeys(record.preview for record in taken if record.kind is Kind.CHILD)
    found = [others[run_id] for run_id in ids if run_id in others]
    return [other for other in found if other.parent == run.id and other.state in REOPENABLE]


def _retried_as_well(runs: Sequence[Run]) -> str:
    return f"{listed([f'run {run.id!r}' for run in runs])} {'is' if len(runs) == 1 else 'are'} retried as well"


# The command


def retry_run(url: str | None, run_id: str, *, run_again: bool, version: str | None, as_json: bool) -> int:
    """Reopen a failed, cancelled or dead run, and say how it goes on."""
    return report(asyncio.run(retry_each(url, [run_id], run_again, version)), as_json=as_json)


async def retry_each(
    url: str | None, run_ids: Sequence[str], run_again: bool, version: str | None = None
) -> list[Outcome]:
    """Reopen runs."""
    async with existing_store(url) as store, Client(url) as client:
        return [await _retry(store, client, run_id, run_again, version) for run_id in run_ids]


async def _retry(store: Store, client: Client, run_id: str, run_again: bool, version: str | None) -> Outcome:
    try:
        before = await find_run(store, run_id)
        [history] = await store.histories([before.key])
        taken = taken_back(before, history.records)
        children = reopened(before, taken, await known_runs(store, taken))
        await client.retry(run_id, run_again=run_again, version=version)
        run = await find_run(store, run_id)
        around = await look_around(store, [run])
    except HoldfastError as error:
        return await failure(store, run_id, error)
    kept = len(history.records) - len(taken)
    message = f"run {run_id!r} goes on (it was {before.state}): its journal keeps {counted(kept, 'record')}"
    return Outcome.of(
        run,
        around,
        changed=True,
        message=message + _anew(taken) + (f"; {_retried_as_well(children)}" if children else ""),
        kept=kept,
        taken_back=[record.seq for record in taken],
        retried_as_well=[child.id for child in children],
    )


def _anew(taken: Sequence[Record]) -> str:
    """What becomes of what is taken back: failed steps are tried again, the rest is gone."""
    anew = [record for record in taken if record.kind in (Kind.STEP, Kind.COMPENSATION) and not record.ok]
    rest = [record for record in taken if record not in anew and record.kind is not Kind.CHILD]
    words = ""
    if anew:
        words += f", and {listed([in_words(record) for record in anew])} {'is' if len(anew) == 1 else 'are'} tried anew"
    if rest:
        words += f"; taken back: {listed([in_words(record) for record in rest])}"
    return words


async def known_runs(store: Store, records: Sequence[Record]) -> dict[str, Run]:
    """The runs that these records name, by id."""
    ids = list(dict.fromkeys(one.preview for one in records if one.kind in (Kind.CHILD, Kind.START) and one.preview))
    found: dict[str, Run] = {}
    for at in range(0, len(ids), 500):
        found.update({run.id: run for run in await store.get_many(ids[at : at + 500])})
    return found
