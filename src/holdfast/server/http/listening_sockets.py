"""The sockets that a server listens on. Several server processes may share them."""

from __future__ import annotations

import asyncio
import socket

from holdfast.errors import UsageError

DEFAULT_HOST = "127.0.0.1"
BindAddress = tuple[socket.AddressFamily, tuple[str, int]]


async def resolve_addresses(host: str, port: int) -> list[BindAddress]:
    """The addresses of this machine that a host name means."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error}. Leave --host out for {DEFAULT_HOST}."
        ) from None
    return list(dict.fromkeys((family, (str(address[0]), port)) for family, _, _, _, address in found))


def bind_sockets(host: str, addresses: list[BindAddress]) -> list[socket.socket]:
    """Sockets on all addresses of the host, with the same port."""
    sockets: list[socket.socket] = []
    for family, (address, requested_port) in addresses:
        port = requested_port or (sockets[0].getsockname()[1] if sockets else 0)
        try:
            sockets.append(socket.create_server((address, port), family=family, backlog=2048))
        except OSError as error:
            for bound in sockets:
                bound.close()
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise UsageError(
                f"cannot listen on {shown}: {error.strerror or error}. Is another server running there? Choose "
                f"another port with --port."
            ) from None
    return sockets


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of the host; port 0: any free port."""
    return bind_sockets(host, await resolve_addresses(host, port))
