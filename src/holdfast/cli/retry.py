"""``holdfast retry``: single runs, or all that failed in an incident."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import format_count, format_list, make_printable, to_one_line
from holdfast.cli.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.store_access import get_run, open_client
from holdfast.client.client import Client
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, RunNotFound, UsageError
from holdfast.reports.retry_preview import (
    describe_record,
    describe_retried_children,
    find_reopened_children,
    find_rewound_records,
)
from holdfast.reports.run_info import RunInfo

_PAGE_SIZE = 500
"""Runs that are asked for in one request, to find all that match."""

_MAX_NAMED_WORKFLOWS = 5
"""How many workflows a question names."""


@dataclass(frozen=True)
class RunSelection:
    """Which runs to retry."""

    states: tuple[RunState, ...]
    workflow: str | None = None
    since: datetime | None = None
    """Only those that ended then or later."""
    error: str | None = None
    """Only those with this in their error, in upper or lower case."""

    def matches(self, run: RunInfo) -> bool:
        """Whether a run with the right state and workflow is meant."""
        if self.since is not None and (run.finished_at is None or run.finished_at < self.since):
            return False
        return self.error is None or self.error.casefold() in str(run.error or "").casefold()

    @property
    def empty_message(self) -> str:
        """That there are no such runs, in words."""
        whose = "" if self.workflow is None else f" of workflow {self.workflow!r}"
        more = "" if self.since is None and self.error is None else " and matches"
        return f"no run{whose} is {' or '.join(state.value for state in self.states)}{more}"


def retry_runs(
    url: str | None, run_ids: Sequence[str], *, run_again: bool, version: str | None = None, as_json: bool
) -> int:
    """Reopen failed, cancelled or dead runs, and tell of each how it goes on."""
    return run_in_loop(_retry_each(url, run_ids, run_again, version, as_json))


def retry_selected(
    url: str | None,
    selection: RunSelection,
    *,
    run_again: bool,
    version: str | None = None,
    yes: bool,
    as_json: bool,
) -> int:
    """Reopen all runs that match, unless somebody says no."""
    runs: list[RunInfo] = []
    run_in_loop(
        _find_runs(url, selection, runs), format_progress=lambda: f"found {format_count(len(runs), 'run')} so far …"
    )
    if not runs:
        if not as_json:
            print(make_printable(selection.empty_message))
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"nobody can be asked whether {format_count(len(runs), 'run')} may go on: pass --yes.")
        if not click.confirm(_format_confirmation(runs), err=True):
            click.echo("nothing changed", err=True)
            return 1
    return retry_runs(url, [run.id for run in runs], run_again=run_again, version=version, as_json=as_json)


def _format_confirmation(runs: Sequence[RunInfo]) -> str:
    states = Counter(run.state.value for run in runs)
    many = format_list([format_count(number, f"{state} run") for state, number in states.most_common()])
    workflows = Counter(to_one_line(run.workflow) for run in runs).most_common()
    whose = format_list([f"{name} ({number})" for name, number in workflows], _MAX_NAMED_WORKFLOWS)
    return f"let {many} go on, of {whose}?"


async def _find_runs(url: str | None, selection: RunSelection, found: list[RunInfo]) -> None:
    async with open_client(url) as client:
        last = None
        while page := await client.list(
            state=selection.states, workflow=selection.workflow, limit=_PAGE_SIZE, before=last
        ):
            last = page[-1].id
            found += [run for run in page if selection.matches(run)]
    # A run that failed because another one did takes that along.
    ids = {run.id for run in found}
    found[:] = [run for run in found if run.parent not in ids]


async def _retry_each(
    url: str | None, run_ids: Sequence[str], run_again: bool, version: str | None, as_json: bool
) -> int:
    """Tell of each at once: a thousand of them take a while."""
    code = 0
    async with open_client(url) as client:
        for run_id in run_ids:
            code |= print_outcomes(url, [await _retry(client, run_id, run_again, version)], as_json=as_json)
    return code


async def _retry(client: Client, run_id: str, run_again: bool, version: str | None) -> Outcome:
    try:
        await get_run(client, run_id)
        before = await client.export(run_id)
        taken = find_rewound_records(before.run, before.records)
        children = find_reopened_children(before.run, taken, await _fetch_child_runs(client, taken))
        await client.retry(run_id, run_again=run_again, version=version)
        run = await client.get(run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    kept = len(before.records) - len(taken)
    message = f"run {run_id!r} goes on (it was {before.run.state}): its journal keeps {format_count(kept, 'record')}"
    return Outcome.from_run(
        run,
        changed=True,
        message=message + _describe_rewound(taken) + (f"; {describe_retried_children(children)}" if children else ""),
        kept_count=kept,
        rewound_seqs=[record.seq for record in taken],
        retried_children=[child.id for child in children],
    )


async def _fetch_child_runs(client: Client, records: Sequence[Record]) -> dict[str, RunInfo]:
    """The runs whose ends these records are, by id."""
    found: dict[str, RunInfo] = {}
    for record in records:
        if record.kind is RecordKind.CHILD and record.preview and record.preview not in found:
            try:
                found[record.preview] = await client.get(record.preview)
            except RunNotFound:
                pass  # it was deleted since
    return found


def _describe_rewound(rewound: Sequence[Record]) -> str:
    """What becomes of what is taken back: failed steps are tried again, the rest is gone."""
    anew = [record for record in rewound if record.kind in (RecordKind.STEP, RecordKind.COMPENSATION) and not record.ok]
    rest = [record for record in rewound if record not in anew and record.kind is not RecordKind.CHILD]
    words = ""
    if anew:
        words += (
            f", and {format_list([describe_record(record) for record in anew])} "
            f"{'is' if len(anew) == 1 else 'are'} tried anew"
        )
    if rest:
        words += f"; taken back: {format_list([describe_record(record) for record in rest])}"
    return words
