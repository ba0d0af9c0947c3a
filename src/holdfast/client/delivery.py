"""``Delivery``: a run in the hands of this process, which listens on an address.

A delivery belongs to its listener until it is *settled*: completed, failed, given back, parked, or lost. Until then
the listener's heartbeats keep it (``http.listening``). What is recorded stays, whoever has the run next.

**How code is left.** A run that waits for a person is parked: ``DeliveryParked`` leaves the code that has asked, and
the code comes to the same place again, in another delivery, when the answer is there. A run that is lost (cancelled,
switched off, taken over by somebody else) must not be worked on any more. Whoever calls something on it is told by
``DeliveryLost``. And inside of ``async with delivery`` nobody needs to call anything: the task of the block is
cancelled, as ``asyncio.timeout`` does it, and the block is left quietly. The cancellation is made from the event loop,
never within the task's own step, so that it has always arrived when the block is left; and it is taken back there, so
that whoever cancels the task from outside at the same time is still obeyed.

**How the block ends.** It must have settled the delivery. An exception fails it, to be delivered again, or for good if
another delivery would only meet it again. A cancellation from outside, as at the end of a process, gives it back, which
counts for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from holdfast.client.delivery_approvals import Asking, UnfitAnswer
from holdfast.client.delivery_steps import (
    OutcomeForm,
    RecordedStep,
    StepBegun,
    StepCall,
    Usages,
    outcome_of,
    read_moment,
)
from holdfast.codec import message_of
from holdfast.errors import (
    ApprovalError,
    BudgetExceeded,
    CodecError,
    DefinitionError,
    DeliveryLost,
    DeliveryParked,
    HoldfastError,
    InputError,
    StepOutcomeUnknown,
    UnreadableRecord,
    UsageError,
)
from holdfast.services.wire_values import from_wire

log = logging.getLogger("holdfast.listening")

T = TypeVar("T")

FAREWELL = 3.0
"""Seconds that giving a delivery back may take when the process ends: the lease will do the same, later."""
LEAVES_WITHIN = 1.0
"""Seconds until a block is cancelled in which a call was told that the run is lost: code that is told leaves itself."""
FOR_GOOD = (
    ApprovalError,
    BudgetExceeded,
    CodecError,
    DefinitionError,
    InputError,
    StepOutcomeUnknown,
    UsageError,
)
"""Errors that every further delivery would meet again."""


class Line(Protocol):
    """The way from a delivery to its server."""

    async def call(self, delivery: str, what: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Do something with a delivery, however often it must be tried: the status of the answer, and its data.

        Raises ``DeliveryLost``, and what the server refuses.
        """
        ...

    def settled(self, delivery: str) -> None:
        """The delivery is over."""
        ...

    async def pause(self) -> None:
        """Take nothing more until somebody asks for it."""
        ...


