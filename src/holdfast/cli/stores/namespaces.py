"""``holdfast namespaces``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import print_json
from holdfast.cli.shared.options import command, database_option, json_option, store_only_option
from holdfast.cli.shared.store_access import is_existing_file, resolve_store
from holdfast.errors import StoreError
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.encrypted import unwrap_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.inspection import is_holdfast_file, read_facts
from holdfast.stores.urls import is_temporal, split_namespace


@command("holdfast namespaces", "holdfast namespaces --json")
@json_option("A JSON array of names.")
@store_only_option(
    "a server knows by the key whose runs are meant, and `holdfast doctor` tells which namespace that is.",
    database_option,
)
def namespaces(as_json: bool, url: str | None) -> None:
    """List the namespaces of a database, the default one first.

    If several programs or tenants share a database, each has a namespace, and sees nothing of the others: see the
    option `--namespace` of other commands.
    """
    store, target = resolve_store(url)
    if isinstance(unwrap_store(store), SqliteStore):
        base = get_base_path(store)
        found = list_sqlite_namespaces(base)
        if not found and is_existing_file(base):
            read_facts(base)  # raises what is wrong with it, if it cannot be read
    elif is_temporal(target):
        found = run_in_loop(_list_temporal_namespaces(target))
    else:
        from holdfast.stores.postgres.inspection import fetch_namespaces

        found = fetch_namespaces(target)
    if as_json:
        print_json(found)
    elif found:
        click.echo("\n".join(found))
    else:
        click.echo(f"none yet in {split_namespace(store.url)[0]}", err=True)


def get_base_path(store: Store) -> Path:
    """The file of the default namespace of a SQLite store. The others are next to it."""
    return Path(split_namespace(store.url)[0].removeprefix("sqlite:///"))


async def _list_temporal_namespaces(url: str) -> list[str]:
    """The namespaces that we may see, without the server's own."""
    from temporalio.api.workflowservice.v1 import ListNamespacesRequest

    from holdfast.stores.temporal.connection import connect
    from holdfast.stores.temporal.errors import translate_errors
    from holdfast.stores.temporal.targets import parse_target

    target = parse_target(url)
    client = await connect(target)
    with translate_errors(target):
        response = await client.workflow_service.list_namespaces(ListNamespacesRequest(page_size=1000))
    return sorted(
        one.namespace_info.name for one in response.namespaces if one.namespace_info.name != "temporal-system"
    )


def list_sqlite_namespaces(base: Path) -> list[str]:
    """The namespaces of the database at ``base``, by its files."""
    form = re.compile(rf"{re.escape(base.stem)}\.([a-z0-9][a-z0-9_]{{0,40}}){re.escape(base.suffix)}")
    names = {form.fullmatch(path.name): path for path in base.parent.glob("*")}
    found = sorted(match[1] for match, path in names.items() if match is not None and _is_database(path))
    return [*([DEFAULT_NAMESPACE] if _is_database(base) else []), *found]


def _is_database(path: Path) -> bool:
    try:
        return path.is_file() and is_holdfast_file(read_facts(path))
    except (StoreError, PermissionError):
        return False
