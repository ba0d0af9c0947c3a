"""Listening without an event loop.

The connection and the heartbeats live on a thread beside, with a loop of its own. So a function that blocks for
minutes loses no delivery. Functions of steps run in the thread that calls ``step``. A thread
cannot be stopped: when a delivery is lost, a function that runs goes on to its end, its outcome is thrown away, and the
next call on the delivery raises ``DeliveryLost``, which leaves the block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from holdfast.admission.durations import Duration
from holdfast.client.delivery import Delivery, log
from holdfast.client.delivery_steps import RecordedStep, StepCall, UnfinishedStep, UsageSource, is_async
from holdfast.client.listener import Listener, check_ended
from holdfast.errors import UsageError

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-listener", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there, and wait for what comes of it. Whoever is interrupted meanwhile does not leave it behind."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End whatever runs there, and the thread."""
        self.run(_cancel_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def listen_sync(
    create_listener: Callable[[], Listener], disconnect: Callable[[], Coroutine[Any, Any, None]], *, concurrency: int
) -> Iterator[SyncDelivery]:
    """Deliveries as they come.

    Args:
        create_listener: makes the listener, under the loop that it lives on.
        disconnect: disconnects that loop.
        concurrency: how many deliveries can be held.
    """

    async def begin() -> Listener:
        return create_listener()

    thread = LoopThread()
    try:
        listener = thread.run(begin())
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


class SyncDelivery:
    """A run in the hands of this process, for code without an event loop: see ``Delivery``.

    It is handed out by ``Client.listen_sync``; use it as ``with delivery:``.
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

    def __repr__(self) -> str:
        return repr(self._delivery)

    @property
    def steps(self) -> Mapping[str, RecordedStep]:
        """What is recorded, by name."""
        return self._delivery.steps

    @property
    def in_flight(self) -> Mapping[str, UnfinishedStep]:
        """What an earlier delivery has begun, and of which nothing is recorded."""
        return self._delivery.in_flight

    @property
    def state(self) -> str:
        """``claimed``, then ``completed``, ``failed``, ``released``, ``parked`` or ``lost``."""
        return self._delivery.state

    @property
    def is_lost(self) -> bool:
        """Whether the run is not this listener's any more: a function that takes long may look, and stop."""
        return self._delivery.is_lost

    @property
    def is_ended(self) -> bool:
        """Whether it is over."""
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
        delivery = self._delivery
        delivery.check_active()
        step = StepCall(delivery, name, function, args, kwargs, retries=retries, once=once, usage=usage)
        is_there, value = step.find_recorded()
        if is_there:
            return value
        attempt, error = 1, None
        while True:
            self._thread.run(step.start_attempt(attempt, error))
            try:
                value = function(*args, **kwargs)
                break
            except Exception as raised:
                pause = step.get_retry_delay_s(attempt, raised)
                if pause is None:
                    raise
                log.warning("%s: attempt %d of step %r has failed: %r", self, attempt, name, raised)
                attempt, error = attempt + 1, raised
                self._thread.run(delivery.run_while_claimed(asyncio.sleep(pause)))
        return self._thread.run(delivery.run_while_claimed(step.record(value, attempt)))

    def record(self, name: str, value: Any) -> Any:
        """``Delivery.record``."""
        return self._thread.run(self._delivery.record(name, value))

    def idempotency_key(self, name: str) -> str:
        """``Delivery.idempotency_key``."""
        return self._delivery.idempotency_key(name)

    def ask(
        self,
        question: str,
        *,
        name: str | None = None,
        choices: Sequence[str] = (),
        form: Any = None,
        assignee: str = "",
        timeout: Duration | None = None,
    ) -> Any:
        """``Delivery.ask``."""
        asked = self._delivery.ask(question, name=name, choices=choices, form=form, assignee=assignee, timeout=timeout)
        return self._thread.run(asked)

    def wait_for_signal(self, signal: str, *, name: str | None = None, timeout: Duration | None = None) -> Any:
        """``Delivery.wait_for_signal``."""
        return self._thread.run(self._delivery.wait_for_signal(signal, name=name, timeout=timeout))

    def sleep(self, seconds: float, *, name: str) -> None:
        """``Delivery.sleep``."""
        self._thread.run(self._delivery.sleep(seconds, name=name))

    def complete(self, output: Any = None) -> None:
        """``Delivery.complete``."""
        self._thread.run(self._delivery.complete(output))

    def fail(self, error: BaseException | str, *, retry: bool = True, delay: Duration | None = None) -> None:
        """``Delivery.fail``."""
        self._thread.run(self._delivery.fail(error, retry=retry, delay=delay))

    def release(self, *, delay: Duration = 0.0, reason: str = "") -> None:
        """``Delivery.release``."""
        self._thread.run(self._delivery.release(delay=delay, reason=reason))

    def heartbeat(self) -> None:
        """``Delivery.heartbeat``."""
        self._thread.run(self._delivery.heartbeat())

    def __enter__(self) -> SyncDelivery:
        self._delivery.is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._thread.run(self._delivery.exit_block(error))
