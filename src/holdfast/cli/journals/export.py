"""``holdfast export``: one journal, or all runs as an archive."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_count, make_printable
from holdfast.cli.shared.options import STATES, command, refuse_server, url_option
from holdfast.cli.shared.store_access import open_existing_store, run_client
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.services.archive_files import iter_archive_lines
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.encrypted import EncryptedStore, unwrap_store

_PAGE_SIZE = 500


@command(
    "holdfast export etl-acme > etl-acme.json",
    "holdfast export etl-acme -o etl-acme.json",
    "holdfast export --all -o runs.jsonl",
)
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--all", "everything", is_flag=True, help="All runs and what belongs to them, for `holdfast import`.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="With --all: only these; may be repeated."
)
@click.option("--workflow", metavar="W", help="With --all: only runs of this workflow.")
@click.option("--decrypted", is_flag=True, help="With --all: decrypt encrypted values; by default they stay encrypted.")
@url_option
def export(
    run_id: str | None,
    output: str | None,
    everything: bool,
    states: tuple[str, ...],
    workflow: str | None,
    decrypted: bool,
    url: str | None,
) -> None:
    """Write a run's journal as JSON, for `holdfast replay` and for tests; or many runs, for `holdfast import`.

    The file contains recorded values as they are: the inputs of the run, the outputs of its steps, and what was sent to
    it. Read it before you share it or put it under version control. Encrypted values are readable in a journal;
    with --all they stay encrypted, unless you give --decrypted.
    """
    if (run_id is None) is not everything:
        raise click.UsageError("say which: the ID of a run, or --all.")
    if run_id is None:
        refuse_server(url, "a server exports one run, by its ID; all of them are exported where the store is.")
        _export_archive(url, states, workflow, output, decrypted=decrypted)
        return
    if states or workflow is not None or decrypted:
        raise click.UsageError("--state, --workflow and --decrypted go with --all.")
    _export_journal(url, run_id, output)


def _export_journal(url: str | None, run_id: str, output: str | None) -> None:
    journal = run_client(url, lambda client: client.export(run_id))
    if output is None:
        # As bytes: the terminal's encoding must not change what is recorded.
        sys.stdout.buffer.write(journal.dumps().encode())
        return
    journal.write(output)
    size = f"{journal.run.state}, {format_count(len(journal.records), 'record')}"
    click.echo(f"wrote run {make_printable(run_id)!r} ({size}) to {output}", err=True)


# Archives


def _export_archive(
    url: str | None, states: Sequence[str], workflow: str | None, output: str | None, *, decrypted: bool
) -> None:
    run_filter = RunFilter(states=[RunState(state) for state in states], workflow=workflow)
    written = Counter[str]()

    def export(file: IO[bytes]) -> int:
        return run_in_loop(
            _write_archive(url, run_filter, file, decrypted, written),
            format_progress=lambda: f"wrote {written['lines']:,} lines so far …",
        )

    if output is None:
        count = export(sys.stdout.buffer)
    else:
        # Under another name until it is complete, so that a partial file never replaces an existing one.
        unfinished = Path(f"{output}.unfinished")
        try:
            with unfinished.open("wb") as file:
                count = export(file)
            unfinished.replace(output)
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {error.strerror or error}.") from error
        finally:
            with suppress(OSError):  # it was renamed, or never created
                unfinished.unlink()
    click.echo(f"wrote {format_count(count, 'run')} to {output or 'stdout'}", err=True)


async def _write_archive(
    url: str | None, run_filter: RunFilter, file: IO[bytes], decrypted: bool, written: Counter[str]
) -> int:
    async with open_existing_store(url) as store:
        if decrypted and not isinstance(store, EncryptedStore):
            raise UsageError(
                "--decrypted needs the keys that values were encrypted with: set HOLDFAST_ENCRYPTION_KEYS."
            )
        run_ids = await _list_run_ids(store, run_filter)
        async for line in iter_archive_lines(store if decrypted else unwrap_store(store), run_ids, decrypted=decrypted):
            file.write(line.encode() + b"\n")
            written["lines"] += 1
    file.flush()
    return len(run_ids)


async def _list_run_ids(store: Store, run_filter: RunFilter) -> list[str]:
    """The ids of runs, oldest first."""
    found: list[str] = []
    key = None
    while page := await store.list_runs(run_filter, limit=_PAGE_SIZE, before_key=key):
        found += [run.id for run in page]
        key = page[-1].key
    return found[::-1]
