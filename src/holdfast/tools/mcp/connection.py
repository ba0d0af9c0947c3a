"""The connection to one MCP server on one event loop, shared by all runs there.

The library's context managers must be entered and left in the same task, so a separate task opens the connection,
holds it, and closes it: when it breaks, when it was idle for a while, when the engines that used it have closed, or
when the task is cancelled, as ``asyncio.run`` does at its end. Callers wait for that task from outside: if a caller is
cancelled, the connection stays open for the others.

An ended connection is never repaired. The next caller gets a new one, while the old one may still be closing.
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
"""How long a connection without calls stays open."""

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for connections to close."""


class OpenConnection:
    """An open connection."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.call_count = 0
        """Calls in flight."""
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether the connection accepts no more requests."""
        return self._ended.is_set()

    def end(self) -> None:
        """Accept no more requests."""
        self._ended.set()
        self._changed.set()

    @asynccontextmanager
    async def use_session(self) -> AsyncGenerator[ClientSession]:
        """The session for one call, during which the connection is not idle."""
        self.call_count += 1
        try:
            yield self.session
        finally:
            self.call_count -= 1
            self._changed.set()

    async def wait_until_ended(self, idle_timeout_s: float) -> None:
        """Wait until the connection ends. It ends itself when it was idle for the timeout."""
        while not self.has_ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self.call_count else idle_timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                if not self.call_count:
                    self.end()


Connector = Callable[[Callable[[], None]], AbstractAsyncContextManager["ClientSession"]]
"""Opens a session. Its argument is a callback for when the server has ended the connection."""


HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""The headers of every HTTP request, or a function that returns them."""


class _PendingConnection(NamedTuple):
    """A connection that is opening."""

    connection: asyncio.Future[OpenConnection]
    owner: asyncio.Task[None]


class Connection:
    """The connection to a server, opened on demand.

    Args:
        server: the server's name, for messages.
        connect: opens a session.
        open_timeout_s: how long opening may take.
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
        """Run an operation on an open connection. Raises ``McpUnavailable`` if none can be opened."""
        if engine is not None:
            self._close_with_engine(engine)
        connection = await self._get_open_connection()
        if connection.has_ended:
            raise McpUnavailable(
                f"the connection to the MCP server {self._server!r} ended at once", self._server, is_sent=False
            )
        async with connection.use_session():
            return await operation(connection)

    async def close(self) -> None:
        """Close it if it is open. The next call opens another one."""
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
            loop = asyncio.get_running_loop()  # not stored: connections are keyed weakly by their loop
            opened: asyncio.Future[OpenConnection] = loop.create_future()
            opened.add_done_callback(_consume_exception)
            # In a context of its own, because it belongs to no run or step.
            name, context = f"mcp-{self._server}", contextvars.Context()
            owner = loop.create_task(self._run_connection(opened), name=name, context=context)
            self._pending = _PendingConnection(opened, owner)
            self._owners.add(owner)
            owner.add_done_callback(partial(self._on_owner_done, opened))
        return await asyncio.shield(self._pending.connection)

    async def _run_connection(self, pending: asyncio.Future[OpenConnection]) -> None:
        """Open a connection, hold it until it ends, and close it. Only this task uses its context managers."""
        connection: OpenConnection | None = None
        has_ended = False

        def on_end() -> None:
            nonlocal has_ended
            has_ended = True
            if connection is not None:
                connection.end()

        try:
            async with asyncio.timeout(self._open_timeout_s) as limit, self._connect(on_end) as session:
                limit.reschedule(None)
                self._current = connection = OpenConnection(session)
                if has_ended:
                    connection.end()
                self._pending = None
                pending.set_result(connection)
                await connection.wait_until_ended(IDLE_TIMEOUT_S)
        except BaseException as error:
            if not pending.done():
                self._pending = None
                pending.set_exception(self._to_mcp_error(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            log.debug("the connection to the MCP server %r broke: %s", self._server, type(error).__name__)
        finally:
            on_end()
            if self._current is connection:
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
    """Keep asyncio from logging an exception whose waiters were cancelled."""
    if not future.cancelled():
        future.exception()


def unwrap_exception_group(error: BaseException) -> BaseException:
    """The innermost first exception: task groups wrap exceptions in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
