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

MOST_WRITTEN = 64 * 1024**2
"""A program that writes more is stopped: reading on would only keep this process busy."""
_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended."""

    code: int
    """The exit code; minus the signal's number if one ended it."""
    output: str
    """What it wrote, of both kinds in the order in which it came, without the middle of what is too long."""
    written: int
    """How many bytes it wrote."""
    stopped: Literal["", "time", "output"]
    """Why it was stopped, if it was."""


async def run_program(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout: float, max_output: int
) -> Ended:
    """Run it to its end. Raises ``OSError`` if it cannot be started."""
    output = _Output(max_output)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.writing,
            stderr=output.writing,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
        output.begin()
        exited = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({exited, output.flooded}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            stopped = "" if exited.done() else "output" if output.flooded.done() else "time"
        finally:
            with suppress(ProcessLookupError, PermissionError):  # nobody is left, or only who has ended
                os.killpg(process.pid, signal.SIGKILL)
            await exited
        output.drain()
        return Ended(process.returncode or 0, output.text(), output.written, stopped)
    finally:
        output.close()


class _Output:
    """What a program writes: of the beginning and the end, half of ``most`` each."""

    def __init__(self, most: int) -> None:
        self.written = 0
        self._head, self._tail = bytearray(), bytearray()
        self._most_head = most // 2
        self._most_tail = most - most // 2
        self._loop = asyncio.get_running_loop()
        self.flooded: asyncio.Future[None] = self._loop.create_future()
        """Done when there was more than anybody would read."""
        self._reading, self.writing = os.pipe()
        """The end that is the program's."""
        os.set_blocking(self._reading, False)
        self._is_open_for_writing = True

    def begin(self) -> None:
        """The program has its end: read from now on."""
        self._close_writing()
        self._loop.add_reader(self._reading, self._read)

    def drain(self) -> None:
        """Take what is still in the pipe."""
        while self.written <= MOST_WRITTEN and self._read():
            pass

    def close(self) -> None:
        """Let go of the pipe."""
        self.flooded.cancel()
        self._loop.remove_reader(self._reading)
        self._close_writing()
        os.close(self._reading)

    def text(self) -> str:
        """What there is to tell."""
        left_out = self.written - len(self._head) - len(self._tail)
        between = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return (bytes(self._head) + between + bytes(self._tail)).decode("utf-8", "replace").replace("\0", "\ufffd")

    def _close_writing(self) -> None:
        if self._is_open_for_writing:
            self._is_open_for_writing = False
            os.close(self.writing)

    def _read(self) -> bool:
        """Take a piece; false if there is none now."""
        try:
            piece = os.read(self._reading, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._reading)  # an end is always readable: it would keep the loop busy
            return False
        self._add(piece)
        return True

    def _add(self, piece: bytes) -> None:
        self.written += len(piece)
        room = self._most_head - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        del self._tail[: -self._most_tail]
        if self.written > MOST_WRITTEN and not self.flooded.done():
            self.flooded.set_result(None)
