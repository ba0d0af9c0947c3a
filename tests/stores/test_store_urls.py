"""Which store a URL means, and what is said about one that means none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import open_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite:///a folder/r%20.db", "a folder/r%20.db"),
        ("sqlite:////var/lib/runs.db", "/var/lib/runs.db"),
        ("runs.db", "runs.db"),
        ("/tmp/x.sqlite", "/tmp/x.sqlite"),
        ("../x.sqlite3", "../x.sqlite3"),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == (tmp_path / path).resolve()
    assert store.url == f"sqlite:///{store.path}"


def test_memory_is_a_store_of_its_own_each_time():
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    assert first is not second


def test_a_store_has_the_clock_that_it_is_given():
    assert open_store("memory://", clock=lambda: 5.0).now() == 5.0
    assert open_store("x.db", clock=lambda: 6.0).now() == 6.0


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mysql://host/db", "no store is known for mysql"),
        ("runs", "sqlite:///relative.db"),
        ("", "Known are"),
        ("postgresql://host/db", "no Postgres store yet"),
        ("postgres://host/db", "no Postgres store yet"),
        ("temporal://host", "no Temporal store yet"),
        ("sqlite://runs.db", "sqlite:///runs.db"),
        ("sqlite://", "three slashes"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?mode=ro", "takes none"),
        ("memory://x", "nothing after it"),
    ],
)
def test_a_url_that_means_no_store_is_refused_with_the_way_out(url: str, hint: str):
    with pytest.raises(UsageError) as raised:
        open_store(url)
    assert hint in str(raised.value)


@pytest.mark.asyncio
async def test_missing_folders_are_made_and_the_default_one_is_private(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/deep/.holdfast/runs.db")
    assert not (tmp_path / "deep").exists()
    await store.open()
    await store.close()
    assert (tmp_path / "deep/.holdfast/runs.db").exists()
    assert stat.S_IMODE((tmp_path / "deep/.holdfast").stat().st_mode) == 0o700
