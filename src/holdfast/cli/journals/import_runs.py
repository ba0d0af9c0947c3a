"""``holdfast import``: runs from an archive into a store."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_count, format_list
from holdfast.cli.shared.options import command, json_option, store_only_option
from holdfast.cli.shared.store_access import is_store_present
from holdfast.errors import UsageError
from holdfast.services.archive_files import read_archive
from holdfast.stores.archives import NOT_ACTIVATED, ArchivedRun
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import unwrap_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.urls import create_store, resolve_store_url

_PAGE_SIZE = 500


@command(
    "holdfast import runs.jsonl --url postgresql://localhost/app",
    "holdfast export --all | holdfast import - --url ...",
    name="import",
)
@click.argument("file")
@click.option("--skip-existing", is_flag=True, help="Skip runs whose ids exist already.")
@click.option("--dry-run", is_flag=True, help="Only check the file, and report what would be imported.")
@json_option("A JSON object: file, dry_run, runs, skipped.")
@store_only_option("run it where the store can be reached, with the URL that the server was given.")
def import_runs(file: str, skip_existing: bool, dry_run: bool, as_json: bool, url: str | None) -> None:
    """Import runs that were exported from another store.

    FILE is what `holdfast export --all` wrote (`-`: stdin). Runs keep their ids and everything that belongs to them;
    unfinished ones continue where they are, under the workers of this store. To move to another store, stop all
    workers, export, import, and start the workers there. The whole file is checked before anything is written, and an
    existing run is never overwritten.
    """
    source = "what was read from stdin" if file == "-" else file
    added = Counter[str]()
    try:
        with _open_input(file) as lines:
            counts = run_in_loop(
                _import(url, lines, source, skip_existing, dry_run, added),
                format_progress=lambda: f"imported {format_count(added['runs'], 'run')} so far …",
            )
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not an archive of runs: it is not UTF-8 text ({error}).") from error
    if as_json:
        print(json.dumps({"file": file, "dry_run": dry_run, **counts._asdict()}))
    else:
        verb = "would import" if dry_run else "imported"
        were = "was" if counts.skipped == 1 else "were"
        skipped = f"; {format_count(counts.skipped, 'run')} {were} there already" if counts.skipped else ""
        print(f"{verb} {format_count(counts.runs, 'run')}{skipped}")


def _open_input(name: str) -> IO[str]:
    try:
        if name != "-":
            return Path(name).open(encoding="utf-8")
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it; it is read three times
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        return io.TextIOWrapper(copy, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error


class _ImportCounts(NamedTuple):
    runs: int
    skipped: int
    """Runs that existed already."""


async def _import(
    url: str | None, file: IO[str], name: str, skip_existing: bool, dry_run: bool, added: Counter[str]
) -> _ImportCounts:
    target = resolve_store_url(url)
    store = create_store(target)
    if isinstance(unwrap_store(store), MemoryStore):
        raise UsageError("memory:// would be gone with this command: import into another store")
    if dry_run and not await is_store_present(store, target):
        store = MemoryStore()  # as empty as the store that an import would create
    await store.open()
    try:
        total, existing = await _check_archive(store, file, name, skip_existing)
        if dry_run:
            return _ImportCounts(total - existing, existing)
        file.seek(0)
        for archived in read_archive(file, name):
            added["runs"] += await store.archives.restore(archived)
        file.seek(0)
        for archived in read_archive(file, name):
            if await _is_same_run(store, archived):
                await store.archives.activate(archived)
        return _ImportCounts(added["runs"], total - added["runs"])
    finally:
        await store.close()


async def _check_archive(store: Store, file: IO[str], name: str, skip_existing: bool) -> tuple[int, int]:
    """Check the whole file before anything is written. Returns how many runs it has, and how many exist already."""
    ids: set[str] = set()
    needed: dict[str, str] = {}
    for archived in read_archive(file, name):
        run = archived.run
        if run.id in ids:
            raise UsageError(f"{name} has two runs with the id {run.id!r}: nothing was imported.")
        ids.add(run.id)
        if not run.state.is_terminal:
            needed |= {link.child_id: run.id for link in archived.extras.links if not link.is_late}
            needed |= {run.parent: run.id} if run.parent and run.has_budget else {}
    known = await _find_existing(store, sorted(ids))
    if known and not skip_existing:
        raise UsageError(
            f"{format_count(len(known), 'run')} of {name} {'is' if len(known) == 1 else 'are'} in {store.url} already "
            f"({format_list([repr(run_id) for run_id in known])}): nothing was imported. --skip-existing leaves those "
            "as they are and imports the others."
        )
    missing = sorted(needed.keys() - ids)
    missing = sorted(set(missing) - set(await _find_existing(store, missing)))
    if missing:
        raise UsageError(
            f"run {needed[missing[0]]!r} of {name} has not ended and needs run {missing[0]!r}, which is neither in the "
            f"file nor in {store.url}: nothing was imported. Export it as well (`holdfast export --all`)."
        )
    return len(ids), len(known)


async def _find_existing(store: Store, run_ids: Sequence[str]) -> list[str]:
    found: list[str] = []
    for at in range(0, len(run_ids), _PAGE_SIZE):
        found += [run.id for run in await store.get_runs(run_ids[at : at + _PAGE_SIZE])]
    return sorted(found)


async def _is_same_run(store: Store, archived: ArchivedRun) -> bool:
    """Whether a run in the store is the one from the file, even if an earlier import was interrupted."""
    run = await store.get_run(archived.run.id)
    if run is None or run.seed != archived.run.seed:
        return False
    return run.paused_at == NOT_ACTIVATED or (run.state.is_terminal and run.finished_at == archived.run.finished_at)
