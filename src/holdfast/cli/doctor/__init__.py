"""``holdfast doctor``: is this machine fit, is the store well, is there work that nobody does?

Each check is a line with a verdict, and with what to do when it is not ``ok``. Nothing is changed: a database that is
not there is not created, one of an older schema is not migrated, dead workers are not buried. What a commit costs is
measured in a file of its own beside the database, which is removed again.

There is a module for each kind of store, and one for what is told of the work in all of them. A store that fails is not
asked about its work.
"""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check
from holdfast.cli.doctor.providers import installed_providers, mcp_version
from holdfast.cli.formatting import console, echo_json, one_line
from holdfast.client.backend_factory import is_server
from holdfast.codec import AesEncryption
from holdfast.codec.encryption import VARIABLE
from holdfast.errors import HoldfastError
from holdfast.installation import ADVICE, __version__, describe_clash, find_foreign_distribution
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import SealedStore, beneath
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import is_temporal, open_store, shown_url, split_namespace, store_url

_STYLES = {OK: "green", WARN: "yellow", FAIL: "red"}


def examine(url: str | None, *, as_json: bool) -> int:
    """Carry out all checks and tell; the exit code is 1 if one of them failed."""
    checks = list(_checks(url))
    healthy = all(check.status != FAIL for check in checks)
    if as_json:
        echo_json({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _tell(console(), checks)
    return 0 if healthy else 1


def _tell(out: Console, checks: Sequence[Check]) -> None:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        told = Text(one_line(check.message))
        if check.advice:
            told.append(f"\n→ {one_line(check.advice)}", "dim")
        table.add_row(Text(check.status, _STYLES[check.status]), check.name, told)
    out.print(table)


def _checks(url: str | None) -> Iterator[Check]:
    yield Check("python", OK, f"{platform.python_implementation()} {platform.python_version()}")
    yield Check("holdfast", OK, f"{__version__}, with SQLite {sqlite3.sqlite_version}")
    if found := find_foreign_distribution():
        yield Check("distribution", WARN, describe_clash(found), ADVICE)
    yield _models()
    yield _mcp()
    try:
        yield _origin(url)
        if is_server(url):
            from holdfast.cli.doctor.server import server_checks

            yield from server_checks(url)
            return
        store = open_store(store_url(url))
    except HoldfastError as error:
        yield Check("store", FAIL, str(error))
        return
    yield _encryption(store)
    yield from _of_store(url, beneath(store))


def _of_store(url: str | None, store: Store) -> Iterator[Check]:
    """What there is to say of the store; only what it needs is imported."""
    if isinstance(store, MemoryStore):
        yield Check("store", WARN, "memory:// keeps runs only as long as the process lives", "use a sqlite:/// URL")
    elif isinstance(store, SqliteStore):
        from holdfast.cli.doctor.sqlite import sqlite_checks

        yield from sqlite_checks(url, store)
    elif is_temporal(store_url(url)):
        from holdfast.cli.doctor.temporal import temporal_checks

        yield from temporal_checks(url)
    else:
        from holdfast.cli.doctor.postgres import postgres_checks

        yield from postgres_checks(url, store)


def _models() -> Check:
    known = installed_providers()
    if known:
        return Check("models", OK, f"packages for {', '.join(known)}")
    advice = (
        "an agent needs one of its model's provider: pip install 'holdfast-agents[openai]', or [anthropic], [google]…"
    )
    return Check("models", OK, "no provider's package is installed", advice)


def _mcp() -> Check:
    found = mcp_version()
    if found is not None:
        return Check("mcp", OK, f"the package for MCP servers is installed ({found})")
    return Check(
        "mcp",
        OK,
        "the package for MCP servers is not installed",
        "to use their tools: pip install 'holdfast-agents[mcp]'",
    )


def _encryption(store: Store) -> Check:
    if not isinstance(store, SealedStore):
        return Check("encryption", OK, f"off: {VARIABLE} is not set")
    assert isinstance(store.encryption, AesEncryption)  # nobody but the environment gives this command one
    first, *others = store.encryption.key_ids
    also = f", and key {', '.join(others)} can be read" if others else ""
    return Check("encryption", OK, f"what is recorded is sealed with key {first}{also}")


def _origin(url: str | None) -> Check:
    place = split_namespace(url)[0] if url else None
    is_given = place is not None and place != split_namespace(store_url())[0]
    source = "--url" if is_given else "HOLDFAST_URL" if os.environ.get("HOLDFAST_URL") else "the default in this folder"
    return Check("store url", OK, f"{shown_url(store_url(url))} (from {source})")
