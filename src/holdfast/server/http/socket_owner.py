"""The user that owns the other end of a connection on this machine.

Linux answers a question about one connection directly (``sock_diag``). Where it does not, as in some containers, the
table of all connections has the answer as well, but reading it takes milliseconds, and longer the more there are.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
SocketAddress = tuple[IpAddress, int]

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_STATE_ESTABLISHED: Final = 1
_ANY_STATE: Final = 0xFFFFFFFF
_NO_COOKIE: Final = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, and port of a netlink message."""
_FAMILY = struct.Struct("=BBBB")
"""Family, then in a request the protocol, and in a response the state; and two bytes that do not matter here."""
_ENDS = struct.Struct("!HH16s16s")
"""The ports and addresses of both ends, the near one first."""
_UID_OFFSET: Final = _HEADER.size + _FAMILY.size + _ENDS.size + 12 + 12
"""Behind the ends: interface and cookie, then a timer and the lengths of two queues."""


def find_socket_owner(client: SocketAddress, server: SocketAddress) -> int | None:
    """The user id that owns the client's end of a connection; ``None`` if it is unknown."""
    owner = _ask_kernel(client, server)
    return _search_tables(client, server) if owner is None else owner


def _ask_kernel(client: SocketAddress, server: SocketAddress) -> int | None:
    if sys.platform != "linux" or client[0].version != server[0].version:
        return None
    family = socket.AF_INET if client[0].version == 4 else socket.AF_INET6
    near, far = client[0].packed.ljust(16, b"\0"), server[0].packed.ljust(16, b"\0")
    ends = _ENDS.pack(client[1], server[1], near, far)
    request = (
        _FAMILY.pack(family, socket.IPPROTO_TCP, 0, 0)
        + struct.pack("=I", _ANY_STATE)
        + ends
        + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    )
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(0.1)
            link.send(header + request)
            response = link.recv(4096)
    except OSError:
        return None
    if len(response) < _UID_OFFSET + 4 or _HEADER.unpack_from(response)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, _, _ = _FAMILY.unpack_from(response, _HEADER.size)
    ends_start = _HEADER.size + _FAMILY.size
    if state != _STATE_ESTABLISHED or response[ends_start : ends_start + _ENDS.size] != ends:
        return None  # the kernel may answer with a socket that listens on the port
    return struct.unpack_from("=I", response, _UID_OFFSET)[0]


def _search_tables(client: SocketAddress, server: SocketAddress) -> int | None:
    for table, as_ipv6 in ((Path("/proc/net/tcp"), False), (Path("/proc/net/tcp6"), True)):
        near, far = _to_proc_format(*client, as_ipv6), _to_proc_format(*server, as_ipv6)
        if near is None or far is None:
            continue
        try:
            text = table.read_text()
        except OSError:
            return None
        start = text.find(f": {near} {far} ")
        if start >= 0:
            return int(text[start : text.find("\n", start)].split()[7])
    return None


def _to_proc_format(address: IpAddress, port: int, as_ipv6: bool) -> str | None:
    """An end of a connection as the system lists it; with ``as_ipv6``, an IPv4 address is mapped to IPv6."""
    if address.version == 6 and not as_ipv6:
        return None
    form = ipaddress.IPv6Address(f"::ffff:{address}") if as_ipv6 and address.version == 4 else address
    return f"{_to_hex_words(form.packed)}:{port:04X}"


def _to_hex_words(packed: bytes) -> str:
    """Words of four bytes, each in this machine's byte order."""
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
