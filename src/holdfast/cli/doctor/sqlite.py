"""What ``doctor`` tells of a SQLite file, and of the disk that it lies on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check, commit_check, namespace_check
from holdfast.cli.doctor.workload import work_checks
from holdfast.cli.formatting import bytes_in_words
from holdfast.cli.namespaces import base_of, namespaces_beside
from holdfast.cli.sqlite_file import (
    FileFacts,
    commit_times,
    is_newer,
    is_ours,
    is_outdated,
    read_facts,
    write_settings,
)
from holdfast.errors import StoreError
from holdfast.stores.sql.schema import BASELINE_VERSION
from holdfast.stores.sqlite import SqliteStore

LITTLE_SPACE = 1 << 30
NO_SPACE = 50 << 20
_ELSEWHERE = "allow it, or point HOLDFAST_URL elsewhere"


def sqlite_checks(url: str | None, store: SqliteStore) -> Iterator[Check]:
    """How the file and its disk are; and if it is a database that can be read, what is in it."""
    path = store.path
    folder = _nearest_folder(path)
    if not os.access(folder, os.X_OK):
        yield Check("database", FAIL, f"{folder} may not be entered by this user", _ELSEWHERE)
        return
    others = [name for name in namespaces_beside(base_of(store)) if name != store.namespace]
    yield namespace_check(store.namespace, path.name, others)
    yield _space(folder)
    if not path.exists():
        yield Check("database", OK, f"none is there yet: the first run, or `holdfast worker`, creates {path}")
        yield _writable_folder(path, folder)
        yield _commit(folder)
        return
    try:
        facts = read_facts(path)
    except StoreError as error:
        yield Check("database", FAIL, str(error))
        return
    yield _schema(path, facts)
    if not is_ours(facts) or is_newer(facts) or is_outdated(facts):
        return
    try:
        settings = write_settings(path)
    except StoreError as error:
        yield Check("writable", FAIL, str(error))
        return
    yield Check("writable", OK, f"{path} and its folder")
    yield _durability(settings)
    yield _commit(folder)
    yield from work_checks(url)


def _nearest_folder(path: Path) -> Path:
    """The folder of the database, or the nearest one above it that is there."""
    return next(folder for folder in path.parents if os.path.exists(folder))


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    message = f"{bytes_in_words(free)} free"
    advice = f"free space on the device of {folder}: without room, runs stop until there is some"
    if free < NO_SPACE:
        return Check("disk", FAIL, message, advice)
    return Check("disk", WARN, message, advice) if free < LITTLE_SPACE else Check("disk", OK, message)


def _writable_folder(path: Path, folder: Path) -> Check:
    if os.access(folder, os.W_OK | os.X_OK):
        return Check("writable", OK, f"{path.parent} can be created" if folder != path.parent else str(folder))
    return Check("writable", FAIL, f"{folder} is not writable for this user", _ELSEWHERE)


def _schema(path: Path, facts: FileFacts) -> Check:
    if not is_ours(facts):
        advice = "point HOLDFAST_URL at another file: Holdfast keeps its runs in one of their own"
        return Check("database", FAIL, f"{path} is not a Holdfast database", advice)
    if 0 < facts.version < BASELINE_VERSION:
        advice = "use another file, or export its runs with that version and import them with this one"
        return Check("database", FAIL, f"schema version {facts.version} is from before Holdfast 0.2", advice)
    if is_newer(facts):
        advice = "upgrade this one (pip install -U holdfast-agents), or use another file"
        return Check("database", FAIL, f"schema version {facts.version} is from a newer Holdfast", advice)
    if is_outdated(facts):
        what = f"schema version {facts.version} is from an older Holdfast" if facts.version else f"{path} is empty"
        return Check("database", WARN, what, "the next worker or program that opens it sets it up; then ask again")
    return Check("database", OK, f"opens; schema version {facts.version}, {bytes_in_words(facts.size)}")


def _durability(settings: Mapping[str, str]) -> Check:
    message = ", ".join(f"{name}={value}" for name, value in settings.items())
    if settings == {"journal_mode": "wal", "synchronous": "full"}:
        return Check("durability", OK, message)
    return Check("durability", FAIL, message, "a recorded outcome could be lost with the power: please report this")


def _commit(folder: Path) -> Check:
    try:
        times = commit_times(folder)
    except (StoreError, OSError) as error:
        return Check("commit", FAIL, f"a test commit in {folder} failed: {error}")
    return commit_check(times, "a slow disk bounds steps a second; a local SSD takes about a millisecond")
