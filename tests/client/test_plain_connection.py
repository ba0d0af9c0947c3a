"""A connection without TLS: what it sends, and every way in which a response may arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
import pytest

from holdfast.client.http import plain_connection
from holdfast.client.http.plain_connection import PlainConnection, PlainResponse

pytestmark = pytest.mark.asyncio

TIMEOUT = httpx2.Timeout(connect=5, read=5, write=5, pool=None)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Peer:
    """A server that answers every request in one way, whatever it is."""

    url: str = ""
    connection_count: int = 0
    requests: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def peer(*pieces: bytes, closes: bool = False) -> AsyncIterator[Peer]:
    served = Peer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connection_count += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                served.requests.append(head + await reader.readexactly(int(length or 0)))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield served


async def get(connection: PlainConnection, url: str, content: bytes | None = None) -> PlainResponse:
    method = "GET" if content is None else "POST"
    return await connection.request(method, f"{url}/v1/runs?limit=1", content=content, headers={}, timeout=TIMEOUT)


async def test_requests_share_a_connection_and_have_its_headers():
    async with peer(OK) as served:
        connection = PlainConnection(served.url, {"Authorization": "Bearer hf_x"})
        for content in (None, b"[1]"):
            response = await get(connection, served.url, content)
            assert (response.status_code, response.is_success, response.content) == (200, True, b"{}")
        await connection.aclose()
    assert served.connection_count == 1
    host = served.url.removeprefix("http://").encode()
    head = b" /v1/runs?limit=1 HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer hf_x\r\n"
    assert served.requests == [b"GET" + head + b"\r\n", b"POST" + head + b"Content-Length: 3\r\n\r\n[1]"]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nTrailer: 1\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (OK, 200, b"{}"),
        (CHUNKED, 200, b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 503\r\ncontent-length: 0\r\nRetry-After: 1\r\n\r\n", 503, b""),
    ],
)
async def test_a_response_may_arrive_in_any_pieces(data: bytes, status: int, body: bytes):
    for size in (1, 3, 7, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        async with peer(*pieces) as served:
            connection = PlainConnection(served.url, {})
            for _ in range(2):
                response = await get(connection, served.url)
                assert (response.status_code, response.content) == (status, body)
            await connection.aclose()
            assert served.connection_count == 1


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        OK,
    ],
)
async def test_a_connection_that_the_server_closes_is_opened_anew(data: bytes):
    async with peer(data, closes=True) as served:
        connection = PlainConnection(served.url, {})
        for _ in range(2):
            assert (await get(connection, served.url)).content == b"{}"
            await asyncio.sleep(0.05)
        await connection.aclose()
    assert served.connection_count == 2


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 3 * plain_connection.MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
async def test_what_is_not_a_response_is_an_error(data: bytes):
    async with peer(data) as served:
        connection = PlainConnection(served.url, {})
        with pytest.raises(httpx2.RemoteProtocolError, match="not valid HTTP"):
            await get(connection, served.url)


async def test_a_response_that_breaks_off_is_an_error_also_after_a_part_of_it():
    for data in (b"", OK[:20], OK[:-1], CHUNKED[:-3]):
        async with peer(data, closes=True) as served:
            with pytest.raises(httpx2.ReadError):
                await get(PlainConnection(served.url, {}), served.url)


async def test_a_server_that_is_not_there_was_sent_nothing():
    async with peer() as served:
        pass
    with pytest.raises(httpx2.ConnectError):
        await get(PlainConnection(served.url, {}), served.url)


async def test_a_header_cannot_bring_another_request_along():
    async with peer(OK) as served:
        connection = PlainConnection(served.url, {})
        for value in ("x\r\nHost: other", "x\nEvil: 1", "ü"):
            with pytest.raises(httpx2.LocalProtocolError):
                await connection.request(
                    "GET", f"{served.url}/", content=None, headers={"Last-Event-ID": value}, timeout=TIMEOUT
                )
        assert not served.requests


async def test_a_request_that_is_cancelled_leaves_no_response_for_the_next():
    async with peer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n") as served:
        connection = PlainConnection(served.url, {})
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await get(connection, served.url)
        assert served.connection_count == 2


async def test_a_stream_is_read_as_it_arrives_and_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plain_connection, "MAX_BUFFERED_BYTES", 100_000)
    chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with peer(head, *[chunk] * 200, b"0\r\n\r\n") as served:
        connection, received = PlainConnection(served.url, {}), 0
        async with connection.stream("GET", f"{served.url}/", headers={}, timeout=TIMEOUT) as response:
            assert response.status_code == 200
            async for data in response.aiter_bytes(5.0):
                assert len(data) < 1_000_000
                received += len(data)
                await asyncio.sleep(0)
        assert received == 200 * 50_000
        assert (await get(connection, served.url)).is_success
        await connection.aclose()


async def test_a_silent_stream_ends_and_a_stream_that_is_left_early_closes_the_connection():
    async with peer(b"HTTP/1.1 200 OK\r\n\r\ndata") as served:
        connection = PlainConnection(served.url, {})
        for _ in range(2):
            with pytest.raises(httpx2.ReadTimeout):
                async with connection.stream("GET", f"{served.url}/", headers={}, timeout=TIMEOUT) as response:
                    assert [data async for data in response.aiter_bytes(0.05)] == [b"data"]
        assert served.connection_count == 2
