"""``holdfast backup``: a copy of a SQLite database, made while workers use it."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.shared.formatting import format_bytes, print_json
from holdfast.cli.shared.options import command, json_option, store_only_option
from holdfast.cli.shared.store_access import is_existing_file, resolve_store
from holdfast.cli.stores.namespaces import get_base_path, list_sqlite_namespaces
from holdfast.errors import UsageError
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import unwrap_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.backups import back_up
from holdfast.stores.sqlite.store import path_for_namespace
from holdfast.stores.temporal.unsupported import unsupported_error
from holdfast.stores.urls import is_temporal


@command("holdfast backup backups/runs-2026-11-19.db", "holdfast backup backups/monday --all-namespaces")
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--all-namespaces", is_flag=True, help="Back up each namespace, to a file of its own in the folder TARGET."
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@json_option("A JSON array with an object for each file: source, target, size_bytes.")
@store_only_option("back up the database where it is.")
def backup(target: Path, all_namespaces: bool, overwrite: bool, as_json: bool, url: str | None) -> None:
    """Copy the SQLite database to a file, while workers use it.

    The copy is a snapshot: whatever is recorded meanwhile is not in it. `holdfast restore` puts it back.
    """
    store, place = resolve_store(url)
    base = get_sqlite_store(store, place, "It is backed up")
    sources = [base.path]
    if all_namespaces:
        file = get_base_path(store)
        sources = [path_for_namespace(file, name) for name in list_sqlite_namespaces(file)]
    if not sources or not all(map(is_existing_file, sources)):
        raise UsageError(f"there is no database at {base.path}")
    targets = {source: target / source.name if all_namespaces else target for source in sources}
    for source, copy in targets.items():
        back_up(source, copy, overwrite=overwrite)
    sizes = {source: copy.stat().st_size for source, copy in targets.items()}
    if as_json:
        print_json([{"source": str(s), "target": str(copy), "size_bytes": sizes[s]} for s, copy in targets.items()])
    else:
        for source, copy in targets.items():
            click.echo(f"copied {source} to {copy} ({format_bytes(sizes[source])})")


def get_sqlite_store(store: Store, place: str, verb: str) -> SqliteStore:
    """The SQLite store that this is. For others, raises ``UsageError``, which says how that database is backed up."""
    inner = unwrap_store(store)
    if isinstance(inner, SqliteStore):
        return inner
    refuse_temporal(place)
    raise UsageError(
        f"{store.url} is a PostgreSQL database. {verb} with PostgreSQL's own tools: pg_dump and pg_restore, or "
        f"pg_basebackup with point-in-time recovery. After restoring it, and before you start workers: "
        f"holdfast mark-restored --since TIME"
    )


def refuse_temporal(place: str) -> None:
    """Raise ``UsageError`` for the URL of a Temporal server."""
    if is_temporal(place):
        raise unsupported_error(
            "backups", "whose server has a database of its own", "back that one up, as Temporal's manual says"
        )
