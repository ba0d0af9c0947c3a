"""Which store a URL means, and what is said about one that means none."""

from __future__ import annotations

import builtins
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store, redact_url, resolve_store_url, split_namespace, validate_namespace


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
    store = create_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == (tmp_path / path).resolve()
    assert store.url == f"sqlite:///{store.path}"


def test_memory_is_a_store_of_its_own_each_time():
    first, second = create_store("memory://"), create_store("memory://")
    assert isinstance(first, MemoryStore)
    assert first is not second


def test_a_store_has_the_clock_that_it_is_given():
    assert create_store("memory://", clock=lambda: 5.0).now() == 5.0
    assert create_store("x.db", clock=lambda: 6.0).now() == 6.0


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mysql://host/db", "no store is known for mysql"),
        ("runs", "sqlite:///relative.db"),
        ("", "Known are"),
        ("temporal://host?mode=ro", "an option 'mode', which is none of those that there are"),
        ("sqlite://runs.db", "sqlite:///runs.db"),
        ("sqlite://", "three slashes"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?mode=ro", "takes none but namespace"),
        ("memory://x", "nothing after it"),
        ("sqlite:///x.db?namespace=a.b", "'a.b' cannot be the name of a namespace"),
        ("memory://?namespace=A", "'A' cannot be the name of a namespace"),
        ("postgresql://host/db?namespace=a;b", "'a;b' cannot be the name of a namespace"),
        ("sqlite:///x.db?namespace=a&namespace=b", "several namespaces: a, b"),
        ("postgresql://me:***@host/db", "is hidden"),
    ],
)
def test_a_url_that_means_no_store_is_refused_with_the_way_out(url: str, hint: str):
    with pytest.raises(UsageError) as raised:
        create_store(url)
    assert hint in str(raised.value)


@pytest.mark.asyncio
async def test_missing_folders_are_created_and_the_default_one_is_private(tmp_path: Path):
    store = create_store(f"sqlite:///{tmp_path}/deep/.holdfast/runs.db")
    assert not (tmp_path / "deep").exists()
    await store.open()
    await store.close()
    assert (tmp_path / "deep/.holdfast/runs.db").exists()
    assert stat.S_IMODE((tmp_path / "deep/.holdfast").stat().st_mode) == 0o700


# Namespaces

PG = "postgresql://me:sesame@host/db?sslmode=require"


@pytest.mark.parametrize(
    ("argument", "url", "environment", "used"),
    [
        (None, "sqlite:///x.db", None, "sqlite:///x.db"),
        (None, "sqlite:///x.db", "", "sqlite:///x.db"),
        (None, "sqlite:///x.db", "default", "sqlite:///x.db"),
        (None, "sqlite:///x.db", "env", "sqlite:///x.db?namespace=env"),
        (None, "sqlite:///x.db?namespace=inside", "env", "sqlite:///x.db?namespace=inside"),
        (None, "sqlite:///x.db?namespace=", "env", "sqlite:///x.db?namespace="),
        ("given", "sqlite:///x.db", "env", "sqlite:///x.db?namespace=given"),
        ("given", "sqlite:///x.db?namespace=given", "env", "sqlite:///x.db?namespace=given"),
        ("default", "sqlite:///x.db", "env", "sqlite:///x.db?namespace=default"),
        ("", "sqlite:///x.db", "env", "sqlite:///x.db?namespace=default"),
        ("given", "x.db", None, "sqlite:///x.db?namespace=given"),
        ("given", "/tmp/x.db", None, "sqlite:////tmp/x.db?namespace=given"),
        ("given", "memory://", None, "memory://?namespace=given"),
        ("given", PG, "env", f"{PG}&namespace=given"),
        ("given", "postgresql://me:se?same@host/db", None, "postgresql://me:se?same@host/db?namespace=given"),
    ],
)
def test_an_argument_comes_before_the_url_and_the_url_before_the_environment(
    argument: str | None, url: str, environment: str | None, used: str, monkeypatch: pytest.MonkeyPatch
):
    if environment is None:
        monkeypatch.delenv("HOLDFAST_NAMESPACE", raising=False)
    else:
        monkeypatch.setenv("HOLDFAST_NAMESPACE", environment)
    assert resolve_store_url(url, argument) == used
    assert resolve_store_url(used) == used, "whoever is handed it on comes to the same"
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert resolve_store_url(None, argument) == used


def test_an_argument_and_a_url_that_contradict_each_other_are_refused_without_the_password():
    with pytest.raises(UsageError) as raised:
        resolve_store_url(f"{PG}&namespace=one", "other")
    assert str(raised.value) == (
        "the namespace is to be 'other', but the URL postgresql://me:***@host/db?sslmode=require&namespace=one says "
        "'one': say it once"
    )
    with pytest.raises(UsageError, match="to be 'default'"):
        resolve_store_url("sqlite:///x.db?namespace=one", "default")


@pytest.mark.parametrize("name", ["a", "7", "acme_eu_2", "a" * 41])
def test_names_of_namespaces(name: str, tmp_path: Path):
    assert validate_namespace(name) == name
    for url in (f"sqlite:///{tmp_path}/x.db", "memory://", PG):
        store = create_store(resolve_store_url(url, name))
        assert store.namespace == name
        assert "sesame" not in store.url
        assert split_namespace(store.url) == (split_namespace(store.url)[0], None if url == "memory://" else name)
        assert create_store(url).namespace == "default"


@pytest.mark.parametrize("name", ["_a", "A", "a-b", "a.b", "a/b", "..", "a b", "ä", "a" * 42, "a\n", 'a"b', "*"])
def test_all_stores_refuse_an_invalid_namespace_with_the_same_message(name: str, monkeypatch: pytest.MonkeyPatch):
    from holdfast.stores.postgres import PgStore

    told: set[str] = set()
    for use in (
        lambda: resolve_store_url("memory://", name),
        lambda: SqliteStore("x.db", namespace=name),
        lambda: PgStore(PG, namespace=name),
        lambda: (monkeypatch.setenv("HOLDFAST_NAMESPACE", name), resolve_store_url("memory://")),
    ):
        with pytest.raises(UsageError) as raised:
            use()
        told.add(str(raised.value))
    assert len(told) == 1
    assert "cannot be the name of a namespace" in told.pop()


def test_a_namespace_is_a_file_next_to_the_one_in_the_url(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "runs.db").symlink_to(tmp_path / "data/main.sqlite")
    for name, file in {
        "x.db": "x.acme.db",
        "runs": "runs.acme",
        "a.b.sqlite3": "a.b.acme.sqlite3",
        "runs.db": "data/main.acme.sqlite",  # all who reach the database, by whatever way, mean the same one
    }.items():
        store = SqliteStore(tmp_path / name, namespace="acme")
        assert store.path == tmp_path / file
        assert create_store(store.url).path == store.path  # type: ignore[attr-defined]


# Secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://me:sesame@host/runs", "mysql://me:***@host/runs"),
        ("postgresql:///d?password=sesame&namespace=a", "postgresql:///d?password=***&namespace=a"),
        ("sqlite:////data/a:b@c/runs.db", "sqlite:////data/a:b@c/runs.db"),
        ("memory://", "memory://"),
        ("runs.db", "runs.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str):
    assert redact_url(url) == shown


def test_without_the_driver_a_postgres_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith(("psycopg", "holdfast.stores.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    found = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "psycopg":
            raise ImportError("no pq wrapper available")
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"""pip install "holdfast-agents\[postgres\]\"""") as raised:
        create_store(PG)
    assert "sesame" not in str(raised.value)
    assert redact_url(PG) == "postgresql://me:***@host/db?sslmode=require"
