"""Checks of a Holdfast server: whether it answers, which key it sees, and whether the clocks agree."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from holdfast.cli.doctor.checks import FAIL, CheckResult, fail, ok, warn
from holdfast.cli.doctor.workload import diagnose_workload
from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_duration
from holdfast.cli.shared.store_access import OPEN_TIMEOUT_S
from holdfast.client.http.client import HttpClient, ServerInfo
from holdfast.client.http.server_endpoint import is_loopback
from holdfast.errors import HoldfastError, Unauthenticated
from holdfast.installation import __version__

_MAX_CLOCK_SKEW_S = 2.0
"""The difference between two clocks from which there is a warning."""

_SCOPE_DESCRIPTIONS = {
    "read": "look at runs",
    "submit": "start runs and send",
    "operate": "look at runs and change them",
    "admin": "do everything but listen",
}


def diagnose_server(url: str | None) -> Iterator[CheckResult]:
    """Check the server; and if nothing fails, the work in its store."""
    found = run_in_loop(_diagnose(url))
    yield from found
    if all(check.status != FAIL for check in found):
        yield from diagnose_workload(url)


async def _diagnose(url: str | None) -> list[CheckResult]:
    try:
        client = HttpClient(url)
    except HoldfastError as error:
        return [fail("server", str(error))]
    try:
        await client.open(OPEN_TIMEOUT_S)
        began, at = time.perf_counter(), time.time()
        info = await client.get_server_info()
        took = time.perf_counter() - began
    except Unauthenticated as error:
        return [
            _diagnose_tls(client.url),
            fail("key", str(error), "`holdfast keys create` makes one, where its store is"),
        ]
    except HoldfastError as error:
        return [fail("server", str(error), "is `holdfast serve` running there, and is the address right?")]
    finally:
        await client.close()
    return [
        _diagnose_version(info, client.url, took),
        _diagnose_tls(client.url),
        _diagnose_key(info),
        ok("namespace", f"{info.namespace}: the server reports about this one"),
        _diagnose_clock(info.now.timestamp() - (at + took / 2), took),
    ]


def _diagnose_version(info: ServerInfo, url: str, round_trip_s: float) -> CheckResult:
    message = f"Holdfast {info.version} at {url}, {format_duration(round_trip_s / 2)} away"
    if info.version == __version__:
        return ok("server", message)
    advice = f"this is {__version__}: install the same version here and there if something cannot be read"
    return warn("server", message, advice)


def _diagnose_tls(url: str) -> CheckResult:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return ok("tls", "what is sent is encrypted, and the certificate is trusted")
    if is_loopback(parts.hostname or ""):
        return ok("tls", "off: the server is on this machine")
    advice = "serve it with --tls-cert, or behind a proxy that speaks HTTPS"
    return warn("tls", "off: the traffic, and the key, can be read on the way", advice)


def _diagnose_key(info: ServerInfo) -> CheckResult:
    if info.key_id is None:
        advice = "`holdfast keys create` makes one; from then on the server asks for it"
        return ok("key", "none is needed: the server knows no key, and serves its own machine alone", advice)
    able = [words for scope, words in _SCOPE_DESCRIPTIONS.items() if scope in info.scopes]
    able += [f"listen on {scope.partition(':')[2]}" for scope in info.scopes if scope.startswith("listen:")]
    message = f"{info.key_id} ({info.key_name!r}), scopes {', '.join(info.scopes)}: may {', '.join(able)}"
    if {"read", "operate", "admin"} & set(info.scopes):
        return ok("key", message)
    return warn("key", message, "it may not read: most commands need a key with --scope read")


def _diagnose_clock(skew_s: float, round_trip_s: float) -> CheckResult:
    # The server read its clock at some time during the round trip.
    if abs(skew_s) <= _MAX_CLOCK_SKEW_S + round_trip_s:
        return ok("clock", "agrees with that of the server")
    ahead = "ahead of" if skew_s < 0 else "behind"
    message = f"{format_duration(abs(skew_s))} {ahead} that of the server"
    return warn("clock", message, "let both be set by NTP: times shown here are off by that much")
