"""Where requests come from, by their network addresses."""

from __future__ import annotations

import ipaddress

from starlette.requests import Request

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of those who pass requests on."""


def remote_of(request: Request) -> str:
    """The address that it comes from; ``""`` if there is none."""
    return request.client.host if request.client is not None else ""


def is_local(request: Request) -> bool:
    """Whether it comes from this machine, and was not passed on by somebody here for somebody else."""
    return is_loopback(remote_of(request)) and not any(name in request.headers for name in _FORWARDED)


def is_loopback(address: str) -> bool:
    """Whether a network address can only be reached from this machine."""
    found = _plain(address)
    return found is not None and found.is_loopback


def network_of(address: str) -> str:
    """Whom an address counts for: itself, or its network if it is IPv6, where everybody has any number of them."""
    found = _plain(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return address if found is None else str(found)


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
