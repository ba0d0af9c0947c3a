"""Listening on an address: ``listen`` yields deliveries to an ``async for``, ``serve`` calls a function with each.

Both get the deliveries from a listener (``http.listener``), which also keeps the claimed ones until they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.background_tasks import forget_cancel_requests
from holdfast.client.delivery import Delivery
from holdfast.client.delivery_steps import OutcomeCodec, is_async
from holdfast.errors import UsageError
from holdfast.trace_context import continuing_trace

if TYPE_CHECKING:
    from holdfast.client.http.listener import HttpListener

log = logging.getLogger("holdfast.listeners")

MAX_CONCURRENCY = 100
"""Deliveries that a listener can hold at once. It sends the ids of all of them when it connects."""
MAX_NAME_LENGTH = 100


async def listen(listener: HttpListener, *, concurrency: int) -> AsyncGenerator[Delivery]:
    """Deliveries as they come."""
    try:
        while True:
            delivery = await listener.next()
            yield delivery
            await check_ended(delivery, concurrency)
    finally:
        await listener.leave()


async def check_ended(delivery: Delivery, concurrency: int) -> None:
    """Raise ``UsageError`` if a caller that can hold one delivery requests the next before this one has ended.

    It would wait forever.
    """
    if concurrency > 1 or delivery.is_in_block or delivery.is_ended:
        return
    error = UsageError(
        f"the next delivery of {delivery.address!r} was asked for, and nobody has said what became of run "
        f"{delivery.run_id!r}, so it is delivered again. Work on it in `async with delivery:` (`with delivery:` in "
        f"code without an event loop), and end it with `delivery.complete(result)`. To work on several, say at_once=, "
        f"or use `client.serve`"
    )
    await delivery.fail(error)
    raise error


async def serve(listener: HttpListener, handler: Callable[[Delivery], Awaitable[Any]]) -> None:
    """Call a function with every delivery, as many at once as the listener holds, until this is cancelled."""
    codec = OutcomeCodec.from_function(handler)
    tasks: set[asyncio.Task[None]] = set()
    server_task, has_stopped = asyncio.current_task(), False

    def is_stopping() -> bool:
        return has_stopped or (server_task is not None and server_task.cancelling() > 0)

    try:
        while True:
            task = asyncio.create_task(_handle_delivery(await listener.next(), handler, codec, is_stopping))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        has_stopped = True
        try:
            await listener.pause()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await listener.leave()


async def _handle_delivery(
    delivery: Delivery,
    handler: Callable[[Delivery], Awaitable[Any]],
    codec: OutcomeCodec,
    is_stopping: Callable[[], bool],
) -> None:
    try:
        async with delivery:
            try:
                with continuing_trace(delivery.trace_parent):
                    output = await handler(delivery)
            except asyncio.CancelledError as cancelled:
                if is_stopping() or delivery.is_lost:
                    raise
                # Released as by a listener that stops, the run would be delivered again and again.
                await forget_cancel_requests()
                raise RuntimeError(
                    f"the handler for run {delivery.run_id!r} cancelled its own task or raised CancelledError: cancel "
                    f"only tasks that the handler itself has created"
                ) from cancelled
            if not (is_stopping() or delivery.is_lost):
                await forget_cancel_requests()
            if not delivery.is_ended:
                await delivery.complete_with_codec(codec, output)
    except Exception:
        log.exception("%s: this was raised when it was settled already, or could not be told", delivery)


def check_listen_options(address: str, concurrency: int, name: str | None) -> None:
    """Raise ``UsageError`` for options that no listener can have."""
    if not isinstance(address, str) or not address:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"an address is a name, such as 'data-pipeline', not {address!r}")
    if not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"at_once= is a number from 1 to {MAX_CONCURRENCY}, not {concurrency!r}: let several processes listen for "
            "more"
        )
    if name is not None and (not name.isprintable() or len(name) > MAX_NAME_LENGTH):
        raise UsageError(
            f"name= is what people call this process, in at most {MAX_NAME_LENGTH} characters, not {name!r}"
        )


def check_handler(handler: Any) -> None:
    """Raise ``UsageError`` unless the handler is an async function."""
    if not callable(handler) or not is_async(handler):
        raise UsageError(
            f"serve() calls an async function, `async def handler(delivery)`, not {handler!r}. For code without an "
            f"event loop there is `for delivery in client.listen_sync(address): with delivery: ...`"
        )
