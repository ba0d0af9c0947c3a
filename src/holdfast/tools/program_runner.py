"""A program, run in a session of its own, for a limited time and with limited output.

The session is what is killed: the program, and whatever it has started, when it has ended, the time is up, it writes
without end, or nobody waits for it any more. A child that makes a session of its own gets away; and when this very
process is killed, the program goes on.

Its output is read through a pipe of our own, as it comes, and all but its beginning and its end is dropped. So no
program fills the memory, and one that leaves a child behind with the pipe in its hands is not waited for.
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
"""A program that writes more is stopped: reading on would only keep this process busy."""
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How it ended."""

    exit_code: int
    """The exit code; minus the signal's number if one ended it."""
    output: str
    """What it wrote, of both kinds in the order in which it came, without the middle of what is too long."""
    written_bytes: int
    """How many bytes it wrote."""
    stop_reason: Literal["", "time", "output"]
    """Why it was stopped, if it was."""


async def run_program(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float, max_output_bytes: int
) -> ProgramResult:
    """Run it to its end. Raises ``OSError`` if it cannot be started."""
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
            with suppress(ProcessLookupError, PermissionError):  # nobody is left, or only who has ended
                os.killpg(process.pid, signal.SIGKILL)
            await exited
        output.drain()
        return ProgramResult(process.returncode or 0, output.to_text(), output.written_bytes, stopped)
    finally:
        output.close()


class _OutputPipe:
    """What a program writes: of the beginning and the end, half of ``max_bytes`` each."""

    def __init__(self, max_bytes: int) -> None:
        self.written_bytes = 0
        self._head, self._tail = bytearray(), bytearray()
        self._max_head_bytes = max_bytes // 2
        self._max_tail_bytes = max_bytes - max_bytes // 2
        self._loop = asyncio.get_running_loop()
        self.overflowed: asyncio.Future[None] = self._loop.create_future()
        """Done when there was more than anybody would read."""
        self._read_fd, self.write_fd = os.pipe()
        """The end that is the program's."""
        os.set_blocking(self._read_fd, False)
        self._is_write_end_open = True

    def start_reading(self) -> None:
        """The program has its end: read from now on."""
        self._close_write_end()
        self._loop.add_reader(self._read_fd, self._read_chunk)

    def drain(self) -> None:
        """Take what is still in the pipe."""
        while self.written_bytes <= MAX_WRITTEN_BYTES and self._read_chunk():
            pass

    def close(self) -> None:
        """Let go of the pipe."""
        self.overflowed.cancel()
        self._loop.remove_reader(self._read_fd)
        self._close_write_end()
        os.close(self._read_fd)

    def to_text(self) -> str:
        """What there is to tell."""
        left_out = self.written_bytes - len(self._head) - len(self._tail)
        between = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return (bytes(self._head) + between + bytes(self._tail)).decode("utf-8", "replace").replace("\0", "\ufffd")

    def _close_write_end(self) -> None:
        if self._is_write_end_open:
            self._is_write_end_open = False
            os.close(self.write_fd)

    def _read_chunk(self) -> bool:
        """Take a piece; false if there is none now."""
        try:
            piece = os.read(self._read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._read_fd)  # an end is always readable: it would keep the loop busy
            return False
        self._add_chunk(piece)
        return True

    def _add_chunk(self, chunk: bytes) -> None:
        self.written_bytes += len(chunk)
        room = self._max_head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._max_tail_bytes]
        if self.written_bytes > MAX_WRITTEN_BYTES and not self.overflowed.done():
            self.overflowed.set_result(None)