class Delivery:
    """A run in the hands of this process.

    It is handed out by ``Client.listen`` and ``Client.serve``; use it as ``async with delivery:``.
    """

    def __init__(self, told: Mapping[str, Any], line: Line) -> None:
        self.id = str(told["id"])
        self.run_id = str(told["run_id"])
        self.address = str(told["address"])
        self.payload: Any = from_wire(told["payload"], "the payload")
        """What was sent."""
        self.number = int(told["number"])
        """Which delivery of the run it is: 1 for the first."""
        self.failures = int(told["failures"])
        """Deliveries that count against the run since its last step: those that failed, and those whose listener died
        while it held nothing else."""
        self.deadline = None if told["deadline"] is None else read_moment(told["deadline"])
        """When the run must have ended; ``None``: there is no such time."""
        self.created_at: datetime = read_moment(told["created_at"])
        self.tags = tuple(str(tag) for tag in told["tags"])
        self.steps: dict[str, RecordedStep] = {str(one["name"]): RecordedStep.read(one) for one in told["steps"]}
        """What is recorded, by name."""
        self.in_flight: dict[str, StepBegun] = {str(one["name"]): StepBegun.read(one) for one in told["in_flight"]}
        """What an earlier delivery has begun, and of which nothing is recorded."""
        self.state = "held"
        """``held``, then ``completed``, ``failed``, ``released``, ``parked`` or ``lost``."""
        self._line = line
        self._loss: DeliveryLost | None = None
        self._fault: UnreadableRecord | None = None
        """A recorded outcome that this code cannot decode: nothing more may be done for the run."""
        self._over = asyncio.Event()
        self._used: dict[str, str] = {}
        """The names under which this delivery has asked for something, and what for."""
        self._body: asyncio.Task[Any] | None = None
        """The task of the block, while it runs."""
        self._cancelling = 0
        self._ending = 0
        """How many calls are under way that may end it."""
        self._is_stopped = False
        """Whether the block was cancelled because the delivery is lost."""
        self.in_block = False
        """Whether a block has it: that settles it."""

    def __repr__(self) -> str:
        return f"<Delivery {self.number} of run {self.run_id!r} to {self.address!r}, {self.state}>"

    @property
    def lost(self) -> bool:
        """Whether the run is not this listener's any more: then nothing that is done for it counts."""
        return self._loss is not None

    @property
    def settled(self) -> bool:
        """Whether it is over."""
        return self.state != "held"

    # Steps

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        once: bool = False,
        usage: Usages | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function and record what it returns, or return what an earlier delivery has recorded.

        A plain function runs in a thread. What is returned is what is recorded, read back by the function's return
        annotation.

        Args:
            name: what the step is known by, in this run and for ever: two steps have two names.
            function: what it does. It may be called again if this process dies over it: see ``idempotency_key``.
            args: for the function.
            retries: how often it is called again when it raises, after a growing pause.
            once: never call it a second time. If a process has died over it, ``StepOutcomeUnknown`` is raised.
            usage: what its model calls have used, or a function that tells it of the outcome.
            kwargs: for the function.
        """
        self.check()
        step = StepCall(self, name, function, args, kwargs, retries=retries, once=once, usage=usage)
        is_there, value = step.recorded()
        if is_there:
            return value
        attempt, error = 1, None
        while True:
            await step.begin(attempt, error)
            try:
                value = await self.unless_over(outcome_of(function, args, kwargs))
                break
            except Exception as raised:
                pause = step.pause_after(attempt, raised)
                if pause is None:
                    raise
                said = f"{type(raised).__name__}: {message_of(raised)}"
                log.warning("%s: attempt %d of step %r has failed: %s", self, attempt, name, said)
                attempt, error = attempt + 1, raised
                await self.unless_over(asyncio.sleep(pause))
        return await self.unless_over(step.record(value, attempt))

    async def record(self, name: str, value: Any) -> Any:
        """Record a value under a name, as a step that has returned it; what is recorded before stays, and is returned.

        So one says what became of a ``once`` step whose outcome is not known.
        """
        self.check()
        if name not in self.steps:
            body = {"name": name, "output": OutcomeForm.of_value(value).write(value, f"the output of step {name!r}")}
            self.steps[name] = RecordedStep.read((await self.call("steps", body))[1])
        return self.steps[name].output

    def idempotency_key(self, name: str) -> str:
        """The same text in every delivery of this run, for services that do the same request only once."""
        return hashlib.sha256(f"{self.run_id}\0{name}".encode()).hexdigest()[:32]

    # Waiting

    async def ask(
        self,
        question: str,
        *,
        name: str | None = None,
        choices: Sequence[str] = (),
        form: Any = None,
        asked_of: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Ask a person. Without an answer the run is parked, and the code left: it comes back with the answer.

        Without ``choices`` and ``form`` the answer is ``True`` or ``False``. With them it is the choice or an instance
        of the form, and a no raises ``ApprovalDenied``.

        Args:
            question: what people are shown.
            name: what the answer is recorded under; the question unless given.
            choices: what can be answered.
            form: a type, such as a pydantic model, or a JSON schema, that is filled in.
            asked_of: who is asked, for people to read.
            timeout: seconds after which ``ApprovalTimedOut`` is raised.
        """
        asking = Asking(self.run_id, question, choices, form, asked_of, timeout)
        name, complaint, turn = name or question[:200], "", 1
        while True:
            under = name if turn == 1 else f"{name[:180]} (again, {turn})"
            try:
                return asking.read(await self._wait("ask", asking.body(under, complaint), question))
            except UnfitAnswer as unfit:
                complaint, turn = str(unfit), turn + 1

    async def wait_for_signal(self, signal: str, *, name: str | None = None, timeout: float | None = None) -> Any:
        """Wait for a signal, and return its value; ``None`` when there was none in time.

        Until it is there the run is parked, and the code left: it comes back with the signal.

        Args:
            signal: its name.
            name: what it is recorded under: to wait for a second one, give another name.
            timeout: seconds to wait.
        """
        body: dict[str, Any] = {"name": name or f"signal {signal}", "signal": signal}
        return await self._wait("wait", body if timeout is None else {**body, "seconds": timeout}, signal)

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Let time pass: the run is parked, and the code left until then."""
        await self._wait("wait", {"name": name, "seconds": seconds}, f"{seconds:g} s")

    async def _wait(self, what: str, body: dict[str, Any], shown: str) -> Any:
        self.check()
        self.use_name(body["name"], shown)
        found = self.steps.get(body["name"])
        if found is not None:
            return found.output
        status, told = await self._end(what, body)
        if status == 202:
            self._settle("parked")
            raise DeliveryParked(f"run {self.run_id!r} waits, and will be delivered again: let this exception pass")
        step = self.steps[body["name"]] = RecordedStep.read(told)
        return step.output

    # Ends

    async def complete(self, output: Any = None) -> None:
        """End the run with a result."""
        await self.complete_as(OutcomeForm.of_value(output), output)

    async def complete_as(self, form: OutcomeForm, output: Any) -> None:
        """End the run with a result that is written in this form."""
        await self._end("complete", {"output": form.write(output, "the output of the run")})
        self._settle("completed")

    async def fail(self, error: BaseException | str, *, retry: bool = True, delay: float | None = None) -> None:
        """Say that it has failed.

        Args:
            error: what went wrong.
            retry: deliver it again, as often as the address allows; else the run ends with the error.
            delay: seconds until then; longer each time unless given.
        """
        kind, message = ("Error", error) if isinstance(error, str) else (type(error).__qualname__, message_of(error))
        body: dict[str, Any] = {"error": {"type": kind[:200], "message": message[:100_000]}, "retry": retry}
        await self._end("fail", body if delay is None else {**body, "delay": delay})
        self._settle("failed")

    async def release(self, *, delay: float = 0.0, reason: str = "") -> None:
        """Give it back, to be delivered again, to whoever is there. That counts for nothing."""
        await self._end("release", {"delay": delay, "reason": reason[:1000]})
        self._settle("released")

    async def heartbeat(self) -> None:
        """Say now that this process lives, which is done by itself all the time. Raises ``DeliveryLost``."""
        await self.call("heartbeat", {})

    # Life

    async def call(self, what: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Ask the server. Raises ``DeliveryLost``, and remembers it."""
        self.check()
        try:
            return await self._line.call(self.id, what, body)
        except DeliveryLost as loss:
            self._lose(loss, LEAVES_WITHIN)  # the exception leaves the block, if it is awaited there
            raise

    async def _end(self, what: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Ask the server for what may end the delivery: a heartbeat that finds that it has ended tells nothing new."""
        self._ending += 1
        try:
            return await self.call(what, body)
        finally:
            self._ending -= 1

    def hear(self, loss: DeliveryLost) -> None:
        """Somebody else has found that the delivery is over."""
        if not self._ending:
            self._lose(loss, 0.0)

    def _lose(self, loss: DeliveryLost, wait: float) -> None:
        """It is over, and not by its own doing: whatever is under way for it stops, the block after this time."""
        if self.settled:
            return
        self._loss = loss
        self._settle("lost")
        asyncio.get_running_loop().call_later(wait, self._stop_body)

    def use_name(self, name: str, shown: str) -> None:
        """A step or a wait has this name. Raises ``UsageError`` if another one in this delivery has it."""
        before = self._used.setdefault(name, shown)
        if before != shown:
            raise UsageError(
                f"two steps of run {self.run_id!r} have the name {name!r}, one with ({before}), one with ({shown}): "
                f"the second one would be given what the first one has returned. Give each a name of its own, such as "
                f"{name + ' 2'!r}"
            )

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Decode a recorded outcome inside this block. If that fails, the delivery fails, whatever the code catches:
        it would go on with a decision that was never made."""
        try:
            yield
        except UnreadableRecord as unreadable:
            self._fault = unreadable
            raise

    async def unless_over(self, call: Coroutine[Any, Any, T]) -> T:
        """What this comes to, as long as the delivery is held; it is cancelled when that is over."""
        task, over = asyncio.ensure_future(call), asyncio.ensure_future(self._over.wait())
        try:
            done, _ = await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task not in done:
            self.check()
        return task.result()

    def check(self) -> None:
        """Raise what tells that the delivery is over, if it is."""
        if self._loss is not None:
            raise DeliveryLost(str(self._loss), self.run_id, reason=self._loss.reason)
        if self.state == "parked":
            raise DeliveryParked(f"run {self.run_id!r} waits, and will be delivered again: let this exception pass")
        if self.settled:
            raise UsageError(f"delivery {self.number} of run {self.run_id!r} is {self.state}: nothing can follow that")
        if self._fault is not None:
            raise self._fault

    def _settle(self, state: str) -> None:
        if self.settled:
            return
        self.state = state
        self._over.set()
        self._line.settled(self.id)

    # The block

    async def __aenter__(self) -> Delivery:
        body = asyncio.current_task()
        assert body is not None
        self._body, self._cancelling, self.in_block = body, body.cancelling(), True
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._stop_body)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        body, self._body = self._body, None
        if body is not None and self._is_stopped:
            is_cancelled_from_outside = body.uncancel() > self._cancelling
            if isinstance(error, asyncio.CancelledError) and not is_cancelled_from_outside:
                error = None
        return await self.leave(error)

    def _stop_body(self) -> None:
        if self._body is not None and not self._is_stopped:
            self._is_stopped = True
            self._body.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """The block ends, with this error: settle the delivery. Returns whether the error is dealt with."""
        if self._loss is not None:
            return self._left_lost(error, self._loss)
        if self.state == "parked":
            return error is None or consists_of(error, (DeliveryParked, DeliveryLost))
        if self.settled:
            return False
        if self._fault is not None and (error is None or isinstance(error, Exception)):
            error, self._fault = self._fault, None  # `fail` may be called now
        if error is None:
            unsettled = UsageError(
                f"the code for run {self.run_id!r} has ended without saying what became of it, so it is delivered "
                f"again: `await delivery.complete(result)` ends the run, and `fail` and `release` say why not"
            )
            await self._fail(unsettled, retry=True)
            raise unsettled
        if isinstance(error, Exception):
            retry = not isinstance(error, FOR_GOOD)
            log.error("%s has failed%s", self, "" if retry else " for good", exc_info=error)
            await self._fail(error, retry=retry)
            return True
        await self.give_back("the listener stops")
        return False

    def _left_lost(self, error: BaseException | None, loss: DeliveryLost) -> bool:
        log.warning("%s: %s", self, loss)
        if error is not None and isinstance(error, Exception) and not consists_of(error, (DeliveryLost,)):
            log.error("%s: this was raised when it was lost already", self, exc_info=error)
        return error is None or isinstance(error, Exception) or consists_of(error, (DeliveryParked, DeliveryLost))

    async def _fail(self, error: BaseException, *, retry: bool) -> None:
        try:
            await self.fail(error, retry=retry)
        except DeliveryLost as loss:
            log.warning("%s: %s", self, loss)

    async def give_back(self, reason: str) -> None:
        """Give it back, if that is possible at once."""
        await self._line.pause()  # else it would come to this process again, which ends
        try:
            async with asyncio.timeout(FAREWELL):
                await self.release(reason=reason)
        except DeliveryLost as loss:
            log.info("%s: %s", self, loss)
        except (HoldfastError, TimeoutError) as error:
            log.warning("%s is not given back (%s): it goes to others when its lease is over", self, error)
            self._settle("released")


def consists_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is of these kinds, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(consists_of(one, kinds) for one in group.exceptions)
    return isinstance(error, kinds)
