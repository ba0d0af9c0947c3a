"""Where webhooks may be sent to.

Whoever may set a webhook makes this server send requests, from inside the network that it runs in. So a webhook goes to
public addresses only, over TLS, unless whoever runs the server has named its host. What a name leads to is looked up
here, all that it leads to must be public, and the connection is then made to what was looked up (``http_client``): a
second lookup could tell something else. That holds when a webhook is set, and again for each request and each redirect.

Hosts are read by the very parser that makes the request, so that no two disagree about what a URL says. Numbers that
old resolvers take for addresses (``2130706433``, ``0x7f.1``) are refused by their form. What is told of a host that is
refused does not contain the address, since that may be a secret of the network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import httpx2

from holdfast.errors import UsageError

log = logging.getLogger("holdfast.server")

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the network addresses of a host name, for a port."""

MAX_URL_CHARS = 2000
"""Characters of a URL."""
LOOKUP_TIMEOUT_S = 10.0
_LOOKUP_EXECUTOR = ThreadPoolExecutor(16, thread_name_prefix="webhook-lookup")
"""Lookups cannot be broken off: names that take long must hold up nothing but other names."""
DEFAULT_PORTS = {"http": 80, "https": 443}

_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""A last part of a host that makes old resolvers take the whole for an IPv4 address."""

_NON_PUBLIC_V4 = [
    ipaddress.IPv4Network(one)
    for one in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address by which one cloud's machines are told about themselves
        "169.254.0.0/16",  # link-local: the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and one cloud's metadata
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
_GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is public is in here; loopback, private, link-local, multicast, mapped and translated addresses are not."""
_NON_PUBLIC_V6 = [
    ipaddress.IPv6Network(one)
    for one in (
        "2001::/23",  # protocol assignments, Teredo among them, which holds an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which holds an IPv4 address
        "3fff::/20",
    )
]


@dataclass(frozen=True, slots=True)
class Target:
    """A place that a webhook may be sent to, as far as its URL tells."""

    url: httpx2.URL
    host: str
    """The name, in ASCII and lower case, or the address."""
    port: int
    is_allowed: bool
    """Whoever runs the server has named it."""

    @property
    def host_header(self) -> str:
        """The host and the port, as the request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.url.scheme] else f"{host}:{self.port}"


class TargetPolicy:
    """Says where webhooks may be sent to."""

    def __init__(self, allowed: Collection[str] = (), resolver: Resolver | None = None) -> None:
        self._allowed = {_parse_allowed_host(one) for one in allowed}
        self._resolver = resolver or resolve_host

    async def validate_target(self, url: str) -> Target:
        """A place that a webhook may be sent to at the moment. Raises ``UsageError``."""
        target = self.parse_target(url)
        await self.resolve_addresses(target)
        return target

    def parse_target(self, url: str) -> Target:
        """A place that a webhook may be sent to, as far as its URL tells. Raises ``UsageError``."""
        if len(url) > MAX_URL_CHARS or not url.isprintable() or "\\" in url or " " in url:
            raise _refused_error(
                url, f"it must have at most {MAX_URL_CHARS} printable characters, without blanks or backslashes"
            )
        try:
            parsed = httpx2.URL(url)
            host = parsed.raw_host.decode("ascii").lower().removeprefix("[").removesuffix("]").removesuffix(".")
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise _refused_error(url, f"it cannot be read: {error}") from None
        if parsed.scheme not in DEFAULT_PORTS or not host:
            raise _refused_error(url, "it must begin with https:// and the name of a host")
        if parsed.userinfo:
            raise _refused_error(url, "it must have no user name or password: requests are signed instead")
        if parsed.fragment:
            raise _refused_error(url, "it must have no fragment (#…): that is never sent")
        port = DEFAULT_PORTS[parsed.scheme] if parsed.port is None else parsed.port
        if not 0 < port < 65536:
            raise _refused_error(url, f"there is no port {port}")
        _check_host_syntax(url, host)
        is_allowed = bool({(host, None), (host, port)} & self._allowed)
        if parsed.scheme == "http" and not is_allowed:
            raise _refused_error(
                url,
                f"it must be https, unless the server is told to trust the way to {host!r}: "
                f"{_format_allow_option(host)}",
            )
        return Target(parsed, host, port, is_allowed)

    async def resolve_addresses(self, target: Target) -> list[str]:
        """The addresses to connect to, the best first. Raises ``UsageError`` if any of them is not public."""
        found = await self._look_up(target)
        if not target.is_allowed:
            hidden = [one for one in found if not is_public(one)]
            if hidden:
                log.warning("webhook refused: %s leads to %s, which is not public", target.host, ", ".join(hidden))
                raise _refused_error(
                    str(target.url),
                    f"{target.host!r} leads to an address that is not public. If that is meant, whoever runs the "
                    f"server can allow it: {_format_allow_option(target.host)}",
                )
        return found

    async def _look_up(self, target: Target) -> list[str]:
        if _parse_address(target.host) is not None:
            return [target.host]
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                found = await self._resolver(target.host, target.port)
        except (OSError, UnicodeError, TimeoutError):
            found = []
        if not found:
            raise _refused_error(str(target.url), f"the host {target.host!r} cannot be found")
        return list(dict.fromkeys(found))


async def resolve_host(host: str, port: int) -> list[str]:
    """What the system says about a name."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUP_EXECUTOR, look_up)
    return [str(one[4][0]) for one in found]


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet, and to nothing nearer."""
    found = _parse_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NON_PUBLIC_V4)
    # With a zone (`fe80::1%eth0`) an address is meant for a link, whatever it is.
    return (
        found is not None
        and found.scope_id is None
        and found in _GLOBAL_UNICAST_V6
        and not any(found in network for network in _NON_PUBLIC_V6)
    )


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _check_host_syntax(url: str, host: str) -> None:
    if _parse_address(host) is not None:
        if "%" in host:
            raise _refused_error(url, "an address must not name a link (%…)")
        return
    if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        raise _refused_error(
            url, f"{host!r} is no name, and no address as it is usually written (four numbers up to 255)"
        )
    if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", host) or ".." in host:
        raise _refused_error(url, f"{host!r} is no name of a host")


def _parse_allowed_host(allowed: str) -> tuple[str, int | None]:
    """What was allowed: ``host`` (every port), ``host:port``; an IPv6 address with a port has brackets."""
    text = allowed.strip().lower()
    if _parse_address(text) is not None:
        return text, None
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]").removesuffix(".")
    if not host or (port and not (port.isascii() and port.isdigit())) or (colon and not port and "]" not in text):
        raise UsageError(f"webhooks cannot be allowed to {allowed!r}: name a host, or a host and a port (host:8080)")
    if not host.isascii():
        host = httpx2.URL(f"https://{host}").raw_host.decode("ascii")
    return host, int(port) if port else None


def _format_allow_option(host: str) -> str:
    return f"`holdfast serve --allow-webhook-to {host}`"


def _refused_error(url: str, reason: str) -> UsageError:
    return UsageError(f"nothing can be sent to the webhook {redact_url(url)!r}: {reason}")


def redact_url(url: str) -> str:
    """A URL as it may stand in messages: without what may be a password, and not too long."""
    return re.sub(r"//[^/?#]*@", "//…@", re.sub(r"\?.*", "?…", url))[:200]


def get_host(url: str) -> str:
    """The host of a URL that was checked before, for people to read."""
    try:
        return httpx2.URL(url).host
    except httpx2.InvalidURL:
        return ""
