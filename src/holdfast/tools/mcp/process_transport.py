"""An MCP server as a process of its own, which is spoken to through its stdin and stdout.

It dies with the connection, and with this process: when that is killed, the server's stdin ends. What it writes to its
stderr is logged, line by line; of a server that writes without end not all is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mcp.client.stdio import StdioServerParameters, stdio_client

from holdfast.codec.formatting import cut
from holdfast.errors import McpUnavailable
from holdfast.tools.mcp.secret_redaction import Secrets

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LONGEST_LINE = 2000
LINES = 200
"""So many lines of stderr are logged in a window of time; how many more there were is told after it."""
WINDOW = 10.0
LAST_WORDS = 1.0
"""Seconds that the last words of a process are waited for: one that it has started may keep its stderr open."""


@asynccontextmanager
async def process_streams(
    server: str, command: tuple[str, ...], env: Mapping[str, str], cwd: str | Path | None, secrets: Secrets
) -> AsyncGenerator[tuple[TransportStreams, Callable[[], Awaitable[str]]]]:
    """A new process of a server: the streams to and from it, and what tells the last line that it has written."""
    complaints = Complaints(server, secrets)
    started = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(env), cwd=cwd)
    async with AsyncExitStack() as stack:
        stack.callback(complaints.close_writing)
        try:
            streams = await stack.enter_async_context(stdio_client(started, complaints.writing))
        except (OSError, ValueError) as error:
            where = "" if cwd is None else f" in the folder {str(cwd)!r}"
            raise McpUnavailable(
                f"the MCP server {server!r} could not be started: its command is {command[0]!r}{where}, and that "
                f"failed with {type(error).__name__}: {getattr(error, 'strerror', None) or error}",
                server,
                sent=False,
            ) from None
        complaints.close_writing()
        yield streams, complaints.last_words


class Complaints:
    """What a server writes to its stderr. A thread reads it: not every platform can do that on the event loop."""

    def __init__(self, server: str, secrets: Secrets) -> None:
        self._log = logging.getLogger(f"holdfast.tools.mcp.{server}")
        self._secrets = secrets
        self._last = ""
        reading, writing = os.pipe()
        self.writing = os.fdopen(writing, "w")
        self.thread = threading.Thread(target=self._listen, args=(reading,), daemon=True, name=f"mcp-{server}-stderr")
        self.thread.start()

    def close_writing(self) -> None:
        """Once the process has it, our end would only keep the pipe open."""
        self.writing.close()

    async def last_words(self) -> str:
        """The last line with something in it, of a process that has ended: what it wrote may still be on its way."""
        await asyncio.to_thread(self.thread.join, LAST_WORDS)
        return self._last

    def _listen(self, reading: int) -> None:
        begun, logged = time.monotonic(), 0
        with os.fdopen(reading, "rb") as stream:
            while line := stream.readline(LONGEST_LINE):
                text = self._secrets.hide(line.decode("utf-8", "replace").rstrip())
                if not text.strip():
                    continue
                self._last = cut(text.strip(), 300)
                if time.monotonic() - begun > WINDOW:
                    self._tell_of_more(logged - LINES)
                    begun, logged = time.monotonic(), 0
                logged += 1
                if logged <= LINES:
                    self._log.info("%s", text)
        self._tell_of_more(logged - LINES)

    def _tell_of_more(self, lines: int) -> None:
        if lines > 0:
            self._log.info("%d more lines are not shown", lines)
