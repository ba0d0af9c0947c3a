"""``holdfast retry``: single runs, or all that failed in an incident."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from holdfast.cli.shared.formatting import format_count, format_list, make_printable, to_one_line
from holdfast.cli.shared.options import RETRYABLE_STATES, command, json_changes_option, url_option, yes_option
from holdfast.cli.shared.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import run_client
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
"""Runs per request when searching for all that match."""

_MAX_NAMED_WORKFLOWS = 5
"""How many workflows the confirmation names."""

run_again_option = click.option(
    "--run-again", is_flag=True, help="A `once` step of unknown outcome did not happen: run it again."
)


@dataclass(frozen=True)
class RunSelection:
    """Which runs to retry."""

    states: tuple[RunState, ...]
    workflow: str | None = None
    since: datetime | None = None
    """Only runs that ended at or after this time."""
    error: str | None = None
    """Only runs with this text in their error, ignoring case."""

    def matches(self, run: RunInfo) -> bool:
        """Whether a run with the right state and workflow is selected."""
        if self.since is not None and (run.finished_at is None or run.finished_at < self.since):
            return False
        return self.error is None or self.error.casefold() in str(run.error or "").casefold()

    @property
    def empty_message(self) -> str:
        """The message if there are no such runs."""
        whose = "" if self.workflow is None else f" of workflow {self.workflow!r}"
        more = "" if self.since is None and self.error is None else " and matches"
        return f"no run{whose} is {' or '.join(state.value for state in self.states)}{more}"


@command(
    "holdfast retry etl-acme",
    "holdfast retry --workflow research --since 2h",
    "holdfast retry --state failed --state dead --error 'status 503' --yes",
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--workflow", metavar="W", help="All failed runs of this workflow.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(RETRYABLE_STATES),
    help="All runs in this state; may be repeated. Default, with other filters: failed.",
)
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Only runs that ended at or after this time: 2026-11-15, 2026-11-15T08:30, or 90m, 2h, 3d ago.",
)
@click.option("--error", metavar="TEXT", help="Only runs with this text in the type or message of their error.")
@run_again_option
@click.option("--version", metavar="VERSION", help="Continue with the code of another version of the workflow.")
@yes_option
@json_changes_option
@url_option
def retry(
    run_ids: tuple[str, ...],
    workflow: str | None,
    states: tuple[str, ...],
    since: datetime | None,
    error: str | None,
    run_again: bool,
    version: str | None,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Retry failed, cancelled, or dead runs: some by their ids, or all that match.

    A retry takes back the records that ended a run, with what followed from them. Everything else is kept, and does not
    run again. `holdfast show ID` shows what a retry would do. A `once` step runs a second time only with --run-again. A
    child run that made its parent fail is retried with its parent.
    """
    filtered = bool(workflow or states or since or error)
    if bool(run_ids) == filtered:
        raise click.UsageError("say which: some ids, or --workflow, --state, --since or --error.")
    if run_ids:
        sys.exit(retry_runs(url, run_ids, run_again=run_again, version=version, as_json=as_json))
    selection = RunSelection(tuple(map(RunState, states)) or (RunState.FAILED,), workflow, since, error)
    sys.exit(retry_selected(url, selection, run_again=run_again, version=version, yes=yes, as_json=as_json))


def retry_runs(
    url: str | None, run_ids: Sequence[str], *, run_again: bool, version: str | None = None, as_json: bool
) -> int:
    """Retry runs, print each outcome as soon as it is known, and return the exit code."""

    async def retry_each(client: Client) -> int:
        code = 0
        for run_id in run_ids:
            code |= print_outcomes(url, [await _retry(client, run_id, run_again, version)], as_json=as_json)
        return code

    return run_client(url, retry_each)


def retry_selected(
    url: str | None,
    selection: RunSelection,
    *,
    run_again: bool,
    version: str | None = None,
    yes: bool,
    as_json: bool,
) -> int:
    """Retry all runs that match, after a confirmation, and return the exit code."""
    runs: list[RunInfo] = []
    run_client(
        url,
        lambda client: _find_runs(client, selection, runs),
        format_progress=lambda: f"found {format_count(len(runs), 'run')} so far …",
    )
    if not runs:
        if not as_json:
            print(make_printable(selection.empty_message))
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"retrying {format_count(len(runs), 'run')} needs a confirmation: pass --yes.")
        if not click.confirm(_format_confirmation(runs), err=True):
            click.echo("nothing changed", err=True)
            return 1
    return retry_runs(url, [run.id for run in runs], run_again=run_again, version=version, as_json=as_json)


def _format_confirmation(runs: Sequence[RunInfo]) -> str:
    states = Counter(run.state.value for run in runs)
    many = format_list([format_count(number, f"{state} run") for state, number in states.most_common()])
    workflows = Counter(to_one_line(run.workflow) for run in runs).most_common()
    whose = format_list([f"{name} ({number})" for name, number in workflows], _MAX_NAMED_WORKFLOWS)
    return f"retry {many}, of {whose}?"


async def _find_runs(client: Client, selection: RunSelection, found: list[RunInfo]) -> None:
    last = None
    while page := await client.list(state=selection.states, workflow=selection.workflow, limit=_PAGE_SIZE, before=last):
        last = page[-1].id
        found += [run for run in page if selection.matches(run)]
    # A retry of a parent includes the children that made it fail.
    ids = {run.id for run in found}
    found[:] = [run for run in found if run.parent not in ids]


async def _retry(client: Client, run_id: str, run_again: bool, version: str | None) -> Outcome:
    try:
        before = await client.export(run_id)
        taken = find_rewound_records(before.run, before.records)
        children = find_reopened_children(before.run, taken, await _fetch_child_runs(client, taken))
        await client.retry(run_id, run_again=run_again, version=version)
        run = await client.get(run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    count = len(before.records) - len(taken)
    message = f"run {run_id!r} continues (it was {before.run.state}): its journal keeps {format_count(count, 'record')}"
    return Outcome.from_run(
        run,
        changed=True,
        message=message + _describe_rewound(taken) + (f"; {describe_retried_children(children)}" if children else ""),
        kept_count=count,
        rewound_seqs=[record.seq for record in taken],
        retried_children=[child.id for child in children],
    )


async def _fetch_child_runs(client: Client, records: Sequence[Record]) -> dict[str, RunInfo]:
    """The child runs whose ends these records report, by id."""
    found: dict[str, RunInfo] = {}
    for record in records:
        if record.kind is RecordKind.CHILD and record.preview and record.preview not in found:
            try:
                found[record.preview] = await client.get(record.preview)
            except RunNotFound:
                pass  # it was deleted since
    return found


def _describe_rewound(rewound: Sequence[Record]) -> str:
    """What happens to the records that are taken back: failed steps are tried again, the rest is gone."""
    anew = [record for record in rewound if record.kind in (RecordKind.STEP, RecordKind.COMPENSATION) and not record.ok]
    rest = [record for record in rewound if record not in anew and record.kind is not RecordKind.CHILD]
    words = ""
    if anew:
        words += (
            f", and {format_list([describe_record(record) for record in anew])} "
            f"{'is' if len(anew) == 1 else 'are'} tried again"
        )
    if rest:
        words += f"; taken back: {format_list([describe_record(record) for record in rest])}"
    return words
