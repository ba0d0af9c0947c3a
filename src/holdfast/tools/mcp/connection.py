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

IDLE = 300.0
"""Seconds without a call after which a connection is closed."""

CLOSING = 10.0
"""Seconds that closing may take before nobody waits for it any more."""


class Live:
    """An open connection."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.calls = 0
        """How many are in flight."""
        self._over = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked here any more."""
        return self._over.is_set()

    def end(self) -> None:
        """Nothing can be asked here any more."""
        self._over.set()
        self._changed.set()

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[ClientSession]:
        """Ask something; the connection is not idle meanwhile."""
        self.calls += 1
        try:
            yield self.session
        finally:
            self.calls -= 1
            self._changed.set()

    async def until_over(self, idle: float) -> None:
        """Return when the connection is over, or has been idle for so long; from then on it is over."""
        while not self.is_over:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self.calls else idle):
                    await self._changed.wait()
            except TimeoutError:
                if not self.calls:
                    self.end()


Dial = Callable[[Callable[[], None]], AbstractAsyncContextManager["ClientSession"]]
"""Opens a connection. What it is handed is to be called when the server has ended it."""


Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""What is sent along with every request over HTTP, or a function that makes it."""


class _Opening(NamedTuple):
    """A connection that is being opened."""

    opened: asyncio.Future[Live]
    owner: asyncio.Task[None]


class Connection:
    """The connection to a server, opened when it is needed.

    Args:
        server: the server's name, for messages.
        dial: opens a connection.
        limit: seconds that opening may take.
    """

    def __init__(self, server: str, dial: Dial, limit: float) -> None:
        self._server = server
        self._dial = dial
        self._limit = limit
        self._live: Live | None = None
        self._opening: _Opening | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._engines: WeakSet[StepEngine] = WeakSet()

    async def ask(self, ask: Callable[[Live], Awaitable[T]], engine: StepEngine | None = None) -> T:
        """Ask something on an open connection. Raises ``McpUnavailable`` if there is none to be had."""
        if engine is not None:
            self._serve(engine)
        live = await self._ready()
        if live.is_over:
            raise McpUnavailable(
                f"the connection to the MCP server {self._server!r} ended at once", self._server, sent=False
            )
        async with live.asking():
            return await ask(live)

    async def close(self) -> None:
        """Close it, if it is open; the next who asks opens another."""
        if self._live is not None:
            self._live.end()
        if self._opening is not None:
            self._opening.owner.cancel()
        if self._owners:
            await asyncio.wait(self._owners, timeout=CLOSING)

    def _serve(self, engine: StepEngine) -> None:
        if engine in self._engines:
            return
        self._engines.add(engine)

        async def closed() -> None:
            self._engines.discard(engine)
            if not self._engines:
                await self.close()

        engine.closers.append(closed)

    async def _ready(self) -> Live:
        if self._live is not None and not self._live.is_over:
            return self._live
        if self._opening is None:
            loop = asyncio.get_running_loop()  # not kept: what is known by its loop must not keep it alive
            opened: asyncio.Future[Live] = loop.create_future()
            opened.add_done_callback(_look_at)
            # In a context of its own: it belongs to no run, and to no step.
            name, context = f"mcp-{self._server}", contextvars.Context()
            owner = loop.create_task(self._own(opened), name=name, context=context)
            self._opening = _Opening(opened, owner)
            self._owners.add(owner)
            owner.add_done_callback(partial(self._gone, opened))
        return await asyncio.shield(self._opening.opened)

    async def _own(self, opened: asyncio.Future[Live]) -> None:
        """Open a connection, hold it until it is over, and close it: nobody else touches its context managers."""
        live: Live | None = None
        has_ended = False

        def ended() -> None:
            nonlocal has_ended
            has_ended = True
            if live is not None:
                live.end()

        try:
            async with asyncio.timeout(self._limit) as limit, self._dial(ended) as session:
                limit.reschedule(None)
                self._live = live = Live(session)
                if has_ended:
                    live.end()
                self._opening = None
                opened.set_result(live)
                await live.until_over(IDLE)
        except BaseException as error:
            if not opened.done():
                self._opening = None
                opened.set_exception(self._why(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            log.debug("the connection to the MCP server %r broke: %s", self._server, type(error).__name__)
        finally:
            ended()
            if self._live is live:
                self._live = None

    def _gone(self, opened: asyncio.Future[Live], owner: asyncio.Task[None]) -> None:
        self._owners.discard(owner)
        if not opened.done():  # cancelled before it had begun
            self._opening = None
            opened.set_exception(self._why(asyncio.CancelledError()))

    def _why(self, error: BaseException) -> Exception:
        """Why no connection could be opened."""
        error = innermost(error)
        if isinstance(error, McpError):
            return error
        if isinstance(error, TimeoutError):
            words = f"the MCP server {self._server!r} gave no answer within {self._limit:g} s of its start"
        elif isinstance(error, asyncio.CancelledError):
            words = f"the MCP server {self._server!r} is not asked any more: this process stops"
        else:
            words = f"no connection to the MCP server {self._server!r}: {type(error).__name__}: {error}"
        return McpUnavailable(words, self._server, sent=False)


def _look_at(opening: asyncio.Future[Any]) -> None:
    """Whoever waited for it may be gone."""
    if not opening.cancelled():
        opening.exception()


def innermost(error: BaseException) -> BaseException:
    """Task groups put one exception into another."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
