"""Which store a URL means."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from holdfast.errors import UsageError
from holdfast.stores.contract import Store

KNOWN = "sqlite:///relative.db, sqlite:////absolute/path.db, memory://"
_NOT_YET = {"postgres": "Postgres", "postgresql": "Postgres", "temporal": "Temporal"}
_SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3")


DEFAULT = "sqlite:///.holdfast/runs.db"


def store_url(url: str | None = None) -> str:
    """The URL to use: the one given, else ``HOLDFAST_URL``, else the SQLite file in this folder."""
    return url or os.environ.get("HOLDFAST_URL") or DEFAULT


def open_store(url: str, *, clock: Callable[[], float] | None = None) -> Store:
    """The store that ``url`` names, not opened yet. A bare path that ends in ``.db`` or ``.sqlite`` means SQLite."""
    clock = clock or time.time
    scheme, separator, rest = url.partition("://")
    if not separator:
        if url.endswith(_SQLITE_ENDINGS):
            return _sqlite(url, clock)
        raise UsageError(f"{url!r} is not a store URL. Known are: {KNOWN}")
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        if rest:
            raise UsageError(f"memory:// takes nothing after it, but the URL is {url!r}")
        return MemoryStore(clock=clock)
    if scheme == "sqlite":
        return _sqlite(_sqlite_path(url, rest), clock)
    if scheme in _NOT_YET:
        raise UsageError(f"this version of Holdfast has no {_NOT_YET[scheme]} store yet. Known are: {KNOWN}")
    raise UsageError(f"no store is known for {scheme}:// URLs. Known are: {KNOWN}")


def _sqlite_path(url: str, rest: str) -> str:
    """The path, as SQLAlchemy writes it: a third slash ends the (empty) host, a fourth begins an absolute path."""
    if not rest.startswith("/"):
        raise UsageError(
            f"{url!r} names a host, which SQLite has not: write three slashes for a relative path (sqlite:///{rest}), "
            f"four for an absolute one."
        )
    path = rest[1:]
    if not path or path == ":memory:":
        raise UsageError(f"{url!r} names no file. For a store that lives only as long as the process, use memory://")
    if "?" in path:
        raise UsageError(f"{url!r} has options after '?', and the SQLite store takes none")
    return path


def _sqlite(path: str, clock: Callable[[], float]) -> Store:
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(path, clock=clock)
