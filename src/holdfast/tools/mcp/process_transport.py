"""An MCP server in a process of its own, connected through its stdin and stdout.

The server ends with the connection, and with this process: if this process is killed, the server's stdin ends. Its
stderr is logged line by line, with a limit.
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
"""Maximum number of stderr lines that are logged in a window of time. A line after it counts the others."""
WINDOW_S = 10.0
STDERR_DRAIN_S = 1.0
"""How long to wait for the last line of a process: a child of the process may keep its stderr open."""


@asynccontextmanager
async def open_process_streams(
    server: str, command: tuple[str, ...], env: Mapping[str, str], cwd: str | Path | None, secrets: SecretRedactor
) -> AsyncGenerator[tuple[TransportStreams, Callable[[], Awaitable[str]]]]:
    """A new process of a server: its streams, and a function that returns the last line of its stderr."""
    stderr = StderrLog(server, secrets)
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(env), cwd=cwd)
    async with AsyncExitStack() as stack:
        stack.callback(stderr.close_write_end)
        try:
            streams = await stack.enter_async_context(stdio_client(parameters, stderr.write_end))
        except (OSError, ValueError) as error:
            where = "" if cwd is None else f" in the folder {str(cwd)!r}"
            raise McpUnavailable(
                f"the MCP server {server!r} could not be started: its command is {command[0]!r}{where}, and that "
                f"failed with {type(error).__name__}: {getattr(error, 'strerror', None) or error}",
                server,
                is_sent=False,
            ) from None
        stderr.close_write_end()
        yield streams, stderr.read_last_line


class StderrLog:
    """Logs a server's stderr. A thread reads it, because not every platform can do that on the event loop."""

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
        """Close this process's copy of the write end, which would keep the pipe open."""
        self.write_end.close()

    async def read_last_line(self) -> str:
        """The last line with text from a process that has ended. Waits, because lines may still be in the pipe."""
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
