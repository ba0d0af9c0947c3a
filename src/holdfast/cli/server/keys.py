"""``holdfast keys``: the API keys of a database, for all its namespaces."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import (
    format_ago,
    format_local_time,
    make_printable,
    print_error,
    to_one_line,
)
from holdfast.cli.shared.group import CommandGroup
from holdfast.cli.shared.options import database_option, format_example, json_option, url_option
from holdfast.cli.shared.outcomes import error_to_json
from holdfast.cli.shared.parsing import parse_future_datetime
from holdfast.cli.shared.store_access import open_client, resolve_store, run_client
from holdfast.cli.shared.tables import print_listing
from holdfast.client.client import Client
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.json_form import to_json
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.urls import resolve_store_url, split_namespace


@click.group(
    cls=CommandGroup,
    epilog=format_example(
        "holdfast keys create ci --scope submit --scope read --expires 90d",
        "holdfast keys create pipeline --scope listen:data-pipeline --namespace acme",
        "holdfast keys list",
        "holdfast keys revoke 3f2a90c1d4e7",
    ),
)
def keys() -> None:
    """Create, list, and revoke API keys for `holdfast serve`.

    A key belongs to a namespace and may do what its scopes allow: `read` reads, `submit` starts runs and sends,
    `operate` changes other runs, schedules, and queues, and answers approvals, `admin` does all of that and manages
    keys, and `listen:ADDRESS` receives the deliveries of an address (`listen:*`: of all).
    """


@keys.command(epilog=format_example("holdfast keys create ci --scope submit --scope read --expires 90d"))
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="read, submit, operate, admin, listen:ADDRESS, or listen:*; may be repeated.",
)
@click.option(
    "--expires",
    "expires_at",
    type=parse_future_datetime,
    metavar="WHEN",
    help="When it expires, such as 30d or 2027-01-31. Default: never.",
)
@click.option("--quiet", is_flag=True, help="Print only the key.")
@json_option("A JSON object, as from `POST /v1/keys`, with the token.")
@url_option
def create(
    name: str, scopes: tuple[str, ...], expires_at: datetime | None, quiet: bool, as_json: bool, url: str | None
) -> None:
    """Create a key, and show it once: only a hash of it is stored.

    From the first key on, every request to a server over the same database needs one.
    """
    if quiet and as_json:
        raise click.UsageError("--quiet and --json are two ways to print it: give one of them.")
    key = run_in_loop(_create_key(url, name, scopes, expires_at))
    if quiet:
        print(key.token)
        return
    if as_json:
        print(json.dumps(to_json(key)))
        return
    # Everything else goes to stderr, so that the key alone can be piped.
    until = (
        "and does not expire" if key.expires_at is None else f"until {format_local_time(key.expires_at.timestamp())}"
    )
    click.echo(
        f"key {key.id} ({make_printable(key.name)!r}) for namespace {key.namespace}: {', '.join(key.scopes)}, {until}",
        err=True,
    )
    print(key.token)
    click.echo("Keep it: it is shown this once. Send it as the header `Authorization: Bearer …`.", err=True)


async def _create_key(url: str | None, name: str, scopes: Sequence[str], expires_at: datetime | None) -> CreatedApiKey:
    if not is_server_url(url):
        _, url = resolve_store(url)  # it refuses a store that exists in this process only
    # The database is created if needed, because a key may be the first thing in it.
    async with open_client(url) if is_server_url(url) else Client(url) as client:
        return await client.keys.create(name, scopes, expires_at=expires_at)


@keys.command(name="list", epilog=format_example("holdfast keys list", "holdfast keys list --namespace acme --json"))
@json_option("A JSON array of keys, each as in `GET /v1/keys`.")
@click.option("--namespace", metavar="NAME", help="Only keys of this namespace. Default: all keys of the database.")
@database_option
def list_(as_json: bool, namespace: str | None, url: str | None) -> None:
    """List keys, including revoked and expired ones; never the secret."""
    found = run_client(_get_key_store_url(url), lambda client: client.keys.list(namespace))
    now = time.time()
    header = ("id", "name", "namespace", "scopes", "made", "state")
    rows = [
        (
            to_one_line(key.id),
            to_one_line(key.name, 30),
            key.namespace,
            to_one_line(", ".join(key.scopes)),
            format_ago(now - key.created_at.timestamp()),
            _format_state(key, now),
        )
        for key in found
    ]
    empty_text = "no key was made yet: `holdfast keys create NAME --scope read` makes one"
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text)


def _format_state(key: ApiKey, now: float) -> str:
    if key.revoked_at is not None:
        return f"revoked {format_ago(now - key.revoked_at.timestamp())}"
    if key.expires_at is None:
        return "valid"
    at = key.expires_at.timestamp()
    return f"expires {format_ago(now - at)}" if now < at else f"expired {format_ago(now - at)}"


@keys.command(epilog=format_example("holdfast keys revoke 3f2a90c1d4e7"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option("A JSON object for each key, one per line: id, changed, error.")
@database_option
def revoke(ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Revoke keys. Running servers stop accepting them within two seconds."""

    async def revoke_each(client: Client) -> list[tuple[str, bool, HoldfastError | None]]:
        outcomes: list[tuple[str, bool, HoldfastError | None]] = []
        for id in ids:
            try:
                outcomes.append((id, await client.keys.revoke(id), None))
            except HoldfastError as error:  # an unknown key must not keep the others valid
                outcomes.append((id, False, error))
        return outcomes

    outcomes = run_client(_get_key_store_url(url), revoke_each)
    for id, changed, error in outcomes:
        if as_json:
            print(json.dumps({"id": id, "changed": changed, "error": error_to_json(error)}))
        elif error is not None:
            print_error(str(error))
        else:
            how = (
                "is revoked: servers stop accepting it within two seconds"
                if changed
                else "was revoked before: nothing changed"
            )
            print(make_printable(f"key {id} {how}"))
    sys.exit(1 if any(error is not None for _, _, error in outcomes) else 0)


def _get_key_store_url(url: str | None) -> str | None:
    """The URL of the store that has the keys, whichever namespace the URL names."""
    return (
        url if is_server_url(url) else resolve_store_url(split_namespace(resolve_store_url(url))[0], DEFAULT_NAMESPACE)
    )
