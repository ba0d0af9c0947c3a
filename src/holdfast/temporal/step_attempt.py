"""An attempt of a step, in an activity.

The activity itself (``activities``) runs in the thread of Temporal's workers; the step runs on the event loop of the
program, or in a thread if it is a plain function, as everywhere. So a step that blocks its loop keeps nobody from
telling Temporal that its worker lives.

**What counts as an attempt.** Temporal counts every time that it hands an activity out, also when the worker died or
was told to stop. A step's ``retries`` are for its failures alone. So Temporal may try for ever, and what the attempts
came to is kept with the heartbeat's details, with what the step wants to be kept (``progress``): those that have begun,
and those of them that failed, or were handed over. The others took their worker down; a run whose step has done so
``max_deliveries`` times is dead. An attempt that nobody has begun counts for nothing: a worker that stands still, or
whose machine is gone without a word, is handed activities as long as Temporal believes in its connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from temporalio.client import Client

from holdfast.admission.usage import Usage
from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import check_size, codec_for, encode_error, message_of
from holdfast.core.seeded_random import Chance
from holdfast.engine.attempts import call_plain, cancelled_from_within, in_time
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.engine.host import StepEngine
from holdfast.engine.step_context import StepContext, current
from holdfast.engine.thread_pool import Threads
from holdfast.errors import FenceLost, StepFailed, UnrecordableValue
from holdfast.stores.contract import History
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import Change, Run, Verdict
from holdfast.stores.temporal.budgets import Asker
from holdfast.temporal.budget_reservation import Spending
from holdfast.temporal.engine_context import Open

_progress = codec_for(Any)


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of the attempts before: the details of a heartbeat."""

    failures: int = 0
    handed: int = 0
    """How often a worker has stopped in good order meanwhile."""
    begun: int = 0
    """How many attempts have begun, with the present one."""
    missed: int = 0
    """How often it could not be found out what the step is; these have begun as well."""
    progress: str | None = None
    """What the step last handed to ``heartbeat``, encoded."""
    error: str = ""
    """Why the last attempt failed, for people to read."""
    failing_since: float | None = None
    """When the first attempt failed."""

    @classmethod
    def of(cls, details: Any) -> Past:
        """As it was kept; whatever it is not is left out."""
        if not isinstance(details, dict):
            return cls()
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in cast(dict[str, Any], details).items() if name in known})

    def kept(self) -> dict[str, Any]:
        """To be kept."""
        return asdict(self)

    def beginning(self, handed_out: int) -> Past:
        """With an attempt that begins, which is the one of this number that Temporal has handed out."""
        # Whoever had the first may have died before a word of it came here: that is taken to be so.
        return replace(self, begun=max(self.begun, 1 if handed_out > 1 else 0) + 1)

    @property
    def deaths(self) -> int:
        """How many workers the step has taken down, if the present attempt does not."""
        return self.begun - 1 - self.failures - self.handed - self.missed


class Outcome(NamedTuple):
    """What an attempt has led to."""

    payload: bytes
    """The encoded value, or error."""
    error: BaseException | None = None
    usage: str = ""
    """What it has used, as JSON."""


