"""``holdfast keys``: API keys of a database, for all its namespaces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    format_ago,
    format_iso,
    format_local_time,
    make_printable,
    print_error,
    print_json,
    to_one_line,
)
from holdfast.cli.outcomes import error_to_json
from holdfast.cli.store_access import open_client, resolve_store
from holdfast.cli.tables import print_table
from holdfast.client.client import Client
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.urls import resolve_store_url, split_namespace


def create_key(
    url: str | None, name: str, scopes: Sequence[str], expires_at: datetime | None, *, quiet: bool, as_json: bool
) -> None:
    """Make a key, and print it."""
    key = run_in_loop(_create_key(url, name, scopes, expires_at))
    if quiet:
        print(key.token)
        return
    if as_json:
        print(json.dumps({**_key_to_json(key), "token": key.token}))
        return
    # What is said goes beside the key, so that the key alone can be piped.
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
    if is_server_url(url):
        async with open_client(url) as client:
            return await client.keys.create(name, scopes, expires_at=expires_at)
    resolve_store(url)  # it refuses what lives in this process alone
    client = Client(resolve_store_url(url))
    try:  # the database is created if need be: a key may be the first thing that there is
        return await client.keys.create(name, scopes, expires_at=expires_at)
    finally:
        await client.close()


def show_keys(url: str | None, namespace: str | None, *, as_json: bool) -> None:
    """Print all keys, or those of a namespace."""
    found = run_in_loop(_fetch_keys(url, namespace))
    if as_json:
        print_json([_key_to_json(key) for key in found])
        return
    if not found:
        print("no key was made yet: `holdfast keys create NAME --scope read` makes one")
        return
    now = time.time()
    head = ("id", "name", "namespace", "scopes", "made", "state")
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
    print_table(head, rows)


def _format_state(key: ApiKey, now: float) -> str:
    if key.revoked_at is not None:
        return f"revoked {format_ago(now - key.revoked_at.timestamp())}"
    if key.expires_at is None:
        return "valid"
    at = key.expires_at.timestamp()
    return f"expires {format_ago(now - at)}" if now < at else f"expired {format_ago(now - at)}"


def revoke_keys(url: str | None, ids: Sequence[str], *, as_json: bool) -> int:
    """Revoke keys, and tell of each whether it was still valid; 1 if there is one that could not be revoked."""
    told = run_in_loop(_revoke_each(url, ids))
    for id, changed, error in told:
        if as_json:
            print(json.dumps({"id": id, "changed": changed, "error": error_to_json(error)}))
        elif error is not None:
            print_error(str(error))
        else:
            how = "is revoked: servers heed it within two seconds" if changed else "was revoked before: nothing changed"
            print(make_printable(f"key {id} {how}"))
    return 1 if any(error is not None for _, _, error in told) else 0


async def _fetch_keys(url: str | None, namespace: str | None) -> list[ApiKey]:
    async with open_client(_get_key_store_url(url)) as client:
        return await client.keys.list(namespace)


async def _revoke_each(url: str | None, ids: Sequence[str]) -> list[tuple[str, bool, HoldfastError | None]]:
    """Each of them: one that is not known must not keep the others valid."""
    told: list[tuple[str, bool, HoldfastError | None]] = []
    async with open_client(_get_key_store_url(url)) as client:
        for id in ids:
            try:
                told.append((id, await client.keys.revoke(id), None))
            except HoldfastError as error:
                told.append((id, False, error))
    return told


def _get_key_store_url(url: str | None) -> str | None:
    """Where keys are, whichever namespace the URL names."""
    return (
        url if is_server_url(url) else resolve_store_url(split_namespace(resolve_store_url(url))[0], DEFAULT_NAMESPACE)
    )


def _key_to_json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "namespace": key.namespace,
        "scopes": list(key.scopes),
        "created_at": format_iso(key.created_at.timestamp()),
        "created_by": key.created_by or None,
        "expires_at": None if key.expires_at is None else format_iso(key.expires_at.timestamp()),
        "revoked_at": None if key.revoked_at is None else format_iso(key.revoked_at.timestamp()),
    }
