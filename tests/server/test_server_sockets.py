"""A server on a real socket: clients that are slow on purpose, what is no HTTP, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from live_server import LiveServer, running_live_server

from holdfast.errors import UsageError
from holdfast.server import serve
from holdfast.server.app import Settings
from holdfast.server.http import http_connection
from holdfast.server.http import request as http_request

pytestmark = pytest.mark.asyncio


REQUEST = b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: LiveServer, **more: Any) -> Wire:
        host, port = server.address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port), **more))

    async def send_text(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def trickles(self, data: bytes, every: float = 0.02) -> None:
        """One byte after the other, until the other side hangs up."""
        try:
            for byte in data:
                await self.send_text(bytes([byte]))
                await asyncio.sleep(every)
        except ConnectionError:
            pass

    async def read_text(self) -> bytes:
        """All that comes until the other side hangs up."""
        received = b""
        try:
            async with asyncio.timeout(5):
                while part := await self.reader.read(65536):
                    received += part
        except ConnectionError:
            pass  # it has hung up in the middle of what was sent to it
        self.writer.close()
        return received


def problem_in(heard: bytes) -> tuple[int, str]:
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)["type"]


async def test_heads_and_bodies_that_do_not_end_are_cut_off_however_busily_they_trickle(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_request, "BODY_TIMEOUT_S", 0.3)
    async with running_live_server() as server:
        silent = await Wire.to(server)
        slow_head = await Wire.to(server)
        second_head = await Wire.to(server)
        slow_body = await Wire.to(server)
        unread_body = await Wire.to(server)
        head = b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n"
        await second_head.send_text(REQUEST)
        assert b"200 OK" in await second_head.reader.readuntil(b"}")  # a good one before it changes nothing
        await slow_body.send_text(head)
        await unread_body.send_text(head.replace(b"/v1/keys", b"/nowhere"))  # answered before its body is there
        began = time.monotonic()
        talking = [
            asyncio.create_task(wire.trickles(data))
            for wire, data in (
                (slow_head, b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 500),
                (second_head, b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 500),
                (slow_body, b" " * 890),
                (unread_body, b" " * 890),
            )
        ]
        wires = (silent, slow_head, second_head, slow_body, unread_body)
        received = await asyncio.gather(*(wire.read_text() for wire in wires))
        assert time.monotonic() - began < 3
        await asyncio.gather(*talking)
        assert received[0] == b""
        assert problem_in(received[1]) == (408, "request-timeout")
        assert problem_in(received[2]) == (408, "request-timeout")
        assert problem_in(received[3]) == (408, "request-timeout")
        assert problem_in(received[4]) == (404, "path-not-found")
        assert (await httpx2.AsyncClient(base_url=server.address).get("/v1/health")).status_code == 200


async def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_connection, "STALL_TIMEOUT_S", 0.3)
    async with running_live_server() as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(reader, (host, int(port)))
        requests = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000

        async def ask_for_ever() -> None:
            await loop.sock_sendall(reader, requests)
            while True:
                await asyncio.sleep(0.02)
                await loop.sock_sendall(reader, b"G")

        with pytest.raises(ConnectionError):  # and reads nothing of it
            await asyncio.wait_for(ask_for_ever(), 10)
        reader.close()


async def test_an_invalid_http_request_gets_a_problem():
    async with running_live_server() as server:
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET /v1/whoami HTTP/1.1\r\n\r\n",
            b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
            b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        ):
            wire = await Wire.to(server)
            await wire.send_text(data)
            assert problem_in(await wire.read_text()) == (400, "invalid-http")
        # An absolute target does not say which host it is for.
        wire = await Wire.to(server)
        await wire.send_text(
            b"GET http://evil.example/v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert problem_in(await wire.read_text()) == (404, "path-not-found")


async def test_pipelined_requests_are_answered_in_order_however_many_come_at_once():
    async with running_live_server() as server:
        wire = await Wire.to(server)
        requests = [REQUEST.removesuffix(b"\r\n") + b"X-Request-Id: %d\r\n\r\n" % number for number in range(400)]
        await wire.send_text(b"".join(requests))
        answered: list[int] = []
        while len(answered) < len(requests):
            head = await asyncio.wait_for(wire.reader.readuntil(b"}"), 5)
            answered += [int(number) for number in re.findall(rb"x-request-id: (\d+)", head)]
        assert answered == list(range(400))
        wire.writer.close()


async def test_trailers_do_not_become_headers_and_are_limited():
    post = (
        b"POST /v1/addresses/a/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n"
    )
    body = b"\r\n2\r\n{}\r\n0\r\n"
    async with running_live_server() as server:
        for _ in range(2):  # with the header, the second request would find the run of the first
            wire = await Wire.to(server)
            await wire.send_text(post + b"Connection: close\r\n" + body + b"Idempotency-Key: same\r\n\r\n")
            assert b"201 Created" in await wire.read_text()
        wire = await Wire.to(server)
        await wire.send_text(post + body)
        received = asyncio.create_task(wire.read_text())
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                await wire.send_text(b"X-A: " + b"b" * 1000)
                await asyncio.sleep(0)
        wire.writer.write_eof()
        assert b"201 Created" not in await received


async def test_a_request_for_another_protocol_is_answered_as_an_ordinary_one():
    async with running_live_server() as server:
        wire = await Wire.to(server)
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        await wire.send_text(REQUEST.removesuffix(b"\r\n") + upgrade)
        assert b"200 OK" in await wire.reader.readuntil(b"}")
        wire.writer.close()


@pytest.mark.parametrize("cut", [0, 1000, 20_000])
async def test_the_size_of_a_head_is_limited_however_it_arrives(cut: int):
    async with running_live_server() as server:
        for line in (b"GET /v1/whoami?" + b"a" * 33_000, b"GET /v1/whoami HTTP/1.1\r\nX: " + b"a" * 33_000):
            wire = await Wire.to(server)
            version = b"" if b"HTTP" in line else b" HTTP/1.1"
            head = line + version + b"\r\nHost: localhost\r\n\r\n"
            await wire.send_text(head[:cut])
            await asyncio.sleep(0.02 if cut else 0)
            await wire.send_text(head[cut:])
            assert problem_in(await wire.read_text()) == (431, "head-too-large")
        wire = await Wire.to(server)
        await wire.send_text(b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"a" * 31_000)
        await wire.send_text(b"\r\n\r\n")
        assert b"200 OK" in await wire.read_text()


async def test_idle_connections_are_closed_for_new_ones():
    async with running_live_server(max_connections=10) as server:
        idle = [await Wire.to(server) for _ in range(20)]
        half = [await Wire.to(server) for _ in range(20)]
        for wire in half[-10:]:
            await wire.send_text(b"GET /v1/wh")
        async with httpx2.AsyncClient(base_url=server.address) as client:
            for _ in range(20):
                assert (await client.get("/v1/health")).status_code == 200
                answer = await httpx2.AsyncClient(base_url=server.address).get("/v1/health")
                assert answer.status_code == 200
        assert await idle[0].read_text() == b""  # the one that had waited longest went first


async def test_more_connections_than_it_can_answer_are_turned_away():
    async with running_live_server(max_connections=3) as server:
        async with httpx2.AsyncClient(base_url=server.address) as client:
            assert (await client.post("/v1/addresses/a/send", json={"id": "never"})).status_code == 201
        held = [await Wire.to(server) for _ in range(3)]
        for wire in held:
            await wire.send_text(b"GET /v1/runs/never?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.2)
        turned_away = await Wire.to(server)
        assert problem_in(await turned_away.read_text()) == (503, "overloaded")
        held.pop().writer.close()
        for _ in range(100):
            await asyncio.sleep(0.02)
            wire = await Wire.to(server)
            await wire.send_text(REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            if b"200 OK" in await wire.read_text():
                break
        else:
            pytest.fail("the place that became free was not given to anybody")


# Where it listens


async def test_it_listens_elsewhere_only_once_there_is_a_key(tmp_path: Path):
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UsageError, match="holdfast keys create"):
            await serve("memory://", host=host, port=0)
    with pytest.raises(UsageError, match=r"192\.0\.2\.1.*holdfast keys create"):
        await serve("memory://", host="192.0.2.1", port=0)
    with pytest.raises(UsageError, match="is no address of this machine"):
        await serve("memory://", host="no such host", port=0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="Is another server running"):
        await serve("memory://", port=taken.getsockname()[1])
    with pytest.raises(UsageError, match="no certificate"):
        await serve("memory://", port=0, tls_key=tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_text("nonsense")
    with pytest.raises(UsageError, match="cannot be used"):
        await serve("memory://", port=0, tls_cert=tmp_path / "cert.pem")


async def test_it_speaks_tls(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    making = await asyncio.create_subprocess_exec(*made, *names, "-keyout", key, "-out", cert, stderr=subprocess.PIPE)
    assert await making.wait() == 0
    async with running_live_server(tls_cert=cert, tls_key=key) as server:
        port = server.address.rpartition(":")[2]
        async with httpx2.AsyncClient(verify=ssl.create_default_context(cafile=str(cert))) as client:
            answer = await client.get(f"https://localhost:{port}/v1/whoami")
        assert (answer.status_code, answer.json()["name"]) == (200, "local")


async def test_only_a_proxy_that_is_trusted_is_believed():
    async def remote_seen(**more: Any) -> list[str]:
        async with running_live_server(settings=Settings(), **more) as server:
            platform = server.app.platform
            home = await platform.tenants.get_default_store()
            async with httpx2.AsyncClient(base_url=server.address) as client:
                token = (await client.post("/v1/keys", json={"name": "a", "scopes": ["admin"]})).json()["token"]
                headers = {"authorization": f"Bearer {token}", "x-forwarded-for": "203.0.113.9"}
                assert (await client.put("/v1/addresses/x", json={}, headers=headers)).status_code == 200
                assert (await client.get("/v1/whoami", headers={"x-forwarded-for": "127.0.0.1"})).status_code == 401
            return [one.event.remote_address for one in await home.audit_log.list()][:1]

    assert await remote_seen() == ["127.0.0.1"]
    assert await remote_seen(trusted_proxies=["10.9.9.9"]) == ["127.0.0.1"]
    assert await remote_seen(trusted_proxies=["127.0.0.1"]) == ["203.0.113.9"]


async def test_an_answer_does_not_wait_for_the_reader_to_acknowledge_its_beginning():
    async with running_live_server() as server:
        wire, took = await Wire.to(server), list[float]()
        for _ in range(20):
            began = time.perf_counter()
            await wire.send_text(REQUEST)
            await wire.reader.readuntil(b"}")
            took.append(time.perf_counter() - began)
        wire.writer.close()
        assert sorted(took)[2] < 0.03, "each took as long as a delayed acknowledgement (40 ms): TCP_NODELAY is not set"
