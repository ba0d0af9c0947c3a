"""The address of a server, and the caller's key for it.

The key is a secret. It goes to this one host only: redirects are not followed, and plain ``http://`` requests use no
proxy. No text shows it. Over ``http://`` anyone on the way can read it, and a warning would come too late. So it is
refused, unless the server is on this machine or the caller allows it.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import UsageError

_KEY_PATTERN = re.compile(r"[!-~]+")


def is_server_url(url: str | None = None) -> bool:
    """Whether ``url``, or ``HOLDFAST_URL`` in its place, is the URL of a Holdfast server."""
    return (url or os.environ.get("HOLDFAST_URL") or "").lower().startswith(("http://", "https://"))


def make_namespace_error(namespace: str, option: str) -> UsageError:
    """The error for an option that names a namespace of a server."""
    return UsageError(
        f"{option}: a server knows by the key whose runs are meant. Use a key of that namespace: `holdfast keys create "
        f"NAME --namespace {namespace}`"
    )


class ServerEndpoint:
    """A server's address, and the caller's key.

    Args:
        url: such as ``https://holdfast.example`` or ``http://localhost:8700/prefix``.
        api_key: the key; ``None``: requests are sent without one.
        insecure: allow the key to be sent over ``http://`` to another machine.
    """

    __slots__ = ("_api_key", "is_encrypted", "url")

    def __init__(self, url: str, api_key: str | None = None, *, insecure: bool = False) -> None:
        parts = _parse_url(url)
        host = parts.hostname or ""
        self.is_encrypted = parts.scheme == "https"
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        """Without a trailing slash."""
        if api_key is not None and not _KEY_PATTERN.fullmatch(api_key):
            raise UsageError(
                "the API key is empty, or has characters in it that no key has: give it as `holdfast keys create` has "
                "told it, hf_…, without spaces and line breaks around it"
            )
        if api_key is not None and not self.is_encrypted and not insecure and not is_loopback(host):
            raise UsageError(
                f"the API key would be sent to {host} in plain text, and everybody on the way could use it: give the "
                f"server's https:// address. If the way is safe (a network of your own, a tunnel), say so with "
                f"Client(..., insecure=True) or HOLDFAST_INSECURE=1"
            )
        self._api_key = api_key

    def auth_headers(self) -> dict[str, str]:
        """The headers that authenticate the caller."""
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}

    def __repr__(self) -> str:
        return f"<ServerEndpoint {self.url}>"


def _parse_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number
    except ValueError as error:
        raise UsageError(f"the server's URL cannot be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("a server's URL holds neither user nor password: the key is given as api_key=")
    if not parts.hostname:
        raise UsageError(f"{url!r} names no host: a server's URL looks like https://holdfast.example")
    if parts.query or parts.fragment:
        raise UsageError(f"a server's URL has nothing behind its path: {parts.scheme}://{parts.netloc}{parts.path}")
    return SplitResult(parts.scheme.lower(), parts.netloc, parts.path, "", "")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
