"""One request, sent to the very address that was checked.

The URL of the request has the address in place of the name; the ``Host`` header, the server name that TLS asks for, and
the name that the certificate must prove, are those of the webhook. So nothing looks the name up a second time. Nothing
is taken from the environment either, and each request has a connection of its own: one that was made for another name
at the same address must not be used again.

A redirect is followed where it says that the same request is to be made elsewhere (307, 308), three times, on the same
host only: the payload and its signature are for that receiver. The new place is checked like the first one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import httpx2

from holdfast.errors import UsageError
from holdfast.server.webhooks.target_policy import Target, Targets

CONNECTED_WITHIN = 10.0
"""Seconds to connect to one address, TLS included."""
MOST_REDIRECTS = 3
MOST_ADDRESSES = 4
"""So many addresses of a host are tried."""
SAME_AGAIN = (307, 308)
SHORT = 4096
"""Bytes that are read of an answer that is no success."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_whole: bool = True
    """False: the body is longer than what was read of it."""


Take = Callable[[int], None]


class Room(NamedTuple):
    """How much of an answer is read."""

    largest: int
    take: Take


class NotAnswered(Exception):
    """There is no answer, or none that counts: why, for people to read."""


class Poster:
    """Sends requests."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        """Whose certificates are believed. ``SSL_CERT_FILE`` says so, if it is set."""
        return httpx2.create_ssl_context()

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, within: float, largest: int, take: Take
    ) -> Answer:
        """Send it, and read the answer. Raises ``NotAnswered``, and what ``take`` raises.

        Args:
            url: where to.
            headers: of the request.
            body: of the request.
            within: seconds for all of it.
            largest: bytes of the answer that are read.
            take: is told of bytes of the answer that have come in, and may refuse them.
        """
        try:
            async with asyncio.timeout(within):
                return await self._followed(url, headers, body, Room(largest, take))
        except TimeoutError:
            raise NotAnswered(f"there was no answer within {within:g} s") from None
        except UsageError as error:
            raise NotAnswered(str(error)) from None

    async def _followed(self, url: str, headers: Mapping[str, str], body: bytes, room: Room) -> Answer:
        target = self._targets.read(url)
        for _ in range(MOST_REDIRECTS + 1):
            answer = await self._posted(target, headers, body, room)
            if answer.status not in SAME_AGAIN:
                return answer
            target = self._next(target, answer)
        raise NotAnswered(f"it redirects more than {MOST_REDIRECTS} times")

    def _next(self, target: Target, answer: Answer) -> Target:
        try:
            location = str(target.url.join(answer.headers["location"]))
        except (KeyError, httpx2.InvalidURL):
            raise NotAnswered(f"it answered {answer.status}, and does not say where to") from None
        there = self._targets.read(location)
        is_safer = target.url.scheme == "http" and there.url.scheme == "https"
        if there.host != target.host or not (there.url.scheme == target.url.scheme or is_safer):
            raise NotAnswered(
                "it redirects to another host, which a signed request is not sent to: if that is where deliveries "
                "belong, set the webhook to it"
            )
        return there

    async def _posted(self, target: Target, headers: Mapping[str, str], body: bytes, room: Room) -> Answer:
        addresses = await self._targets.addresses(target)
        return await self._at_one_of(addresses[:MOST_ADDRESSES], target, headers, body, room)

    async def _at_one_of(
        self, addresses: Sequence[str], target: Target, headers: Mapping[str, str], body: bytes, room: Room
    ) -> Answer:
        """At the first address that takes a connection: nothing was sent to those before it."""
        problem = ""
        for address in addresses:
            try:
                return await self._at(address, target, headers, body, room)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                problem = str(error) or type(error).__name__
            except (httpx2.TransportError, OSError) as error:
                raise NotAnswered(f"the connection broke: {error or type(error).__name__}") from None
        raise NotAnswered(f"it cannot be connected to: {problem}")

    async def _at(self, address: str, target: Target, headers: Mapping[str, str], body: bytes, room: Room) -> Answer:
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
            extensions={"sni_hostname": target.host, "timeout": {"connect": CONNECTED_WITHIN}},
        )
        one = httpx2.Limits(max_connections=1, max_keepalive_connections=0)
        async with httpx2.AsyncHTTPTransport(verify=self._trust, limits=one) as transport:
            response = await transport.handle_async_request(request)
            try:
                return await _read(response, room)
            finally:
                await response.aclose()


async def _read(response: httpx2.Response, room: Room) -> Answer:
    """The answer, as it came: what was packed is not unpacked, since a little may become very much."""
    most = room.largest if response.is_success else min(room.largest, SHORT)
    body = bytearray()
    async for part in response.aiter_raw():
        room.take(len(part))
        body += part
        if len(body) > most:
            break
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, bytes(body[:most]), is_whole=len(body) <= most)
