"""A device that cannot be read: SQLite may call the file damaged, and it is not."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from store_values import commit_ops, new_run

from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.stores.operations import StartRun
from holdfast.stores.sqlite import SqliteStore, errors
from holdfast.stores.sqlite.errors import to_store_error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def malformed() -> sqlite3.DatabaseError:
    """What SQLite says of a damaged page, and of one that it could not read while it was writing."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error


@pytest.mark.asyncio
async def test_a_sound_file_is_not_to_be_recovered_after_a_read_error(path: Path):
    store = SqliteStore(path)
    await store.open()
    await commit_ops(store, *[StartRun(new_run(f"r{n}", inputs=b"x" * 500)) for n in range(100)])
    told = to_store_error(malformed(), path)
    await store.close()
    assert isinstance(told, StoreUnavailable)
    assert re.search("the device of .*finds no damage.*go on by themselves", str(told))
    assert ".recover" not in str(told)
    data = bytearray(path.read_bytes())
    data[8192:16384] = os.urandom(8192)
    path.write_bytes(data)
    told = to_store_error(malformed(), path)
    assert isinstance(told, StoreCorrupt)
    assert ".recover" in str(told)


@pytest.mark.asyncio
async def test_a_file_that_takes_too_long_to_check_is_called_damaged_with_a_way_to_find_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = SqliteStore(path)
    await store.open()
    await commit_ops(store, *[StartRun(new_run(f"r{n}", inputs=b"x" * 500)) for n in range(100)])
    monkeypatch.setattr(errors, "INTEGRITY_CHECK_TIMEOUT_S", -1.0)
    told = to_store_error(malformed(), path)
    await store.close()
    assert isinstance(told, StoreCorrupt)
    assert "PRAGMA integrity_check" in str(told)


EIO = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int left = 0;
void fail_reads(int count) { left = count; }

static int fails(int fd) {
    char link[64], name[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = left > 0 ? readlink(link, name, sizeof name) : -1;
    if (size < 3 || strncmp(name + size - 3, ".db", 3)) return 0;
    left--;
    errno = EIO;
    return 1;
}

ssize_t pread64(int fd, void *buffer, size_t size, off64_t at) {
    ssize_t (*real)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
    return fails(fd) ? -1 : real(fd, buffer, size, at);
}
"""
READ_ERRORS = """
    import asyncio, ctypes, os, sqlite3, sys
    sys.path[:0] = {paths!r}
    from store_values import append, start_claimed_run
    from holdfast.errors import StoreError
    from holdfast.stores.sqlite import SqliteStore

    async def main():
        store, fail_reads = SqliteStore({path!r}), ctypes.CDLL(os.environ["LD_PRELOAD"]).fail_reads
        await store.open()
        run = await start_claimed_run(store)
        for seq in range(1, 100):
            await store.commit([append(run, seq, payload=os.urandom(3000))])
        sqlite3.connect({path!r}).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await store.close()
        await store.open()  # with nothing in memory
        for count in (1, 1_000_000):
            fail_reads(count)
            try:
                await store.commit([append(run, 100, payload=os.urandom(3000))])
            except StoreError as error:
                print(type(error).__name__, error)
        fail_reads(0)
        assert await store.commit([append(run, 100)])
        await store.close()

    asyncio.run(main())
"""


def test_a_device_that_cannot_be_read_is_reported_as_such_and_survived(path: Path, tmp_path: Path):
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, to let reads fail")
    (tmp_path / "eio.c").write_text(EIO)
    library = tmp_path / "eio.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "eio.c", "-ldl"], check=True)
    source = textwrap.dedent(READ_ERRORS).format(path=str(path), paths=[str(Path(__file__).parent)])
    path_of_modules = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path_of_modules, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said, "no read has failed"
    for line in said:
        assert line.startswith("StoreUnavailable the device of"), line
        assert ".recover" not in line
