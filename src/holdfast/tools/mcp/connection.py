"""The connection to one MCP server on one event loop, shared by all runs there.

The library's context managers must be entered and left in the same task, so a task of our own opens the connection,
holds it, and closes it: when it broke, when nobody has used it for a while, when the engines that used it have closed,
or when the task is cancelled, as ``asyncio.run`` does at its end. Whoever asks waits beside that task: if a caller is
cancelled, the connection stays as it is, for the others.

A connection that is over is never mended. The next who asks gets a new one, while the old one may still be closing.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from holdfast.errors import McpError, McpUnavailable

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

    from holdfast.engine.host import StepEngine

T = TypeVar("T")

log = logging.getLogger("holdfast.tools.mcp")

IDLE_TIMEOUT_S = 300.0
"""Seconds without a call after which a connection is closed."""

CLOSE_TIMEOUT_S = 10.0
"""Seconds that closing may take before nobody waits for it any more."""


class OpenConnection:
    """An open connection."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.call_count = 0
        """How many are in flight."""
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be asked here any more."""
        return self._ended.is_set()

    def end(self) -> None:
        """Nothing can be asked here any more."""
        self._ended.set()
        self._changed.set()

    @asynccontextmanager
    async def use_session(self) -> AsyncGenerator[ClientSession]:
        """Ask something; the connection is not idle meanwhile."""
        self.call_count += 1
        try:
            yield self.session
        finally:
            self.call_count -= 1
            self._changed.set()

    async def wait_until_ended(self, idle_timeout_s: float) -> None:
        """Return when the connection is over, or has been idle for so long; from then on it is over."""
        while not self.has_ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self.call_count else idle_timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                if not self.call_count:
                    self.end()


Connector = Callable[[Callable[[], None]], AbstractAsyncContextManager["ClientSession"]]
"""Opens a connection. What it is handed is to be called when the server has ended it."""


HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""What is sent along with every request over HTTP, or a function that makes it."""


class _PendingConnection(NamedTuple):
    """A connection that is being opened."""

    connection: asyncio.Future[OpenConnection]
    owner: asyncio.Task[None]


class Connection:
    """The connection to a server, opened when it is needed.

    Args:
        server: the server's name, for messages.
        connect: opens a connection.
        open_timeout_s: seconds that opening may take.
    """

    def __init__(self, server: str, connect: Connector, open_timeout_s: float) -> None:
        self._server = server
        self._connect = connect
        self._open_timeout_s = open_timeout_s
        self._current: OpenConnection | None = None
        self._pending: _PendingConnection | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._engines: WeakSet[StepEngine] = WeakSet()

    async def run(self, operation: Callable[[OpenConnection], Awaitable[T]], engine: StepEngine | None = None) -> T:
        """Ask something on an open connection. Raises ``McpUnavailable`` if there is none to be had."""
        if engine is not None:
            self._close_with_engine(engine)
        live = await self._get_open_connection()
        if live.has_ended:
            raise McpUnavailable(
                f"the connection to the MCP server {self._server!r} ended at once", self._server, is_sent=False
            )
        async with live.use_session():
            return await operation(live)

    async def close(self) -> None:
        """Close it, if it is open; the next who asks opens another."""
        if self._current is not None:
            self._current.end()
        if self._pending is not None:
            self._pending.owner.cancel()
        if self._owners:
            await asyncio.wait(self._owners, timeout=CLOSE_TIMEOUT_S)

    def _close_with_engine(self, engine: StepEngine) -> None:
        if engine in self._engines:
            return
        self._engines.add(engine)

        async def closed() -> None:
            self._engines.discard(engine)
            if not self._engines:
                await self.close()

        engine.close_callbacks.append(closed)

    async def _get_open_connection(self) -> OpenConnection:
        if self._current is not None and not self._current.has_ended:
            return self._current
        if self._pending is None:
            loop = asyncio.get_running_loop()  # not kept: what is known by its loop must not keep it alive
            opened: asyncio.Future[OpenConnection] = loop.create_future()
            opened.add_done_callback(_consume_exception)
            # In a context of its own: it belongs to no run, and to no step.
            name, context = f"mcp-{self._server}", contextvars.Context()
            owner = loop.create_task(self._run_connection(opened), name=name, context=context)
            self._pending = _PendingConnection(opened, owner)
            self._owners.add(owner)
            owner.add_done_callback(partial(self._on_owner_done, opened))
        return await asyncio.shield(self._pending.connection)

    async def _run_connection(self, pending: asyncio.Future[OpenConnection]) -> None:
        """Open a connection, hold it until it is over, and close it: nobody else touches its context managers."""
        live: OpenConnection | None = None
        has_ended = False

        def ended() -> None:
            nonlocal has_ended
            has_ended = True
            if live is not None:
                live.end()

        try:
            async with asyncio.timeout(self._open_timeout_s) as limit, self._connect(ended) as session:
                limit.reschedule(None)
                self._current = live = OpenConnection(session)
                if has_ended:
                    live.end()
                self._pending = None
                pending.set_result(live)
                await live.wait_until_ended(IDLE_TIMEOUT_S)
        except BaseException as error:
            if not pending.done():
                self._pending = None
                pending.set_exception(self._to_mcp_error(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            log.debug("the connection to the MCP server %r broke: %s", self._server, type(error).__name__)
        finally:
            ended()
            if self._current is live:
                self._current = None

    def _on_owner_done(self, pending: asyncio.Future[OpenConnection], owner: asyncio.Task[None]) -> None:
        self._owners.discard(owner)
        if not pending.done():  # cancelled before it had begun
            self._pending = None
            pending.set_exception(self._to_mcp_error(asyncio.CancelledError()))

    def _to_mcp_error(self, error: BaseException) -> Exception:
        """Why no connection could be opened."""
        error = unwrap_exception_group(error)
        if isinstance(error, McpError):
            return error
        if isinstance(error, TimeoutError):
            words = f"the MCP server {self._server!r} gave no answer within {self._open_timeout_s:g} s of its start"
        elif isinstance(error, asyncio.CancelledError):
            words = f"the MCP server {self._server!r} is not asked any more: this process stops"
        else:
            words = f"no connection to the MCP server {self._server!r}: {type(error).__name__}: {error}"
        return McpUnavailable(words, self._server, is_sent=False)


def _consume_exception(future: asyncio.Future[Any]) -> None:
    """Whoever waited for it may be gone."""
    if not future.cancelled():
        future.exception()


def unwrap_exception_group(error: BaseException) -> BaseException:
    """Task groups put one exception into another."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
