"""Sends one request to exactly the network address that was checked.

The URL of the request has the address in place of the host name. The ``Host`` header, the TLS server name, and the name
that the certificate must prove are those of the webhook. So nothing resolves the name a second time. The client ignores
the environment, and each request has its own connection: a connection that was made for another name at the same
address must not be reused.

A redirect that asks for the same request elsewhere (307, 308) is followed, up to three times, on the same host only:
the payload and its signature are for that receiver. The new target is checked like the first one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import httpx2

from holdfast.errors import UsageError
from holdfast.server.webhooks.target_policy import Target, TargetPolicy

CONNECT_TIMEOUT_S = 10.0
"""Seconds to connect to one address, TLS included."""
MAX_REDIRECTS = 3
MAX_ADDRESSES = 4
"""Addresses of a host that are tried."""
REDIRECT_STATUSES = (307, 308)
MAX_ERROR_BODY_BYTES = 4096
"""Bytes that are read of an unsuccessful response."""


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The response of a receiver."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_complete: bool = True
    """False: the rest of the body was not read."""


ByteCounter = Callable[[int], None]


class ResponseLimit(NamedTuple):
    """How much of a response is read."""

    max_bytes: int
    count_bytes: ByteCounter


class NoResponse(Exception):
    """There is no response, or none that counts: why, for people to read."""


class WebhookHttpClient:
    """Sends webhook requests."""

    def __init__(self, target_policy: TargetPolicy) -> None:
        self._target_policy = target_policy

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """The trusted certificates: those of ``SSL_CERT_FILE``, if it is set."""
        return httpx2.create_ssl_context()

    async def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        max_bytes: int,
        count_bytes: ByteCounter,
    ) -> WebhookResponse:
        """Send a request, and read the response. Raises ``NoResponse``, and what ``count_bytes`` raises.

        Args:
            url: the webhook.
            headers: of the request.
            body: of the request.
            timeout_s: seconds until the response must be complete, including redirects.
            max_bytes: maximum bytes of the response to read.
            count_bytes: called with the number of bytes that have arrived; it may raise to refuse them.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post_following_redirects(url, headers, body, ResponseLimit(max_bytes, count_bytes))
        except TimeoutError:
            raise NoResponse(f"there was no answer within {timeout_s:g} s") from None
        except UsageError as error:
            raise NoResponse(str(error)) from None

    async def _post_following_redirects(
        self, url: str, headers: Mapping[str, str], body: bytes, limit: ResponseLimit
    ) -> WebhookResponse:
        target = self._target_policy.parse_target(url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._post_to_target(target, headers, body, limit)
            if response.status not in REDIRECT_STATUSES:
                return response
            target = self._get_redirect_target(target, response)
        raise NoResponse(f"it redirects more than {MAX_REDIRECTS} times")

    def _get_redirect_target(self, target: Target, response: WebhookResponse) -> Target:
        try:
            location = str(target.url.join(response.headers["location"]))
        except (KeyError, httpx2.InvalidURL):
            raise NoResponse(f"it answered {response.status}, and does not say where to") from None
        new_target = self._target_policy.parse_target(location)
        is_downgrade = target.url.scheme == "https" and new_target.url.scheme == "http"
        if new_target.host != target.host or is_downgrade:
            raise NoResponse(
                "it redirects to another host, which a signed request is not sent to: if that is where deliveries "
                "belong, set the webhook to it"
            )
        return new_target

    async def _post_to_target(
        self, target: Target, headers: Mapping[str, str], body: bytes, limit: ResponseLimit
    ) -> WebhookResponse:
        """Send it to the first address that accepts a connection: nothing was sent to those before it."""
        problem = ""
        for address in (await self._target_policy.resolve_addresses(target))[:MAX_ADDRESSES]:
            try:
                return await self._post_to_address(address, target, headers, body, limit)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                problem = str(error) or type(error).__name__
            except (httpx2.TransportError, OSError) as error:
                raise NoResponse(f"the connection broke: {error or type(error).__name__}") from None
        raise NoResponse(f"it cannot be connected to: {problem}")

    async def _post_to_address(
        self, address: str, target: Target, headers: Mapping[str, str], body: bytes, limit: ResponseLimit
    ) -> WebhookResponse:
        request = httpx2.Request(
            "POST",
            target.url.copy_with(host=address),
            headers={
                "Host": target.host_header,
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Connection": "close",
                "User-Agent": "Holdfast",
                **headers,
            },
            content=body,
            extensions={"sni_hostname": target.host, "timeout": {"connect": CONNECT_TIMEOUT_S}},
        )
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=0)
        async with httpx2.AsyncHTTPTransport(verify=self._ssl_context, limits=limits) as transport:
            response = await transport.handle_async_request(request)
            try:
                return await _read_response(response, limit)
            finally:
                await response.aclose()


async def _read_response(response: httpx2.Response, limit: ResponseLimit) -> WebhookResponse:
    """The response as it arrives. A compressed body is not decompressed, since it could become very large."""
    max_bytes = limit.max_bytes if response.is_success else min(limit.max_bytes, MAX_ERROR_BODY_BYTES)
    body = bytearray()
    async for chunk in response.aiter_raw():
        limit.count_bytes(len(chunk))
        body += chunk
        if len(body) > max_bytes:
            break
    headers = {name.lower(): value for name, value in response.headers.items()}
    return WebhookResponse(response.status_code, headers, bytes(body[:max_bytes]), is_complete=len(body) <= max_bytes)
