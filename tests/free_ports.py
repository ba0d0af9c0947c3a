"""Ports for servers that a test starts several times on the same port.

The kernel may give a port that ``bind(0)`` returned to another ``bind(0)`` or to an outgoing connection before the
test's server uses it. So these ports are below the kernel's ephemeral range, and each process of pytest has its own
block.
"""

from __future__ import annotations

import os
import random
import socket
from itertools import count

_FIRST, _BLOCK = 10_000, 500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 40
_START = random.SystemRandom().randrange(_BLOCK)  # another pytest on this machine begins elsewhere
_offsets = count(_START)


def free_port() -> int:
    """A port of 127.0.0.1 that no one uses."""
    while True:
        port = _FIRST + _WORKER * _BLOCK + next(_offsets) % _BLOCK
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue  # taken
        return port
