"""``holdfast keys``: API keys of a database, for all its namespaces."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import click

from holdfast.cli.opening import existing, existing_store
from holdfast.cli.tables import print_table
from holdfast.cli.wording import ago, clock_time, echo_json, iso, one_line, printable
from holdfast.server.keys import Key, create_key, read_keys, revoke_key
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.urls import split_namespace, store_url


def make_key(
    url: str | None, name: str, scopes: Sequence[str], expires: datetime | None, *, quiet: bool, as_json: bool
) -> None:
    """Make a key, and print it."""
    key, token = asyncio.run(_make(url, name, scopes, expires))
    if quiet:
        print(token)
        return
    if as_json:
        print(json.dumps({**_as_json(key), "token": token}))
        return
    # What is said goes beside the key, so that the key alone can be piped.
    until = "and does not expire" if key.expires_at is None else f"until {clock_time(key.expires_at.timestamp())}"
    click.echo(
        f"key {key.id} ({printable(key.name)!r}) for namespace {key.namespace}: {', '.join(key.scopes)}, {until}",
        err=True,
    )
    print(token)
    click.echo("Keep it: it is shown this once. Send it as the header `Authorization: Bearer …`.", err=True)


async def _make(url: str | None, name: str, scopes: Sequence[str], expires: datetime | None) -> tuple[Key, str]:
    namespace = split_namespace(store_url(url))[1] or DEFAULT_NAMESPACE
    store, _ = existing(_home(url))
    await store.open()  # which creates it: a key may be the first thing that there is
    try:
        return await create_key(store, name, scopes, namespace, expires_at=expires, now=time.time())
    finally:
        await store.close()


def show_keys(url: str | None, namespace: str | None, *, as_json: bool) -> None:
    """Print all keys, or those of a namespace."""
    found = asyncio.run(_read(url, namespace))
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


def revoke_keys(url: str | None, ids: Sequence[str], *, as_json: bool) -> None:
    """Revoke keys, and tell of each whether it was still valid."""
    for id, changed in asyncio.run(_revoke(url, ids)):
        if as_json:
            print(json.dumps({"id": id, "changed": changed}))
        else:
            told = (
                "is revoked: servers heed it within two seconds" if changed else "was revoked before: nothing changed"
            )
            print(printable(f"key {id} {told}"))


async def _read(url: str | None, namespace: str | None) -> list[Key]:
    async with _existing_home(url) as store:
        return await read_keys(store, namespace)


async def _revoke(url: str | None, ids: Sequence[str]) -> list[tuple[str, bool]]:
    async with _existing_home(url) as store:
        return [(id, await revoke_key(store, id, time.time())) for id in ids]


@asynccontextmanager
async def _existing_home(url: str | None) -> AsyncGenerator[Store]:
    async with existing_store(_home(url)) as store:
        yield store


def _home(url: str | None) -> str:
    """Where keys are, whichever namespace the URL names."""
    return store_url(split_namespace(store_url(url))[0], DEFAULT_NAMESPACE)


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
