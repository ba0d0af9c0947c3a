"""What MCP servers of the tests did to the world, kept where no crash can reach it: a line for each call.

::

    {"tool": "book", "name": "room", "pid": 1234}

A call that was told to stop is there a second time, with ``"cancelled": true``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def note(folder: Path, **line: Any) -> None:
    """Write to the ledger, and return when it is there."""
    descriptor = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{json.dumps({**line, 'pid': os.getpid()})}\n".encode())
    finally:
        os.close(descriptor)


def ledger(folder: Path) -> list[dict[str, Any]]:
    """What has happened so far."""
    path = folder / "ledger"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def happened(folder: Path, tool: str) -> list[dict[str, Any]]:
    """The calls of a tool that have reached a server."""
    return [line for line in ledger(folder) if line["tool"] == tool and not line.get("cancelled")]


def is_alive(pid: int) -> bool:
    """Whether a process is alive. A zombie is not."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False
