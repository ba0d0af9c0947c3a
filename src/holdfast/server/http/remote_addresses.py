"""Where requests come from, by their network addresses.

**Local requests.** As long as there are no keys, programs of the same user on this machine have full access. A proxy on
this machine forwards requests of others, who must not have it, and may not say so: nginx with a bare ``proxy_pass
http://127.0.0.1:7100`` adds no header and even replaces ``Host``. So a request counts as local only if:

- it comes from a loopback address, and is for a loopback name;
- it has none of the headers that proxies add, and is not HTTP/1.0, which old proxies use and other programs do not;
- ``Origin`` and ``Referer``, if a browser sends them, name this server;
- on Linux, where the system provides it, the connection belongs to the user that the server runs as, or to root. A
  proxy usually runs as its own user.

A proxy of the same user that leaves no trace cannot be recognized, so the docs ask for a key before a proxy.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from holdfast.server.http.request import Request
from holdfast.server.http.socket_owner import SocketAddress, find_socket_owner

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_PROXY_HEADERS = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-original-host"}
)
"""Headers that proxies add, besides all that begin with ``x-forwarded-``."""
SOCKET_OWNERS = "holdfast.owners"
"""Where the state of a request caches the owner of its connection."""


def is_local_request(request: Request) -> bool:
    """Whether a program of the same user on this machine sent it directly, as far as the server can tell."""
    headers = request.headers
    host = headers.get("host", "")
    return (
        is_loopback(request.remote_address)
        and _is_local_host(parse_host_name(host))
        and not _has_proxy_header(headers)
        and request.scope.get("http_version") != "1.0"
        and all(is_same_origin(url, host) for url in (*headers.get_all("origin"), *headers.get_all("referer")))
        and _get_socket_owner(request.scope) in _TRUSTED_USERS
    )


def _has_proxy_header(headers: Iterable[str]) -> bool:
    return not _PROXY_HEADERS.isdisjoint(headers) or "\nx-forwarded-" in "\n".join(["", *headers])


def is_same_origin(url: str, host: str) -> bool:
    """Whether the URL of an ``Origin`` or ``Referer`` header is for the ``Host`` of the request."""
    try:
        netloc = urlsplit(url).netloc.lower()
    except ValueError:
        return False
    return bool(netloc) and netloc == host.strip().lower()


def _is_local_host(host: str) -> bool:
    return host in LOCAL_HOSTS or is_loopback(host.strip("[]"))


@lru_cache(1024)
def parse_host_name(host: str) -> str:
    """The name in a ``Host`` header, without the port."""
    host = host.strip().lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


# The owner of a connection


def _get_socket_owner(scope: Mapping[str, Any]) -> int | None:
    """The user id that owns the client's end of the connection; ``None`` if it is unknown."""
    known: dict[Any, int | None] = scope.get("state", {}).get(SOCKET_OWNERS, {})
    ends = (scope.get("client"), scope.get("server"))
    if ends not in known:
        client, server = map(_parse_socket_address, ends)
        known[ends] = None if client is None or server is None else find_socket_owner(client, server)
    return known[ends]


def _parse_socket_address(end: tuple[str, int | None] | None) -> SocketAddress | None:
    address = None if end is None else _parse_address(end[0])
    return None if end is None or end[1] is None or address is None else (address, end[1])


_TRUSTED_USERS = (None, 0, os.geteuid() if hasattr(os, "geteuid") else None)


@lru_cache(1024)
def is_loopback(address: str) -> bool:
    """Whether a network address can only be reached from this machine."""
    found = _parse_address(address)
    return found is not None and found.is_loopback


@lru_cache(1024)
def get_network(address: str) -> str:
    """The network that an address counts for: itself, or its /64 for IPv6, where each client has many addresses."""
    found = _parse_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return address if found is None else str(found)


@lru_cache(1024)
def _parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