class StepHouse(StepEngine, Protocol):
    """What an attempt needs of the engine."""

    @property
    def client(self) -> Client:
        """The way to Temporal, on the program's loop."""
        ...

    @property
    def threads(self) -> Threads:
        """Where plain functions run."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether it lets go of its runs, or is about to."""
        ...

    async def previous_run(self, run: Run) -> str:
        """The run before this one in its session, if that is still there."""
        ...

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal."""
        ...

    async def change(self, op: Change) -> Verdict:
        """Change a run."""
        ...

    async def update(self, run: Run, name: str, *args: Any) -> bool:
        """Ask a run for a change of itself."""
        ...


class StepAttempt:
    """One attempt. It is the step's ``Carrier``. Made in the worker's thread, and carried out on the program's loop."""

    def __init__(
        self,
        house: StepHouse,
        begun: Open,
        execution: str,
        past: Past,
        beat: Callable[[Past], None],
        keep: Callable[[Past], Coroutine[Any, Any, None]],
    ) -> None:
        self.memory: MemoryChange | None = None
        self.run = begun.run
        self.engine = house
        self._house = house
        self._call: StepCall = begun.command.call
        self._position = begun.command.position
        self.number = past.failures + 1
        self.past = past
        self.stopped: BaseException | None = None
        """Why it should stop."""
        self._beat = beat
        self._keep = keep
        self._is_over = False
        self._used: Used | None = None
        self._started_at = house.clock.now()
        asker = Asker(self.run.id, execution, self._position)
        self._spending = Spending(house.client, begun.budgets, asker, self.step.name)

    @property
    def step(self) -> StepDefinition:
        """The step."""
        return self._call.step

    @property
    def idempotency_key(self) -> str:
        """Stable over attempts, crashes and replays."""
        return Chance(self.run.seed, self.run.rewound).idempotency_key(self._position, self.step.name)

    # Carrying it out, on the program's loop

    async def make(self) -> Outcome:
        """Make the attempt."""
        try:
            value = await self._attempt()
        except asyncio.CancelledError:
            if self.stopped is not None or self._house.is_stopping:
                raise
            error: BaseException = cancelled_from_within(self.step, self.run.id)
        except FenceLost as lost:
            if self.stopped is not None:
                raise asyncio.CancelledError from lost
            error = StepFailed(f"the step raised {lost!r}", self.step.name)
        except (SystemExit, KeyboardInterrupt) as stop:
            error = StepFailed(f"the step raised {type(stop).__name__}: {message_of(stop)}", self.step.name)
        except BaseException as raised:
            error = raised
        else:
            try:
                await forget_cancel_requests()
                return await self._report(value)
            except (Exception, SystemExit, KeyboardInterrupt) as refused:
                error = refused
        finally:
            self._is_over = True
        return Outcome(encode_error(error), error)

    async def _attempt(self) -> Any:
        step, args, kwargs = self._call
        encoded = self.past.progress
        progress = None if encoded is None else _progress.decode(encoded.encode(), "heartbeat progress")
        current.set(StepContext(self, self.number, progress, self.past.failing_since))
        if step.is_async:
            call = partial(step.function, *args, **kwargs)
        else:
            call = partial(self._call_in_thread, args, kwargs)
            await self._house.threads.reserve()
        return await in_time(step, self.run.id, self.number, call)

    async def _call_in_thread(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = contextvars.copy_context()
        call = partial(call_plain, self.step, args, kwargs)
        return await self._house.threads.run(lambda: context.run(self._call_if_wanted, call))

    def _call_if_wanted(self, call: Callable[[], Any]) -> Any:
        """In the thread: somebody may have stopped the step while it waited for its turn there."""
        if self.stopped is not None:
            raise FenceLost(f"step {self.step.name!r} had not begun when it was stopped")
        return call()

    async def _report(self, value: Any) -> Outcome:
        step = self.step
        self._used = None if step.used is None else step.used(value)
        what = f"the output of step {step.name!r}"
        try:
            payload, _ = step.output.record(value, what)
            check_size(payload, what, self._house.max_value)
        except UnrecordableValue as refused:
            return Outcome(encode_error(refused), refused)
        if self.memory is not None:
            await self._house.writer.perform(self.memory)
        used = await self.settle()
        return Outcome(payload, None, "" if used is None else json.dumps({**asdict(used.usage), "model": used.model}))

    # What a step may ask for (see `engine.step_context.Carrier`)

    def beat(self, context: StepContext, progress: Any) -> None:
        """A heartbeat, from whatever thread the step runs in."""
        if isinstance(self.stopped, FenceLost):
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if self.stopped is not None:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if self._is_over:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is not None:
            self._remember(context, progress)
            self._beat(self.past)

    async def keep(self, context: StepContext, progress: Any) -> None:
        """A heartbeat that is waited for."""
        self.beat(context, None)
        self._remember(context, progress)
        await self._keep(self.past)

    def _remember(self, context: StepContext, progress: Any) -> None:
        what = f"the progress of step {context.name!r}"
        encoded = check_size(_progress.encode(progress, what), what, self._house.max_value)
        self.past = replace(self.past, progress=encoded.decode())

    def tell_text(self, context: StepContext, text: str) -> None:
        """Nobody can follow a step on Temporal."""

    def listener(self, context: StepContext, request: int) -> Callable[[str], None]:
        """Nobody can, either."""
        return lambda _: None

    async def reserve(self, expected: Usage) -> None:
        """Ask for a piece of the run's budgets."""
        await self._spending.reserve(expected)

    async def settle(self) -> Used | None:
        """The step has an outcome: tell the run's budgets what it has used."""
        used = self._used
        if self.run.has_budget:
            usage, model = used or Used(Usage(), "")
            used = Used(replace(usage, seconds=max(0.0, self._house.clock.now() - self._started_at)), model)
            await self._spending.settle(used.usage)
        return used

    async def give_back(self) -> None:
        """The step has none, and nobody makes another attempt."""
        await self._spending.give_back()

    async def previous_run(self) -> str:
        """The run before this one in its session."""
        run = self.run
        return run.previous if run.previous or not run.session else await self._house.previous_run(run)

    async def remind_approval(self, id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
        """Note that people are told of a question again."""
        return await self._house.update(self.run, "remind", id, reminders, asked_of, expires_at)

    async def withdraw_approval(self, id: str) -> bool:
        """Take a question back."""
        return await self._house.update(self.run, "withdraw", id)

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """Another run's row and journal."""
        return await self._house.read_run(run_id)

    async def change_run(self, op: Change) -> Verdict:
        """Change another run."""
        return await self._house.change(op)


class OnLoop:
    """A coroutine on the program's loop, for somebody who waits for it in another thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Callable[[], Coroutine[Any, Any, Outcome]],
        context: contextvars.Context,
    ) -> None:
        self._loop = loop
        self._home = asyncio.get_running_loop()
        self._task: asyncio.Task[Outcome] | None = None
        self._stopped = False
        self._lock = threading.Lock()
        self.done: asyncio.Future[Outcome] = self._home.create_future()
        loop.call_soon_threadsafe(self._begin, coro, context)

    def _begin(self, coro: Callable[[], Coroutine[Any, Any, Outcome]], context: contextvars.Context) -> None:
        self._task = self._loop.create_task(coro(), context=context)
        self._task.add_done_callback(self._ended)
        if self._stopped:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        try:
            self._home.call_soon_threadsafe(self._tell, task)
        except RuntimeError:
            pass  # the workers' loop has closed: nobody waits any more

    def _tell(self, task: asyncio.Task[Outcome]) -> None:
        if self.done.done():
            return
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())

    def stop(self) -> None:
        """Cancel it."""
        self._stopped = True
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the program's loop has closed

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
