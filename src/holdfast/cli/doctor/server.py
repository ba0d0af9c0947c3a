"""What ``doctor`` tells of a Holdfast server: whether it answers, whom it takes us for, and whether clocks agree."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check
from holdfast.cli.doctor.workload import work_checks
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import duration
from holdfast.cli.store_access import PATIENCE, server_backend
from holdfast.client.http.backend import ServerInfo
from holdfast.client.http.server_endpoint import is_here
from holdfast.errors import HoldfastError, Unauthenticated
from holdfast.installation import __version__

_SKEW = 2.0
"""Seconds that two clocks may differ before somebody should look."""

_MAY = {
    "read": "look at runs",
    "submit": "start runs and send",
    "operate": "look at runs and change them",
    "admin": "do everything but listen",
}


def server_checks(url: str | None) -> Iterator[Check]:
    """Whether the server can be used, and what for; and if it can, what it tells of the work there."""
    found = in_loop(_checks(url))
    yield from found
    if all(check.status != FAIL for check in found):
        yield from work_checks(url)


async def _checks(url: str | None) -> list[Check]:
    try:
        backend = server_backend(url)
    except HoldfastError as error:
        return [Check("server", FAIL, str(error))]
    try:
        await backend.open(PATIENCE)
        began, at = time.perf_counter(), time.time()
        told = await backend.about()
        took = time.perf_counter() - began
    except Unauthenticated as error:
        return [
            _tls(backend.url),
            Check("key", FAIL, str(error), "`holdfast keys create` makes one, where its store is"),
        ]
    except HoldfastError as error:
        return [Check("server", FAIL, str(error), "is `holdfast serve` running there, and is the address right?")]
    finally:
        await backend.close()
    return [
        _version(told, backend.url, took),
        _tls(backend.url),
        _key(told),
        Check("namespace", OK, f"{told.namespace}: what the server tells is of this one"),
        _clock(told.now.timestamp() - (at + took / 2), took),
    ]


def _version(told: ServerInfo, url: str, took: float) -> Check:
    message = f"Holdfast {told.version} at {url}, {duration(took / 2)} away"
    if told.version == __version__:
        return Check("server", OK, message)
    advice = f"this is {__version__}: install the same version here and there if something cannot be read"
    return Check("server", WARN, message, advice)


def _tls(url: str) -> Check:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return Check("tls", OK, "what is sent is encrypted, and the certificate is trusted")
    if is_here(parts.hostname or ""):
        return Check("tls", OK, "off: the server is on this machine")
    advice = "serve it with --tls-cert, or behind a proxy that speaks HTTPS"
    return Check("tls", WARN, "off: whoever stands between can read what is sent, and the key", advice)


def _key(told: ServerInfo) -> Check:
    if told.key is None:
        advice = "`holdfast keys create` makes one; from then on the server asks for it"
        return Check("key", OK, "none is needed: the server knows no key, and serves its own machine alone", advice)
    able = [words for scope, words in _MAY.items() if scope in told.scopes]
    able += [f"listen on {scope.partition(':')[2]}" for scope in told.scopes if scope.startswith("listen:")]
    message = f"{told.key} ({told.name!r}), scopes {', '.join(told.scopes)}: may {', '.join(able)}"
    if {"read", "operate", "admin"} & set(told.scopes):
        return Check("key", OK, message)
    return Check("key", WARN, message, "it may not read: most commands need a key with --scope read")


def _clock(skew: float, took: float) -> Check:
    # The answer may have been made at any moment while it was waited for.
    if abs(skew) <= _SKEW + took:
        return Check("clock", OK, "agrees with that of the server")
    ahead = "ahead of" if skew < 0 else "behind"
    message = f"{duration(abs(skew))} {ahead} that of the server"
    return Check("clock", WARN, message, "let both be set by NTP: times that are told here are off by that much")
