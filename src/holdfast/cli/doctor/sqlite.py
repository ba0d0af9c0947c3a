"""Checks of a SQLite file, and of its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.cli.doctor.checks import CheckResult, diagnose_commit, diagnose_namespace, fail, ok, warn
from holdfast.cli.doctor.workload import diagnose_workload
from holdfast.cli.shared.formatting import format_bytes
from holdfast.cli.stores.namespaces import get_base_path, list_sqlite_namespaces
from holdfast.errors import StoreError
from holdfast.stores.sql.schema import BASELINE_VERSION
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.inspection import (
    FileFacts,
    is_holdfast_file,
    is_newer_schema,
    is_older_schema,
    measure_commit_times,
    read_facts,
    read_writer_settings,
)

LOW_SPACE_BYTES = 1 << 30
MIN_SPACE_BYTES = 50 << 20
_ACCESS_HINT = "allow it, or point HOLDFAST_URL elsewhere"


def diagnose_sqlite(url: str | None, store: SqliteStore) -> Iterator[CheckResult]:
    """Check the file and its disk; and if it is a database that can be opened, the work in it."""
    path = store.path
    folder = _find_nearest_folder(path)
    if not os.access(folder, os.X_OK):
        yield fail("database", f"{folder} may not be entered by this user", _ACCESS_HINT)
        return
    others = [name for name in list_sqlite_namespaces(get_base_path(store)) if name != store.namespace]
    yield diagnose_namespace(store.namespace, path.name, others)
    yield _diagnose_space(folder)
    if not path.exists():
        yield ok("database", f"none is there yet: the first run, or `holdfast worker`, creates {path}")
        yield _diagnose_folder(path, folder)
        yield _diagnose_commit(folder)
        return
    try:
        facts = read_facts(path)
    except StoreError as error:
        yield fail("database", str(error))
        return
    yield _diagnose_schema(path, facts)
    if not is_holdfast_file(facts) or is_newer_schema(facts) or is_older_schema(facts):
        return
    try:
        settings = read_writer_settings(path)
    except StoreError as error:
        yield fail("writable", str(error))
        return
    yield ok("writable", f"{path} and its folder")
    yield _diagnose_durability(settings)
    yield _diagnose_commit(folder)
    yield from diagnose_workload(url)


def _find_nearest_folder(path: Path) -> Path:
    """The folder of the database, or the nearest one above it that exists."""
    return next(folder for folder in path.parents if os.path.exists(folder))


def _diagnose_space(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    message = f"{format_bytes(free)} free"
    advice = f"free space on the device of {folder}: without room, runs stop until there is some"
    if free < MIN_SPACE_BYTES:
        return fail("disk", message, advice)
    return warn("disk", message, advice) if free < LOW_SPACE_BYTES else ok("disk", message)


def _diagnose_folder(path: Path, folder: Path) -> CheckResult:
    if os.access(folder, os.W_OK | os.X_OK):
        return ok("writable", f"{path.parent} can be created" if folder != path.parent else str(folder))
    return fail("writable", f"{folder} is not writable for this user", _ACCESS_HINT)


def _diagnose_schema(path: Path, facts: FileFacts) -> CheckResult:
    if not is_holdfast_file(facts):
        advice = "point HOLDFAST_URL at another file: Holdfast keeps its runs in one of their own"
        return fail("database", f"{path} is not a Holdfast database", advice)
    if 0 < facts.schema_version < BASELINE_VERSION:
        advice = "use another file; the version that made it can still finish its runs"
        return fail("database", f"schema version {facts.schema_version} is from before Holdfast 0.2", advice)
    if is_newer_schema(facts):
        advice = "upgrade this one (pip install -U holdfast-agents), or use another file"
        return fail("database", f"schema version {facts.schema_version} is from a newer Holdfast", advice)
    if is_older_schema(facts):
        problem = (
            f"schema version {facts.schema_version} is from an older Holdfast"
            if facts.schema_version
            else f"{path} is empty"
        )
        return warn("database", problem, "the next worker or program that opens it sets it up; then ask again")
    return ok("database", f"opens; schema version {facts.schema_version}, {format_bytes(facts.size)}")


def _diagnose_durability(settings: Mapping[str, str]) -> CheckResult:
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if settings == {"journal_mode": "wal", "synchronous": "full"}:
        return ok("durability", message)
    return fail("durability", message, "a recorded outcome could be lost with the power: please report this")


def _diagnose_commit(folder: Path) -> CheckResult:
    try:
        times = measure_commit_times(folder)
    except (StoreError, OSError) as error:
        return fail("commit", f"a test commit in {folder} failed: {error}")
    return diagnose_commit(times, "a slow disk bounds steps a second; a local SSD takes about a millisecond")
