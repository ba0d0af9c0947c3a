"""The way to a Temporal server that speaks TLS only: a gateway of the test's in front of the development server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from holdfast import Client
from holdfast.errors import StoreError
from temporal_server import NAMESPACE, address

pytestmark = pytest.mark.asyncio

NAME = "temporal.example"


@asynccontextmanager
async def gateway(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Takes TLS connections, and hands on what is said; the port."""

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address().rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(hand_on(reader, back), hand_on(there, writer))

    context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(context)
    return context


def trusted(authority: trustme.CA, folder: Path) -> str:
    path = folder / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return f"tls_ca={path}&server_name={NAME}"


async def reach(port: int, options: str) -> list[object]:
    async with Client(f"temporal://127.0.0.1:{port}/{NAMESPACE}?{options}") as client:
        return [*await client.list(limit=1)]


async def test_a_server_is_reached_over_tls_and_believed_by_its_certificate(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with gateway(serving(authority)) as port:
        await reach(port, trusted(authority, tmp_path))
        for distrusted in ("tls=true", f"server_name={NAME}&tls=true", trusted(trustme.CA(), tmp_path)):
            with pytest.raises(StoreError):
                await reach(port, distrusted)


async def test_a_server_may_ask_who_comes(authority: trustme.CA, tmp_path: Path) -> None:
    context = serving(authority)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("worker.example")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(one.bytes() for one in ours.cert_chain_pems))
    options = trusted(authority, tmp_path)
    async with gateway(context) as port:
        await reach(port, f"{options}&tls_cert={tmp_path}/cert.pem&tls_key={tmp_path}/key.pem")
        with pytest.raises(StoreError):
            await reach(port, options)
