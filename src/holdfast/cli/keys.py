"""``holdfast keys``: API keys of a database, for all its namespaces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, clock_time, echo_json, iso, one_line, printable, tell_error
from holdfast.cli.outcomes import error_as_json
from holdfast.cli.store_access import existing, reached
from holdfast.cli.tables import print_table
from holdfast.client.backend_factory import is_server
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import Key, MadeKey
from holdfast.stores.contract import DEFAULT_NAMESPACE
from holdfast.stores.urls import split_namespace, store_url


def make_key(
    url: str | None, name: str, scopes: Sequence[str], expires: datetime | None, *, quiet: bool, as_json: bool
) -> None:
    """Make a key, and print it."""
    key = in_loop(_make(url, name, scopes, expires))
    if quiet:
        print(key.token)
        return
    if as_json:
        print(json.dumps({**_as_json(key), "token": key.token}))
        return
    # What is said goes beside the key, so that the key alone can be piped.
    until = "and does not expire" if key.expires_at is None else f"until {clock_time(key.expires_at.timestamp())}"
    click.echo(
        f"key {key.id} ({printable(key.name)!r}) for namespace {key.namespace}: {', '.join(key.scopes)}, {until}",
        err=True,
    )
    print(key.token)
    click.echo("Keep it: it is shown this once. Send it as the header `Authorization: Bearer …`.", err=True)


async def _make(url: str | None, name: str, scopes: Sequence[str], expires: datetime | None) -> MadeKey:
    if is_server(url):
        async with reached(url) as client:
            return await client.keys.create(name, scopes, expires_at=expires)
    existing(url)  # it refuses what lives in this process alone
    client = Client(store_url(url))
    try:  # the database is created if need be: a key may be the first thing that there is
        return await client.keys.create(name, scopes, expires_at=expires)
    finally:
        await client.close()


def show_keys(url: str | None, namespace: str | None, *, as_json: bool) -> None:
    """Print all keys, or those of a namespace."""
    found = in_loop(_read(url, namespace))
    if as_json:
        echo_json([_as_json(key) for key in found])
        return
    if not found:
        print("no key was made yet: `holdfast keys create NAME --scope read` makes one")
        return
    now = time.time()
    head = ("id", "name", "namespace", "scopes", "made", "state")
    rows = [
        (
            one_line(key.id),
            one_line(key.name, 30),
            key.namespace,
            one_line(", ".join(key.scopes)),
            ago(now - key.created_at.timestamp()),
            _state(key, now),
        )
        for key in found
    ]
    print_table(head, rows)


def _state(key: Key, now: float) -> str:
    if key.revoked_at is not None:
        return f"revoked {ago(now - key.revoked_at.timestamp())}"
    if key.expires_at is None:
        return "valid"
    at = key.expires_at.timestamp()
    return f"expires {ago(now - at)}" if now < at else f"expired {ago(now - at)}"


def revoke_keys(url: str | None, ids: Sequence[str], *, as_json: bool) -> int:
    """Revoke keys, and tell of each whether it was still valid; 1 if there is one that could not be revoked."""
    told = in_loop(_revoke(url, ids))
    for id, changed, error in told:
        if as_json:
            print(json.dumps({"id": id, "changed": changed, "error": error_as_json(error)}))
        elif error is not None:
            tell_error(str(error))
        else:
            how = "is revoked: servers heed it within two seconds" if changed else "was revoked before: nothing changed"
            print(printable(f"key {id} {how}"))
    return 1 if any(error is not None for _, _, error in told) else 0


async def _read(url: str | None, namespace: str | None) -> list[Key]:
    async with reached(_home(url)) as client:
        return await client.keys.list(namespace)


async def _revoke(url: str | None, ids: Sequence[str]) -> list[tuple[str, bool, HoldfastError | None]]:
    """Each of them: one that is not known must not keep the others valid."""
    told: list[tuple[str, bool, HoldfastError | None]] = []
    async with reached(_home(url)) as client:
        for id in ids:
            try:
                told.append((id, await client.keys.revoke(id), None))
            except HoldfastError as error:
                told.append((id, False, error))
    return told


def _home(url: str | None) -> str | None:
    """Where keys are, whichever namespace the URL names."""
    return url if is_server(url) else store_url(split_namespace(store_url(url))[0], DEFAULT_NAMESPACE)


def _as_json(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "namespace": key.namespace,
        "scopes": list(key.scopes),
        "created_at": iso(key.created_at.timestamp()),
        "created_by": key.created_by or None,
        "expires_at": None if key.expires_at is None else iso(key.expires_at.timestamp()),
        "revoked_at": None if key.revoked_at is None else iso(key.revoked_at.timestamp()),
    }
