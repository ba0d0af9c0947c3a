"""Listening without an event loop.

The connection and the heartbeats live on another thread, with an event loop of its own. So a function that blocks for
minutes loses no delivery. Functions of steps run in the thread that calls ``step``. A thread cannot be stopped: when a
delivery is lost, a function that is running continues to its end, its outcome is discarded, and the next call on the
delivery raises ``DeliveryLost``, which ends the block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.client.delivery import Delivery
from holdfast.client.delivery_steps import DeliveryStep, RecordedStep, UnfinishedStep, UsageSource, is_async
from holdfast.client.listener import check_ended
from holdfast.client.loop_thread import LoopThread
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.client.http.listener import HttpListener

P = ParamSpec("P")
T = TypeVar("T")


def listen_sync(
    create_listener: Callable[[], HttpListener],
    disconnect: Callable[[], Coroutine[Any, Any, None]],
    *,
    concurrency: int,
) -> Iterator[SyncDelivery]:
    """Deliveries as they come.

    Args:
        create_listener: creates the listener; called on its event loop.
        disconnect: disconnects that loop.
        concurrency: how many deliveries can be claimed at once.
    """

    async def create() -> HttpListener:
        return create_listener()

    thread = LoopThread("holdfast-listener")
    try:
        listener = thread.run(create())
        try:
            while True:
                delivery = thread.run(listener.next())
                yield SyncDelivery(delivery, thread)
                thread.run(check_ended(delivery, concurrency))
        finally:
            thread.run(listener.leave())
            thread.run(disconnect())
    finally:
        thread.close()


def _run_on_thread(
    method: Callable[Concatenate[Delivery, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncDelivery, P], T]:
    """A method that awaits the one of ``Delivery`` on the thread of the listener."""

    def call(self: SyncDelivery, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._delivery, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return wraps(method)(call)


class SyncDelivery:
    """A run that this process holds, for code without an event loop: see ``Delivery``.

    ``Client.listen_sync`` creates it; use it as ``with delivery:``.
    """

    def __init__(self, delivery: Delivery, thread: LoopThread) -> None:
        self._delivery = delivery
        self._thread = thread
        self.id = delivery.id
        self.run_id = delivery.run_id
        self.address = delivery.address
        self.payload: Any = delivery.payload
        self.number = delivery.number
        self.failure_count = delivery.failure_count
        self.deadline: datetime | None = delivery.deadline
        self.created_at = delivery.created_at
        self.tags = delivery.tags
        self.steps: Mapping[str, RecordedStep] = delivery.steps
        """The recorded steps, by name."""
        self.in_flight: Mapping[str, UnfinishedStep] = delivery.in_flight
        """Steps that an earlier delivery started, and that have no recorded outcome, by name."""

    def __repr__(self) -> str:
        return repr(self._delivery)

    @property
    def state(self) -> str:
        """``claimed``, then ``completed``, ``failed``, ``released``, ``parked``, or ``lost``."""
        return self._delivery.state

    @property
    def is_lost(self) -> bool:
        """Whether this listener has lost the run: a function that takes long may check this, and stop."""
        return self._delivery.is_lost

    @property
    def is_ended(self) -> bool:
        """Whether the delivery has ended."""
        return self._delivery.is_ended

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        once: bool = False,
        usage: UsageSource | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function in this thread, and record what it returns: see ``Delivery.step``."""
        if is_async(function):
            raise UsageError(
                f"step {name!r} is an async function: use it with `async for delivery in client.listen(...)`"
            )
        delivery, run = self._delivery, self._thread.run
        delivery.check_active()
        step = DeliveryStep(delivery, name, function, args, kwargs, retries=retries, once=once, usage=usage)
        is_recorded, value = step.find_recorded()
        if is_recorded:
            return value
        while True:
            run(step.start_attempt())
            try:
                value = function(*args, **kwargs)
                break
            except Exception as error:
                delay_s = step.begin_retry(error)
            run(delivery.run_while_claimed(asyncio.sleep(delay_s)))
        return run(delivery.run_while_claimed(step.record(value)))

    def idempotency_key(self, name: str) -> str:
        """``Delivery.idempotency_key``."""
        return self._delivery.idempotency_key(name)

    record = _run_on_thread(Delivery.record)
    ask = _run_on_thread(Delivery.ask)
    wait_for_signal = _run_on_thread(Delivery.wait_for_signal)
    sleep = _run_on_thread(Delivery.sleep)
    complete = _run_on_thread(Delivery.complete)
    fail = _run_on_thread(Delivery.fail)
    release = _run_on_thread(Delivery.release)
    heartbeat = _run_on_thread(Delivery.heartbeat)

    def __enter__(self) -> SyncDelivery:
        self._delivery.is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._thread.run(self._delivery.exit_block(error))
