"""Which backend a URL means: a store, or a Holdfast server. The one that is not used is not imported."""

from __future__ import annotations

import os
from functools import partial

from holdfast.client.backend import Backend
from holdfast.client.store_backend import StoreBackend
from holdfast.client.store_connections import LoopConnections
from holdfast.codec import Encryption
from holdfast.errors import UsageError
from holdfast.stores.urls import create_store, redact_url, resolve_store_url

_SERVER_SCHEMES = ("http://", "https://")


def is_server_url(url: str | None = None) -> bool:
    """Whether ``url``, or what ``HOLDFAST_URL`` says in its place, means a Holdfast server."""
    return (url or os.environ.get("HOLDFAST_URL") or "").lower().startswith(_SERVER_SCHEMES)


def raise_namespace_error(namespace: str, option: str) -> None:
    """A server is not told whose runs are meant. Raises ``UsageError``."""
    raise UsageError(
        f"{option}: a server knows by the key whose runs are meant. Use a key of that namespace: `holdfast keys create "
        f"NAME --namespace {namespace}`"
    )


def choose_backend(
    url: str | None,
    namespace: str | None,
    *,
    max_value: int,
    encryption: Encryption | None,
    api_key: str | None,
    insecure: bool,
) -> Backend:
    """The backend for what a ``Client`` was given, and for what the environment says beside it."""
    wanted = url or os.environ.get("HOLDFAST_URL") or ""
    if is_server_url(wanted):
        from holdfast.client.http.backend import HttpBackend
        from holdfast.client.http.server_endpoint import ServerEndpoint

        if namespace is not None:
            raise_namespace_error(namespace, f"Client(namespace={namespace!r})")
        if encryption is not None:
            raise UsageError(
                f"Client(encryption=...) is for a store, and {redact_url(wanted)} is a server, which seals what it "
                f"keeps with keys of its own: give it those with HOLDFAST_ENCRYPTION_KEYS where it runs"
            )
        key = api_key if api_key is not None else os.environ.get("HOLDFAST_API_KEY") or None
        may_be_read = insecure or os.environ.get("HOLDFAST_INSECURE", "") not in ("", "0")
        return HttpBackend(ServerEndpoint(wanted, key, insecure=may_be_read), max_value=max_value)
    if api_key is not None or insecure:
        word = "api_key" if api_key is not None else "insecure"
        where = redact_url(wanted) if wanted else "the default file"
        raise UsageError(f"Client({word}=...) is for a Holdfast server (https://...), and {where} is a store")
    target = resolve_store_url(url, namespace)
    opener = partial(create_store, encryption=encryption)
    return StoreBackend(LoopConnections(target, opener), target, max_value)
