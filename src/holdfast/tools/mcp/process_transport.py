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

from holdfast.codec.formatting import truncate
from holdfast.errors import McpUnavailable
from holdfast.tools.mcp.secret_redaction import SecretRedactor

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_LINE_BYTES = 2000
MAX_LINES_PER_WINDOW = 200
"""So many lines of stderr are logged in a window of time; how many more there were is told after it."""
WINDOW_S = 10.0
STDERR_DRAIN_S = 1.0
"""Seconds that the last words of a process are waited for: one that it has started may keep its stderr open."""


@asynccontextmanager
async def open_process_streams(
    server: str, command: tuple[str, ...], env: Mapping[str, str], cwd: str | Path | None, secrets: SecretRedactor
) -> AsyncGenerator[tuple[TransportStreams, Callable[[], Awaitable[str]]]]:
    """A new process of a server: the streams to and from it, and what tells the last line that it has written."""
    complaints = StderrLog(server, secrets)
    started = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(env), cwd=cwd)
    async with AsyncExitStack() as stack:
        stack.callback(complaints.close_write_end)
        try:
            streams = await stack.enter_async_context(stdio_client(started, complaints.write_end))
        except (OSError, ValueError) as error:
            where = "" if cwd is None else f" in the folder {str(cwd)!r}"
            raise McpUnavailable(
                f"the MCP server {server!r} could not be started: its command is {command[0]!r}{where}, and that "
                f"failed with {type(error).__name__}: {getattr(error, 'strerror', None) or error}",
                server,
                is_sent=False,
            ) from None
        complaints.close_write_end()
        yield streams, complaints.read_last_line


class StderrLog:
    """What a server writes to its stderr. A thread reads it: not every platform can do that on the event loop."""

    def __init__(self, server: str, secrets: SecretRedactor) -> None:
        self._log = logging.getLogger(f"holdfast.tools.mcp.{server}")
        self._secrets = secrets
        self._last_line = ""
        reading, writing = os.pipe()
        self.write_end = os.fdopen(writing, "w")
        self.reader_thread = threading.Thread(
            target=self._read_lines, args=(reading,), daemon=True, name=f"mcp-{server}-stderr"
        )
        self.reader_thread.start()

    def close_write_end(self) -> None:
        """Once the process has it, our end would only keep the pipe open."""
        self.write_end.close()

    async def read_last_line(self) -> str:
        """The last line with something in it, of a process that has ended: what it wrote may still be on its way."""
        await asyncio.to_thread(self.reader_thread.join, STDERR_DRAIN_S)
        return self._last_line

    def _read_lines(self, read_fd: int) -> None:
        begun, logged = time.monotonic(), 0
        with os.fdopen(read_fd, "rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                text = self._secrets.redact(line.decode("utf-8", "replace").rstrip())
                if not text.strip():
                    continue
                self._last_line = truncate(text.strip(), 300)
                if time.monotonic() - begun > WINDOW_S:
                    self._log_suppressed(logged - MAX_LINES_PER_WINDOW)
                    begun, logged = time.monotonic(), 0
                logged += 1
                if logged <= MAX_LINES_PER_WINDOW:
                    self._log.info("%s", text)
        self._log_suppressed(logged - MAX_LINES_PER_WINDOW)

    def _log_suppressed(self, line_count: int) -> None:
        if line_count > 0:
            self._log.info("%d more lines are not shown", line_count)
