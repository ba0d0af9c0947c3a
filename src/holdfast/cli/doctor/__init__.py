"""``holdfast doctor``: checks of the machine, the store, and the work in it.

Each check is a line with a status, and with what to do if it is not ``ok``. Nothing is changed: a missing database is
not created, one of an older schema is not migrated, and dead workers are not declared dead. The time of a commit is
measured in a file of its own next to the database, which is deleted again.

There is a module for each kind of store, and one for the work in all of them. If a check of the store fails, the work
in it is not checked.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.doctor.checks import FAIL, OK, WARN, CheckResult, fail, ok, warn
from holdfast.cli.doctor.providers import get_mcp_version, list_installed_providers
from holdfast.cli.shared.formatting import create_console, print_json, to_one_line
from holdfast.cli.shared.options import command, json_option, url_option
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.codec import AesEncryption
from holdfast.codec.encryption import KEYS_VARIABLE
from holdfast.errors import HoldfastError
from holdfast.installation import REINSTALL_HINT, __version__, describe_clash, find_foreign_distribution
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import EncryptedStore, unwrap_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store, is_temporal, redact_url, resolve_store_url, split_namespace

_STATUS_STYLES = {OK: "green", WARN: "yellow", FAIL: "red"}


@command("holdfast doctor", "holdfast doctor --url sqlite:////var/lib/app/runs.db --json")
@json_option("A JSON object: ok, checks (an array of objects: name, status, message, advice).")
@url_option
def doctor(as_json: bool, url: str | None) -> None:
    """Check the machine and the store.

    Each check says whether all is well, and what to do if not; one lists the model providers that can be called from
    here. It changes nothing, and shows no key. Exits with 1 if a check fails.
    """
    results = list(_diagnose(url))
    is_ok = all(result.status != FAIL for result in results)
    if as_json:
        print_json({"ok": is_ok, "checks": [asdict(result) for result in results]})
    else:
        _print_results(create_console(), results)
    sys.exit(0 if is_ok else 1)


def _print_results(out: Console, results: Sequence[CheckResult]) -> None:
    table = Table.grid(padding=(0, 2))
    for check in results:
        message = Text(to_one_line(check.message))
        if check.advice:
            message.append(f"\n→ {to_one_line(check.advice)}", "dim")
        table.add_row(Text(check.status, _STATUS_STYLES[check.status]), check.name, message)
    out.print(table, soft_wrap=False)


def _diagnose(url: str | None) -> Iterator[CheckResult]:
    yield ok("python", f"{platform.python_implementation()} {platform.python_version()}")
    yield ok("holdfast", f"{__version__}, with SQLite {sqlite3.sqlite_version}")
    if found := find_foreign_distribution():
        yield warn("distribution", describe_clash(found), REINSTALL_HINT)
    yield _diagnose_models()
    yield _diagnose_mcp()
    try:
        yield _diagnose_store_url(url)
        if is_server_url(url):
            from holdfast.cli.doctor.server import diagnose_server

            yield from diagnose_server(url)
            return
        store = create_store(resolve_store_url(url))
    except HoldfastError as error:
        yield fail("store", str(error))
        return
    yield _diagnose_encryption(store)
    yield from _diagnose_store(url, unwrap_store(store))


def _diagnose_store(url: str | None, store: Store) -> Iterator[CheckResult]:
    """Check the store; only the module for its kind is imported."""
    if isinstance(store, MemoryStore):
        yield warn("store", "memory:// keeps runs only as long as the process lives", "use a sqlite:/// URL")
    elif isinstance(store, SqliteStore):
        from holdfast.cli.doctor.sqlite import diagnose_sqlite

        yield from diagnose_sqlite(url, store)
    elif is_temporal(resolve_store_url(url)):
        from holdfast.cli.doctor.temporal import diagnose_temporal

        yield from diagnose_temporal(url)
    else:
        from holdfast.cli.doctor.postgres import diagnose_postgres

        yield from diagnose_postgres(url, store)


def _diagnose_models() -> CheckResult:
    known = list_installed_providers()
    if known:
        return ok("models", f"packages for {', '.join(known)}")
    advice = (
        "an agent needs one of its model's provider: pip install 'holdfast-agents[openai]', or [anthropic], [google]…"
    )
    return ok("models", "no provider's package is installed", advice)


def _diagnose_mcp() -> CheckResult:
    found = get_mcp_version()
    if found is not None:
        return ok("mcp", f"the package for MCP servers is installed ({found})")
    return ok(
        "mcp",
        "the package for MCP servers is not installed",
        "to use their tools: pip install 'holdfast-agents[mcp]'",
    )


def _diagnose_encryption(store: Store) -> CheckResult:
    if not isinstance(store, EncryptedStore):
        return ok("encryption", f"off: {KEYS_VARIABLE} is not set")
    assert isinstance(store.encryption, AesEncryption)  # only the environment configures it here
    first, *others = store.encryption.key_ids
    also = f", and key {', '.join(others)} can be read" if others else ""
    return ok("encryption", f"what is recorded is sealed with key {first}{also}")


def _diagnose_store_url(url: str | None) -> CheckResult:
    place = split_namespace(url)[0] if url else None
    is_given = place is not None and place != split_namespace(resolve_store_url())[0]
    source = "--url" if is_given else "HOLDFAST_URL" if os.environ.get("HOLDFAST_URL") else "the default in this folder"
    return ok("store url", f"{redact_url(resolve_store_url(url))} (from {source})")
