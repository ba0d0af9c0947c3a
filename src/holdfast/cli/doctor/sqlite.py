"""What ``doctor`` tells of a SQLite file, and of the disk that it lies on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.cli.doctor.checks import FAIL, OK, WARN, CheckResult, diagnose_commit, diagnose_namespace
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
    """How the file and its disk are; and if it is a database that can be read, what is in it."""
    path = store.path
    folder = _find_nearest_folder(path)
    if not os.access(folder, os.X_OK):
        yield CheckResult("database", FAIL, f"{folder} may not be entered by this user", _ACCESS_HINT)
        return
    others = [name for name in list_sqlite_namespaces(get_base_path(store)) if name != store.namespace]
    yield diagnose_namespace(store.namespace, path.name, others)
    yield _diagnose_space(folder)
    if not path.exists():
        yield CheckResult("database", OK, f"none is there yet: the first run, or `holdfast worker`, creates {path}")
        yield _diagnose_folder(path, folder)
        yield _diagnose_commit(folder)
        return
    try:
        facts = read_facts(path)
    except StoreError as error:
        yield CheckResult("database", FAIL, str(error))
        return
    yield _diagnose_schema(path, facts)
    if not is_holdfast_file(facts) or is_newer_schema(facts) or is_older_schema(facts):
        return
    try:
        settings = read_writer_settings(path)
    except StoreError as error:
        yield CheckResult("writable", FAIL, str(error))
        return
    yield CheckResult("writable", OK, f"{path} and its folder")
    yield _diagnose_durability(settings)
    yield _diagnose_commit(folder)
    yield from diagnose_workload(url)


def _find_nearest_folder(path: Path) -> Path:
    """The folder of the database, or the nearest one above it that is there."""
    return next(folder for folder in path.parents if os.path.exists(folder))


def _diagnose_space(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    message = f"{format_bytes(free)} free"
    advice = f"free space on the device of {folder}: without room, runs stop until there is some"
    if free < MIN_SPACE_BYTES:
        return CheckResult("disk", FAIL, message, advice)
    return CheckResult("disk", WARN, message, advice) if free < LOW_SPACE_BYTES else CheckResult("disk", OK, message)


def _diagnose_folder(path: Path, folder: Path) -> CheckResult:
    if os.access(folder, os.W_OK | os.X_OK):
        return CheckResult("writable", OK, f"{path.parent} can be created" if folder != path.parent else str(folder))
    return CheckResult("writable", FAIL, f"{folder} is not writable for this user", _ACCESS_HINT)


def _diagnose_schema(path: Path, facts: FileFacts) -> CheckResult:
    if not is_holdfast_file(facts):
        advice = "point HOLDFAST_URL at another file: Holdfast keeps its runs in one of their own"
        return CheckResult("database", FAIL, f"{path} is not a Holdfast database", advice)
    if 0 < facts.schema_version < BASELINE_VERSION:
        advice = "use another file; the version that made it can still finish its runs"
        return CheckResult(
            "database", FAIL, f"schema version {facts.schema_version} is from before Holdfast 0.2", advice
        )
    if is_newer_schema(facts):
        advice = "upgrade this one (pip install -U holdfast-agents), or use another file"
        return CheckResult("database", FAIL, f"schema version {facts.schema_version} is from a newer Holdfast", advice)
    if is_older_schema(facts):
        what = (
            f"schema version {facts.schema_version} is from an older Holdfast"
            if facts.schema_version
            else f"{path} is empty"
        )
        return CheckResult(
            "database", WARN, what, "the next worker or program that opens it sets it up; then ask again"
        )
    return CheckResult("database", OK, f"opens; schema version {facts.schema_version}, {format_bytes(facts.size)}")


def _diagnose_durability(settings: Mapping[str, str]) -> CheckResult:
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if settings == {"journal_mode": "wal", "synchronous": "full"}:
        return CheckResult("durability", OK, message)
    return CheckResult(
        "durability", FAIL, message, "a recorded outcome could be lost with the power: please report this"
    )


def _diagnose_commit(folder: Path) -> CheckResult:
    try:
        times = measure_commit_times(folder)
    except (StoreError, OSError) as error:
        return CheckResult("commit", FAIL, f"a test commit in {folder} failed: {error}")
    return diagnose_commit(times, "a slow disk bounds steps a second; a local SSD takes about a millisecond")
