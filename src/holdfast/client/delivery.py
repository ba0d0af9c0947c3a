"""``Delivery``: a run that this process holds as a listener on an address.

A delivery belongs to its listener until it *ends*: completed, failed, released, parked, or lost. Until then the
listener's heartbeats keep it (``http.listener``). What is recorded stays, whichever listener has the run next.

**How code is left.** A run that waits for a person is parked: ``DeliveryParked`` leaves the code that has asked, and
the code reaches the same place again, in another delivery, when the answer is there. A run that is lost (cancelled,
disabled, taken over by another listener) must not be worked on any more. A call on it raises ``DeliveryLost``. Inside
``async with delivery``, no call is needed: the task of the block is cancelled, as ``asyncio.timeout`` does it, and the
block is left quietly. The cancellation is made from the event loop, never within the task's own step, so it has always
arrived when the block is left. It is taken back there, so a cancellation of the task from outside at the same time
still takes effect.

**How the block ends.** It must have ended the delivery. An exception fails it, to be delivered again, or for good if
another delivery would only raise it again. A cancellation from outside, as at the end of a process, releases it, and
that does not count as a failure.
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

from holdfast.admission.durations import Duration, timeout_to_seconds
from holdfast.client.delivery_approvals import DeliveryApproval, InvalidAnswer
from holdfast.client.delivery_steps import (
    OutcomeCodec,
    RecordedStep,
    StepCall,
    UnfinishedStep,
    UsageSource,
    call_function,
    parse_datetime,
)
from holdfast.codec import get_error_message
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

log = logging.getLogger("holdfast.listeners")

T = TypeVar("T")

RELEASE_TIMEOUT_S = 3.0
"""Seconds that giving a delivery back may take when the process ends: the lease will do the same, later."""
CANCEL_DELAY_S = 1.0
"""Seconds until a block is cancelled in which a call was told that the run is lost: code that is told leaves itself."""
PERMANENT_ERRORS = (
    ApprovalError,
    BudgetExceeded,
    CodecError,
    DefinitionError,
    InputError,
    StepOutcomeUnknown,
    UsageError,
)
"""Errors that every further delivery would meet again."""


class DeliveryTransport(Protocol):
    """The way from a delivery to its server."""

    async def call(self, delivery_id: str, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Do something with a delivery, however often it must be tried: the status of the answer, and its data.

        Raises ``DeliveryLost``, and what the server refuses.
        """
        ...

    def on_delivery_ended(self, delivery_id: str) -> None:
        """The delivery is over."""
        ...

    async def pause(self) -> None:
        """Take nothing more until somebody asks for it."""
        ...


