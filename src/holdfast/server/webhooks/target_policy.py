"""The targets that webhooks may be sent to.

A caller that sets a webhook makes this server send requests, from inside the server's network. So a webhook goes only
to public addresses, over TLS, unless the operator of the server has allowed its host. The policy resolves the host
name, all of its addresses must be public, and the client connects to one of these (``http_client``): a second lookup
could have another result. This applies when a webhook is set, and again to each request and each redirect.

Hosts are parsed by the same parser that makes the request, so that no two parsers disagree about a URL. Numbers that
old resolvers take for addresses (``2130706433``, ``0x7f.1``) are refused by their form. The message about a refused
host does not contain its address, since that may be a secret of the network.
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
LOOKUP_TIMEOUT_S = 10.0
_LOOKUP_EXECUTOR = ThreadPoolExecutor(16, thread_name_prefix="webhook-lookup")
"""Lookups cannot be cancelled: slow ones must hold up nothing but other lookups."""
DEFAULT_PORTS = {"http": 80, "https": 443}

_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""A last label that makes old resolvers take a host for an IPv4 address."""

_NON_PUBLIC_V4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # one cloud's metadata, at a public address
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
"""All public addresses are in here; loopback, private, link-local, multicast, mapped, and translated ones are not."""
_NON_PUBLIC_V6 = [
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, such as Teredo, which contains an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which contains an IPv4 address
        "3fff::/20",
    )
]


@dataclass(frozen=True, slots=True)
class Target:
    """A target that a webhook may be sent to, judged by its URL alone."""

    url: httpx2.URL
    host: str
    """The name, in ASCII and lower case, or the address."""
    port: int
    is_allowed: bool
    """The operator of the server has allowed it."""

    @property
    def host_header(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.url.scheme] else f"{host}:{self.port}"


class TargetPolicy:
    """Decides where webhooks may be sent."""

    def __init__(self, allowed: Collection[str] = (), resolver: Resolver | None = None) -> None:
        self._allowed = {_parse_allowed_host(host) for host in allowed}
        self._resolver = resolver or resolve_host

    async def validate_target(self, url: str) -> Target:
        """The target of a URL, with all its addresses checked. Raises ``UsageError``."""
        target = self.parse_target(url)
        await self.resolve_addresses(target)
        return target

    def parse_target(self, url: str) -> Target:
        """The target of a URL, without a lookup of its host. Raises ``UsageError``."""
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
            private = [address for address in found if not is_public(address)]
            if private:
                log.warning("webhook refused: %s leads to %s, which is not public", target.host, ", ".join(private))
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
    """The addresses of a host, by the system's resolver."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUP_EXECUTOR, look_up)
    return [str(socket_address[0]) for *_, socket_address in found]


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet."""
    found = _parse_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NON_PUBLIC_V4)
    # An address with a zone (`fe80::1%eth0`) belongs to a link, whatever it is.
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
    """An allowed host, as ``host`` (every port) or ``host:port``; an IPv6 address with a port has brackets."""
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
    """A URL for a message: shortened, without parts that may be a password."""
    return re.sub(r"//[^/?#]*@", "//…@", re.sub(r"\?.*", "?…", url))[:200]


def get_host(url: str) -> str:
    """The host of a URL that was checked before, for display."""
    try:
        return httpx2.URL(url).host
    except httpx2.InvalidURL:
        return ""
