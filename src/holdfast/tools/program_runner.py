"""Runs a program in a session of its own, with limits for its time and its output.

The whole session is killed, the program and everything that it has started: when the program ends, when the time is up,
when it writes too much, or when its caller is cancelled. A child that makes its own session survives, and if this
process itself is killed, the program keeps running.

The output is read through a separate pipe as it arrives, and only its beginning and end are kept. So no program can
fill the memory, and a child that still holds the pipe does not block.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

MAX_WRITTEN_BYTES = 64 * 1024**2
"""A program that writes more is stopped: reading further would only keep this process busy."""
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The end of a program."""

    exit_code: int
    """The exit code; the negative number of the signal if one ended it."""
    output: str
    """Stdout and stderr in the order of arrival, without the middle if they are too long."""
    written_bytes: int
    stop_reason: Literal["", "time", "output"]
    """Why it was stopped, if it was."""


async def run_program(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float, max_output_bytes: int
) -> ProgramResult:
    """Run a program to its end. Raises ``OSError`` if it cannot be started."""
    output = _OutputPipe(max_output_bytes)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.write_fd,
            stderr=output.write_fd,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
        output.start_reading()
        exited = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({exited, output.overflowed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            stopped = "" if exited.done() else "output" if output.overflowed.done() else "time"
        finally:
            with suppress(ProcessLookupError, PermissionError):  # no process is left, or only ended ones
                os.killpg(process.pid, signal.SIGKILL)
            await exited
        output.drain()
        return ProgramResult(process.returncode or 0, output.to_text(), output.written_bytes, stopped)
    finally:
        output.close()


class _OutputPipe:
    """Reads a program's output, and keeps its beginning and end, half of ``max_bytes`` each."""

    def __init__(self, max_bytes: int) -> None:
        self.written_bytes = 0
        self._head, self._tail = bytearray(), bytearray()
        self._max_head_bytes = max_bytes // 2
        self._max_tail_bytes = max_bytes - max_bytes // 2
        self._loop = asyncio.get_running_loop()
        self.overflowed: asyncio.Future[None] = self._loop.create_future()
        """Done when the program has written too much."""
        self._read_fd, self.write_fd = os.pipe()
        """The write end belongs to the program."""
        os.set_blocking(self._read_fd, False)
        self._is_write_end_open = True

    def start_reading(self) -> None:
        """Begin to read, after the program has got its end."""
        self._close_write_end()
        self._loop.add_reader(self._read_fd, self._read_chunk)

    def drain(self) -> None:
        while self.written_bytes <= MAX_WRITTEN_BYTES and self._read_chunk():
            pass

    def close(self) -> None:
        self.overflowed.cancel()
        self._loop.remove_reader(self._read_fd)
        self._close_write_end()
        os.close(self._read_fd)

    def to_text(self) -> str:
        omitted = self.written_bytes - len(self._head) - len(self._tail)
        mark = b"\n[... %d bytes left out ...]\n" % omitted if omitted else b""
        return (bytes(self._head) + mark + bytes(self._tail)).decode("utf-8", "replace").replace("\0", "\ufffd")

    def _close_write_end(self) -> None:
        if self._is_write_end_open:
            self._is_write_end_open = False
            os.close(self.write_fd)

    def _read_chunk(self) -> bool:
        """Read a chunk. Returns false if there is none now."""
        try:
            chunk = os.read(self._read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._read_fd)  # a closed pipe is always readable: it would keep the loop busy
            return False
        self.written_bytes += len(chunk)
        room = self._max_head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._max_tail_bytes]
        if self.written_bytes > MAX_WRITTEN_BYTES and not self.overflowed.done():
            self.overflowed.set_result(None)
        return True
