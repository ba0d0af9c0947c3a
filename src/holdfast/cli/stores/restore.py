"""``holdfast restore`` and ``holdfast mark-restored``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_count, print_json
from holdfast.cli.shared.options import command, json_option, store_only_option
from holdfast.cli.shared.parsing import parse_past_datetime
from holdfast.cli.shared.store_access import open_existing_store, resolve_store
from holdfast.cli.stores.backup import get_sqlite_store, refuse_temporal
from holdfast.errors import UsageError
from holdfast.services.stalls import is_alive
from holdfast.stores.encrypted import unwrap_store
from holdfast.stores.restoration import mark_restored as mark_store_restored
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.backups import read_backup_time
from holdfast.stores.sqlite.backups import restore as restore_file

_STORE_ONLY = "restore the database where it is."


@command("holdfast restore backups/runs-2026-11-19.db")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--nothing-happened",
    is_flag=True,
    help="Nothing was executed after the backup was made, so runs continue without a question.",
)
@json_option("A JSON object: source, target, previous (the replaced file's new name), backup_at, marked_run_count.")
@store_only_option(_STORE_ONLY)
def restore(source: Path, nothing_happened: bool, as_json: bool, url: str | None) -> None:
    """Replace the SQLite database with a backup. Stop all workers and servers before.

    The restored database does not know what happened after the backup. Runs continue from what it knows. A `once` step
    that it does not know is not executed: it may have been, so its outcome is unknown (`holdfast settle`). The replaced
    file stays, under another name.
    """
    store, place = resolve_store(url)
    target = get_sqlite_store(store, place, "It is restored").path

    def prepare(copy: Path) -> tuple[float | None, int]:
        backup_at = read_backup_time(copy)
        return backup_at, 0 if nothing_happened else asyncio.run(_mark_file(copy, backup_at))

    (backup_at, run_count), previous = restore_file(source, target, prepare)
    made_at = None if backup_at is None else datetime.fromtimestamp(backup_at, UTC)
    if as_json:
        print_json(
            {
                "source": str(source),
                "target": str(target),
                "previous": None if previous is None else str(previous),
                "backup_at": None if made_at is None else made_at.isoformat(),
                "marked_run_count": run_count,
            }
        )
        return
    when = "" if made_at is None else f", a backup of {made_at:%Y-%m-%d %H:%M:%S} UTC"
    click.echo(f"restored {target} from {source}{when}")
    if previous is not None:
        click.echo(f"the replaced file is {previous}")
    if run_count:
        _print_marked(run_count)


async def _mark_file(database: Path, backup_at: float | None) -> int:
    store = SqliteStore(database)
    await store.open()
    try:
        return await mark_store_restored(store, backup_at)
    finally:
        await store.close()


@command("holdfast mark-restored --since '2026-11-19 09:30' --url postgresql://localhost/app")
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    required=True,
    help="When the backup was made, or the time to which the database was recovered: a time, or how long ago.",
)
@json_option("A JSON object: backup_at, marked_run_count.")
@store_only_option(_STORE_ONLY)
def mark_restored(since: datetime, as_json: bool, url: str | None) -> None:
    """Tell a database that it was restored, so that no `once` step is executed a second time.

    Do it after you have restored it with PostgreSQL's tools, or copied a file, and before you start workers. From then
    on, a `once` step that the database does not know is not executed: it may have been after WHEN, so its outcome is
    unknown (`holdfast settle`). `holdfast restore` does this for a SQLite file.
    """

    refuse_temporal(resolve_store(url)[1])

    async def mark() -> int:
        async with open_existing_store(url) as store:
            store = unwrap_store(store)
            now = store.now()
            if live := [worker.name for worker in await store.list_workers() if is_alive(worker, now)]:
                raise UsageError(
                    f"{format_count(len(live), 'worker')} of {store.url} may be running ({live[0]}): stop all workers "
                    f"first. The lease of one that was killed expires within a minute."
                )
            return await mark_store_restored(store, since.timestamp())

    run_count = run_in_loop(mark())
    if as_json:
        print_json({"backup_at": since.isoformat(), "marked_run_count": run_count})
    else:
        _print_marked(run_count)


def _print_marked(run_count: int) -> None:
    click.echo(
        f"{format_count(run_count, 'run')} may have continued after that. Of those, a `once` step without a recorded "
        f"outcome is not executed: its outcome is unknown until you settle it"
    )