class Delivery:
    """A run in the hands of this process.

    It is handed out by ``Client.listen`` and ``Client.serve``; use it as ``async with delivery:``.
    """

    def __init__(self, data: Mapping[str, Any], transport: DeliveryTransport) -> None:
        self.id = str(data["id"])
        self.run_id = str(data["run_id"])
        self.address = str(data["address"])
        self.payload: Any = from_wire(data["payload"], "the payload")
        """What was sent."""
        self.number = int(data["number"])
        """Which delivery of the run it is: 1 for the first."""
        self.failure_count = int(data["failure_count"])
        """Deliveries that count against the run since its last step: those that failed, and those whose listener died
        while it held nothing else."""
        self.deadline = None if data["deadline"] is None else parse_datetime(data["deadline"])
        """When the run must have ended; ``None``: there is no such time."""
        self.created_at: datetime = parse_datetime(data["created_at"])
        self.tags = tuple(str(tag) for tag in data["tags"])
        self.steps: dict[str, RecordedStep] = {str(one["name"]): RecordedStep.from_json(one) for one in data["steps"]}
        """What is recorded, by name."""
        self.in_flight: dict[str, UnfinishedStep] = {
            str(one["name"]): UnfinishedStep.from_json(one) for one in data["in_flight"]
        }
        """What an earlier delivery has begun, and of which nothing is recorded."""
        self.state = "claimed"
        """``claimed``, then ``completed``, ``failed``, ``released``, ``parked`` or ``lost``."""
        self._transport = transport
        self._loss: DeliveryLost | None = None
        self._decode_error: UnreadableRecord | None = None
        """A recorded outcome that this code cannot decode: nothing more may be done for the run."""
        self._ended = asyncio.Event()
        self._used_names: dict[str, str] = {}
        """The names under which this delivery has asked for something, and what for."""
        self._block_task: asyncio.Task[Any] | None = None
        """The task of the block, while it runs."""
        self._cancel_count = 0
        self._ending_call_count = 0
        """How many calls are under way that may end it."""
        self._is_stopped = False
        """Whether the block was cancelled because the delivery is lost."""
        self.is_in_block = False
        """Whether a block has it: that settles it."""

    def __repr__(self) -> str:
        return f"<Delivery {self.number} of run {self.run_id!r} to {self.address!r}, {self.state}>"

    @property
    def is_lost(self) -> bool:
        """Whether the run is not this listener's any more: then nothing that is done for it counts."""
        return self._loss is not None

    @property
    def is_ended(self) -> bool:
        """Whether it is over."""
        return self.state != "claimed"

    # Steps

    async def step(
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
        self.check_active()
        step = StepCall(self, name, function, args, kwargs, retries=retries, once=once, usage=usage)
        is_there, value = step.find_recorded()
        if is_there:
            return value
        attempt, error = 1, None
        while True:
            await step.start_attempt(attempt, error)
            try:
                value = await self.run_while_claimed(call_function(function, args, kwargs))
                break
            except Exception as raised:
                pause = step.get_retry_delay_s(attempt, raised)
                if pause is None:
                    raise
                said = f"{type(raised).__name__}: {get_error_message(raised)}"
                log.warning("%s: attempt %d of step %r has failed: %s", self, attempt, name, said)
                attempt, error = attempt + 1, raised
                await self.run_while_claimed(asyncio.sleep(pause))
        return await self.run_while_claimed(step.record(value, attempt))

    async def record(self, name: str, value: Any) -> Any:
        """Record a value under a name, as a step that has returned it; what is recorded before stays, and is returned.

        So one says what became of a ``once`` step whose outcome is not known.
        """
        self.check_active()
        if name not in self.steps:
            body = {
                "name": name,
                "output": OutcomeCodec.from_value(value).encode(value, f"the output of step {name!r}"),
            }
            self.steps[name] = RecordedStep.from_json((await self.call("steps", body))[1])
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
        assignee: str = "",
        timeout: Duration | None = None,
    ) -> Any:
        """Ask a person. Without an answer the run is parked, and the code left: it comes back with the answer.

        Without ``choices`` and ``form`` the answer is ``True`` or ``False``. With them it is the choice or an instance
        of the form, and a no raises ``ApprovalDenied``.

        Args:
            question: what people are shown.
            name: what the answer is recorded under; the question unless given.
            choices: what can be answered.
            form: a type, such as a pydantic model, or a JSON schema, that is filled in.
            assignee: who is asked, for people to read.
            timeout: a duration after which ``ApprovalTimedOut`` is raised; default: none.
        """
        asking = DeliveryApproval(self.run_id, question, choices, form, assignee, timeout_to_seconds(timeout))
        name, complaint, turn = name or question[:200], "", 1
        while True:
            under = name if turn == 1 else f"{name[:180]} (again, {turn})"
            try:
                return asking.decode_answer(await self._wait("ask", asking.to_json(under, complaint), question))
            except InvalidAnswer as unfit:
                complaint, turn = str(unfit), turn + 1

    async def wait_for_signal(self, signal: str, *, name: str | None = None, timeout: Duration | None = None) -> Any:
        """Wait for a signal, and return its value; ``None`` when there was none in time.

        Until it is there the run is parked, and the code left: it comes back with the signal.

        Args:
            signal: its name.
            name: what it is recorded under: to wait for a second one, give another name.
            timeout: how long to wait; default: until it comes.
        """
        body: dict[str, Any] = {"name": name or f"signal {signal}", "signal": signal}
        if timeout is not None:
            body["seconds"] = timeout_to_seconds(timeout)
        return await self._wait("wait", body, signal)

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Let time pass: the run is parked, and the code left until then."""
        await self._wait("wait", {"name": name, "seconds": seconds}, f"{seconds:g} s")

    async def _wait(self, operation: str, body: dict[str, Any], preview: str) -> Any:
        self.check_active()
        self.reserve_name(body["name"], preview)
        found = self.steps.get(body["name"])
        if found is not None:
            return found.output
        status, told = await self._call_ending(operation, body)
        if status == 202:
            self._set_final_state("parked")
            raise DeliveryParked(f"run {self.run_id!r} waits, and will be delivered again: let this exception pass")
        step = self.steps[body["name"]] = RecordedStep.from_json(told)
        return step.output

    # Ends

    async def complete(self, output: Any = None) -> None:
        """End the run with a result."""
        await self.complete_with_codec(OutcomeCodec.from_value(output), output)

    async def complete_with_codec(self, codec: OutcomeCodec, output: Any) -> None:
        """End the run with a result that is written in this form."""
        await self._call_ending("complete", {"output": codec.encode(output, "the output of the run")})
        self._set_final_state("completed")

    async def fail(self, error: BaseException | str, *, retry: bool = True, delay: Duration | None = None) -> None:
        """Say that it has failed.

        Args:
            error: what went wrong.
            retry: deliver it again, as often as the address allows; else the run ends with the error.
            delay: the time until then; default: longer each time.
        """
        kind, message = (
            ("Error", error) if isinstance(error, str) else (type(error).__qualname__, get_error_message(error))
        )
        body: dict[str, Any] = {"error": {"type": kind[:200], "message": message[:100_000]}, "retry": retry}
        if delay is not None:
            body["delay"] = timeout_to_seconds(delay, "delay")
        await self._call_ending("fail", body)
        self._set_final_state("failed")

    async def release(self, *, delay: Duration = 0.0, reason: str = "") -> None:
        """Give it back, to be delivered again, to whoever is there. That counts for nothing."""
        await self._call_ending("release", {"delay": timeout_to_seconds(delay, "delay"), "reason": reason[:1000]})
        self._set_final_state("released")

    async def heartbeat(self) -> None:
        """Say now that this process lives, which is done by itself all the time. Raises ``DeliveryLost``."""
        await self.call("heartbeat", {})

    # Life

    async def call(self, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Ask the server. Raises ``DeliveryLost``, and remembers it."""
        self.check_active()
        try:
            return await self._transport.call(self.id, operation, body)
        except DeliveryLost as loss:
            self._mark_lost(loss, CANCEL_DELAY_S)  # the exception leaves the block, if it is awaited there
            raise

    async def _call_ending(self, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Ask the server for what may end the delivery: a heartbeat that finds that it has ended tells nothing new."""
        self._ending_call_count += 1
        try:
            return await self.call(operation, body)
        finally:
            self._ending_call_count -= 1

    def handle_loss(self, loss: DeliveryLost) -> None:
        """Somebody else has found that the delivery is over."""
        if not self._ending_call_count:
            self._mark_lost(loss, 0.0)

    def _mark_lost(self, loss: DeliveryLost, delay_s: float) -> None:
        """It is over, and not by its own doing: whatever is under way for it stops, the block after this time."""
        if self.is_ended:
            return
        self._loss = loss
        self._set_final_state("lost")
        asyncio.get_running_loop().call_later(delay_s, self._cancel_block)

    def reserve_name(self, name: str, preview: str) -> None:
        """A step or a wait has this name. Raises ``UsageError`` if another one in this delivery has it."""
        before = self._used_names.setdefault(name, preview)
        if before != preview:
            raise UsageError(
                f"two steps of run {self.run_id!r} have the name {name!r}, one with ({before}), one with ({preview}): "
                f"the second one would be given what the first one has returned. Give each a name of its own, such as "
                f"{name + ' 2'!r}"
            )

    @contextmanager
    def guard_decoding(self) -> Generator[None]:
        """Decode a recorded outcome inside this block. If that fails, the delivery fails, whatever the code catches:
        it would go on with a decision that was never made."""
        try:
            yield
        except UnreadableRecord as unreadable:
            self._decode_error = unreadable
            raise

    async def run_while_claimed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What this comes to, as long as the delivery is held; it is cancelled when that is over."""
        task, over = asyncio.ensure_future(coroutine), asyncio.ensure_future(self._ended.wait())
        try:
            done, _ = await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task not in done:
            self.check_active()
        return task.result()

    def check_active(self) -> None:
        """Raise what tells that the delivery is over, if it is."""
        if self._loss is not None:
            raise DeliveryLost(str(self._loss), self.run_id, reason=self._loss.reason)
        if self.state == "parked":
            raise DeliveryParked(f"run {self.run_id!r} waits, and will be delivered again: let this exception pass")
        if self.is_ended:
            raise UsageError(f"delivery {self.number} of run {self.run_id!r} is {self.state}: nothing can follow that")
        if self._decode_error is not None:
            raise self._decode_error

    def _set_final_state(self, state: str) -> None:
        if self.is_ended:
            return
        self.state = state
        self._ended.set()
        self._transport.on_delivery_ended(self.id)

    # The block

    async def __aenter__(self) -> Delivery:
        body = asyncio.current_task()
        assert body is not None
        self._block_task, self._cancel_count, self.is_in_block = body, body.cancelling(), True
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._cancel_block)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        body, self._block_task = self._block_task, None
        if body is not None and self._is_stopped:
            is_cancelled_from_outside = body.uncancel() > self._cancel_count
            if isinstance(error, asyncio.CancelledError) and not is_cancelled_from_outside:
                error = None
        return await self.exit_block(error)

    def _cancel_block(self) -> None:
        if self._block_task is not None and not self._is_stopped:
            self._is_stopped = True
            self._block_task.cancel()

    async def exit_block(self, error: BaseException | None) -> bool:
        """The block ends, with this error: settle the delivery. Returns whether the error is dealt with."""
        if self._loss is not None:
            return self._exit_lost(error, self._loss)
        if self.state == "parked":
            return error is None or has_only(error, (DeliveryParked, DeliveryLost))
        if self.is_ended:
            return False
        if self._decode_error is not None and (error is None or isinstance(error, Exception)):
            error, self._decode_error = self._decode_error, None  # `fail` may be called now
        if error is None:
            unsettled = UsageError(
                f"the code for run {self.run_id!r} has ended without saying what became of it, so it is delivered "
                f"again: `await delivery.complete(result)` ends the run, and `fail` and `release` say why not"
            )
            await self._try_fail(unsettled, retry=True)
            raise unsettled
        if isinstance(error, Exception):
            retry = not isinstance(error, PERMANENT_ERRORS)
            log.error("%s has failed%s", self, "" if retry else " for good", exc_info=error)
            await self._try_fail(error, retry=retry)
            return True
        await self.try_release("the listener stops")
        return False

    def _exit_lost(self, error: BaseException | None, loss: DeliveryLost) -> bool:
        log.warning("%s: %s", self, loss)
        if error is not None and isinstance(error, Exception) and not has_only(error, (DeliveryLost,)):
            log.error("%s: this was raised when it was lost already", self, exc_info=error)
        return error is None or isinstance(error, Exception) or has_only(error, (DeliveryParked, DeliveryLost))

    async def _try_fail(self, error: BaseException, *, retry: bool) -> None:
        try:
            await self.fail(error, retry=retry)
        except DeliveryLost as loss:
            log.warning("%s: %s", self, loss)

    async def try_release(self, reason: str) -> None:
        """Give it back, if that is possible at once."""
        await self._transport.pause()  # else it would come to this process again, which ends
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self.release(reason=reason)
        except DeliveryLost as loss:
            log.info("%s: %s", self, loss)
        except (HoldfastError, TimeoutError) as error:
            log.warning("%s is not given back (%s): it goes to others when its lease is over", self, error)
            self._set_final_state("released")


def has_only(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is of these kinds, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(has_only(one, kinds) for one in group.exceptions)
    return isinstance(error, kinds)
