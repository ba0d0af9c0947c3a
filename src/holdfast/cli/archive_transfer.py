"""``holdfast export --all`` and ``holdfast import``: runs from one store into another."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import click

from holdfast.cli.archives import iter_archive_lines, read_archive
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import format_count, format_list
from holdfast.cli.store_access import is_store_present, open_existing_store
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.archives import NOT_ACTIVATED, ArchivedRun
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.encrypted import EncryptedStore, unwrap_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.urls import create_store, resolve_store_url

_PAGE_SIZE = 500


def export_runs(
    url: str | None, states: Sequence[str], workflow: str | None, output: str | None, *, decrypted: bool
) -> None:
    """Write runs to a file, or to stdout; with encrypted values as they are, or ``decrypted``."""
    where = RunFilter(states=[RunState(state) for state in states], workflow=workflow)
    written = Counter[str]()

    def export(file: IO[bytes]) -> int:
        return run_in_loop(
            _export(url, where, file, decrypted, written),
            format_progress=lambda: f"wrote {written['lines']:,} lines so far …",
        )

    if output is None:
        count = export(sys.stdout.buffer)
    else:
        # Under another name until it is whole: what is cut off must not take the place of what was there.
        unfinished = Path(f"{output}.unfinished")
        try:
            with unfinished.open("wb") as file:
                count = export(file)
            unfinished.replace(output)
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {error.strerror or error}.") from error
        finally:
            with suppress(OSError):  # it is gone if all went well, and was never there if it could not be made
                unfinished.unlink()
    click.echo(f"wrote {format_count(count, 'run')} to {output or 'stdout'}", err=True)


async def _export(
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
    """The ids of runs, in the order of their creation."""
    found: list[str] = []
    key = None
    while page := await store.list_runs(run_filter, limit=_PAGE_SIZE, before_key=key):
        found += [run.id for run in page]
        key = page[-1].key
    return found[::-1]


def import_runs(url: str | None, name: str, *, skip_existing: bool, dry_run: bool, as_json: bool) -> None:
    """Put the runs of a file into the store."""
    source = "what was read from stdin" if name == "-" else name
    try:
        with _open_input(name) as file:
            added = Counter[str]()
            told = run_in_loop(
                _import(url, file, source, skip_existing, dry_run, added),
                format_progress=lambda: f"imported {format_count(added['runs'], 'run')} so far …",
            )
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is no archive of runs: it is not UTF-8 text ({error}).") from error
    if as_json:
        print(json.dumps({"file": name, "dry_run": dry_run, **told._asdict()}))
    else:
        print(
            f"{'would import' if dry_run else 'imported'} "
            f"{format_count(told.runs, 'run')}{_format_skipped(told.skipped)}"
        )


def _open_input(name: str) -> IO[str]:
    try:
        if name != "-":
            return Path(name).open(encoding="utf-8")
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - whoever reads closes it; it is read three times
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        return io.TextIOWrapper(copy, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error


class _ImportCounts(NamedTuple):
    runs: int
    skipped: int
    """Those that were there already."""


async def _import(
    url: str | None, file: IO[str], name: str, skip_existing: bool, dry_run: bool, added: Counter[str]
) -> _ImportCounts:
    target = resolve_store_url(url)
    store = create_store(target)
    if isinstance(unwrap_store(store), MemoryStore):
        raise UsageError("memory:// would be gone with this command: import into another store")
    if dry_run and not await is_store_present(store, target):
        store = MemoryStore()  # as empty as what an import would make
    await store.open()
    try:
        total, there = await _check_archive(store, file, name, skip_existing)
        if dry_run:
            return _ImportCounts(total - there, there)
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


def _format_skipped(count: int) -> str:
    return f"; {format_count(count, 'run')} {'was' if count == 1 else 'were'} there already" if count else ""


async def _check_archive(store: Store, file: IO[str], name: str, skip_existing: bool) -> tuple[int, int]:
    """Read all of it before anything is written: how many runs it has, and how many of them are there."""
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
    there = await _find_existing(store, sorted(ids))
    if there and not skip_existing:
        raise UsageError(
            f"{format_count(len(there), 'run')} of {name} {'is' if len(there) == 1 else 'are'} in {store.url} already "
            f"({format_list([repr(run_id) for run_id in there])}): nothing was imported. --skip-existing leaves those "
            "as "
            f"they are and imports the others."
        )
    missing = sorted(needed.keys() - ids)
    missing = sorted(set(missing) - set(await _find_existing(store, missing)))
    if missing:
        raise UsageError(
            f"run {needed[missing[0]]!r} of {name} has not ended and needs run {missing[0]!r}, which is neither in the "
            f"file nor in {store.url}: nothing was imported. Export it as well (`holdfast export --all`)."
        )
    return len(ids), len(there)


async def _find_existing(store: Store, run_ids: Sequence[str]) -> list[str]:
    found: list[str] = []
    for at in range(0, len(run_ids), _PAGE_SIZE):
        found += [run.id for run in await store.get_runs(run_ids[at : at + _PAGE_SIZE])]
    return sorted(found)


async def _is_same_run(store: Store, archived: ArchivedRun) -> bool:
    """Whether a run in the store is the one from the file, also if an import before this one was interrupted."""
    run = await store.get_run(archived.run.id)
    if run is None or run.seed != archived.run.seed:
        return False
    return run.paused_at == NOT_ACTIVATED or (run.state.is_terminal and run.finished_at == archived.run.finished_at)
