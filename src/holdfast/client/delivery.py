"""``Delivery``: a run that this process holds as a listener on an address.

A delivery belongs to its listener until it *ends*: completed, failed, released, parked, or lost. Until then the
listener's heartbeats keep it (``http.listener``). The records stay, whichever listener gets the run next.

**How code is interrupted.** A run that waits for a person is parked: ``ask`` raises ``DeliveryParked``, and the code
reaches the same point again, in another delivery, when the answer has come. Work on a run that is lost (cancelled,
disabled, taken over by another listener) must stop. A call on it raises ``DeliveryLost``. Inside ``async with
delivery``, no call is needed: the task of the block is cancelled, as ``asyncio.timeout`` does it, and the block exits
without an exception. The cancellation is made from the event loop, never within the task's own step, so it has always
arrived when the block exits. It is taken back there, so a cancellation of the task from outside at the same time still
takes effect.

**How the block ends.** It must have ended the delivery. An exception fails it: the run is delivered again, or fails
for good if another delivery would only raise the same exception. A cancellation from outside, as at the end of a
process, releases it, and that does not count as a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.admission.durations import Duration, timeout_to_seconds
from holdfast.client.delivery_approvals import DeliveryApproval, InvalidAnswer
from holdfast.client.delivery_steps import (
    DeliveryStep,
    OutcomeCodec,
    RecordedStep,
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

if TYPE_CHECKING:
    from holdfast.client.http.listener import HttpListener

log = logging.getLogger("holdfast.listeners")

T = TypeVar("T")

RELEASE_TIMEOUT_S = 3.0
"""Seconds that releasing a delivery may take when the process ends. If it takes longer, the lease expires instead."""
CANCEL_DELAY_S = 1.0
"""Seconds until the block is cancelled after a call in it raised ``DeliveryLost``, which usually ends the block."""
PERMANENT_ERRORS = (
    ApprovalError,
    BudgetExceeded,
    CodecError,
    DefinitionError,
    InputError,
    StepOutcomeUnknown,
    UsageError,
)
"""Errors that every other delivery would meet again."""


class Delivery:
    """A run that this process holds. ``Client.listen`` and ``Client.serve`` create it; use ``async with delivery:``."""

    def __init__(self, data: Mapping[str, Any], listener: HttpListener) -> None:
        self.id = str(data["id"])
        self.run_id = str(data["run_id"])
        self.address = str(data["address"])
        self.payload: Any = from_wire(data["payload"], "the payload")
        """What was sent."""
        self.number = int(data["number"])
        """The number of this delivery of the run: 1 for the first."""
        self.failure_count = int(data["failure_count"])
        """Deliveries that count against the run since its last step: those that failed, and those whose listener died
        while it held nothing else."""
        self.deadline = None if data["deadline"] is None else parse_datetime(data["deadline"])
        """When the run must have ended; ``None``: no deadline."""
        self.created_at: datetime = parse_datetime(data["created_at"])
        self.tags = tuple(str(tag) for tag in data["tags"])
        self.steps: dict[str, RecordedStep] = {step.name: step for step in map(RecordedStep.from_json, data["steps"])}
        """The recorded steps, by name."""
        self.in_flight: dict[str, UnfinishedStep] = {
            step.name: step for step in map(UnfinishedStep.from_json, data["in_flight"])
        }
        """Steps that an earlier delivery started, and that have no recorded outcome, by name."""
        self.trace_parent = str(data.get("trace_parent", ""))
        """The W3C ``traceparent`` of the run."""
        self.state = "claimed"
        """``claimed``, then ``completed``, ``failed``, ``released``, ``parked``, or ``lost``."""
        self._listener = listener
        self._loss: DeliveryLost | None = None
        self._decode_error: UnreadableRecord | None = None
        """A recorded outcome that this code cannot decode: no other step of the run may be executed."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """What is in progress for it, and stops when it ends."""
        self._used_names: dict[str, str] = {}
        """The names of the steps and waits of this delivery, each with a preview of its arguments."""
        self._block_task: asyncio.Task[Any] | None = None
        """The task of the block, while it runs."""
        self._cancel_count = 0
        self._ending_call_count = 0
        """Calls in progress that may end the delivery."""
        self._is_stopped = False
        """Whether the block was cancelled because the delivery is lost."""
        self.is_in_block = False
        """Whether the delivery was used as ``async with delivery``: the block then ends it."""

    def __repr__(self) -> str:
        return f"<Delivery {self.number} of run {self.run_id!r} to {self.address!r}, {self.state}>"

    @property
    def is_lost(self) -> bool:
        """Whether this listener has lost the run: then nothing that it does counts. A long function may check this."""
        return self._loss is not None

    @property
    def is_ended(self) -> bool:
        """Whether the delivery has ended."""
        return self.state != "claimed"

    @property
    def is_ending(self) -> bool:
        """Whether a call is in progress that may end the delivery."""
        return self._ending_call_count > 0

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
        """Call a function and record what it returns, or return what an earlier delivery recorded.

        A plain function runs in a thread. The recorded value is returned, decoded by the function's return annotation.

        Args:
            name: the name of the step, unique in this run; it must stay the same in every delivery.
            function: what it does. It may be called again if this process dies in it: see ``idempotency_key``.
            args: for the function.
            retries: how often it is called again when it raises, after a growing delay.
            once: never call it a second time. If a process died in it, ``StepOutcomeUnknown`` is raised.
            usage: what its model calls used, or a function that returns it for the outcome.
            kwargs: for the function.
        """
        self.check_active()
        step = DeliveryStep(self, name, function, args, kwargs, retries=retries, once=once, usage=usage)
        is_recorded, value = step.find_recorded()
        if is_recorded:
            return value
        while True:
            await step.start_attempt()
            try:
                value = await self.run_while_claimed(call_function(function, args, kwargs))
                break
            except Exception as error:
                delay_s = step.begin_retry(error)
            await self.run_while_claimed(asyncio.sleep(delay_s))
        return await self.run_while_claimed(step.record(value))

    async def record(self, name: str, value: Any) -> Any:
        """Record a value under a name, as a step that returned it. If the name has a record, that one is returned.

        Use it to decide the outcome of a ``once`` step whose outcome is unknown.
        """
        self.check_active()
        if name not in self.steps:
            output = OutcomeCodec.from_value(value).encode(value, f"the output of step {name!r}")
            await self.record_step({"name": name, "output": output})
        return self.steps[name].output

    async def record_step(self, body: Mapping[str, Any]) -> RecordedStep:
        """Record a step in the journal, and keep it with the others."""
        step = RecordedStep.from_json((await self.call("steps", body))[1])
        self.steps[step.name] = step
        return step

    def idempotency_key(self, name: str) -> str:
        """A text that is the same in every delivery of this run, for services that execute a request only once."""
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
        """Ask a person. Without an answer the run is parked; it is delivered again when the answer has come.

        Without ``choices`` and ``form`` the answer is ``True`` or ``False``. With them it is the choice or an instance
        of the form, and a no raises ``ApprovalDenied``.

        Args:
            question: the text that people see.
            name: the name of the record; default: the question.
            choices: the possible answers.
            form: a type, such as a pydantic model, or a JSON schema, that people fill in.
            assignee: who is asked, for people to read.
            timeout: a duration after which ``ApprovalTimedOut`` is raised; default: none.
        """
        approval = DeliveryApproval(self.run_id, question, choices, form, assignee, timeout_to_seconds(timeout))
        name, rejection, round_number = name or question[:200], "", 1
        while True:
            record_name = name if round_number == 1 else f"{name[:180]} (again, {round_number})"
            try:
                answer = await self._wait("ask", approval.to_json(record_name, rejection), question)
                return approval.decode_answer(answer)
            except InvalidAnswer as error:
                rejection, round_number = str(error), round_number + 1

    async def wait_for_signal(self, signal: str, *, name: str | None = None, timeout: Duration | None = None) -> Any:
        """Wait for a signal, and return its value; ``None`` if it does not come in time.

        Without the signal the run is parked; it is delivered again when the signal has come.

        Args:
            signal: its name.
            name: the name of the record. To wait for a second signal of this name, give another one.
            timeout: how long to wait; default: until it comes.
        """
        body: dict[str, Any] = {"name": name or f"signal {signal}", "signal": signal}
        if timeout is not None:
            body["seconds"] = timeout_to_seconds(timeout)
        return await self._wait("wait", body, signal)

    async def sleep(self, seconds: float, *, name: str) -> None:
        """Let time pass: the run is parked, and delivered again after that time."""
        await self._wait("wait", {"name": name, "seconds": seconds}, f"{seconds:g} s")

    async def _wait(self, operation: str, body: dict[str, Any], preview: str) -> Any:
        self.check_active()
        self.reserve_name(body["name"], preview)
        recorded = self.steps.get(body["name"])
        if recorded is not None:
            return recorded.output
        status, data = await self._call_ending(operation, body)
        if status == 202:
            self._set_final_state("parked")
            self.check_active()
        step = self.steps[body["name"]] = RecordedStep.from_json(data)
        return step.output

    # Ends

    async def complete(self, output: Any = None) -> None:
        """End the run with a result."""
        await self.complete_with_codec(OutcomeCodec.from_value(output), output)

    async def complete_with_codec(self, codec: OutcomeCodec, output: Any) -> None:
        """End the run with a result that this codec encodes."""
        await self._call_ending("complete", {"output": codec.encode(output, "the output of the run")})
        self._set_final_state("completed")

    async def fail(self, error: BaseException | str, *, retry: bool = True, delay: Duration | None = None) -> None:
        """Fail the delivery.

        Args:
            error: what went wrong.
            retry: deliver the run again, as often as the address allows; else the run ends with the error.
            delay: the time until the next delivery; default: longer each time.
        """
        if isinstance(error, str):
            kind, message = "Error", error
        else:
            kind, message = type(error).__qualname__, get_error_message(error)
        body: dict[str, Any] = {"error": {"type": kind[:200], "message": message[:100_000]}, "retry": retry}
        if delay is not None:
            body["delay"] = timeout_to_seconds(delay, "delay")
        await self._call_ending("fail", body)
        self._set_final_state("failed")

    async def release(self, *, delay: Duration = 0.0, reason: str = "") -> None:
        """Give the run back, to be delivered to any listener. It does not count as a failure."""
        await self._call_ending("release", {"delay": timeout_to_seconds(delay, "delay"), "reason": reason[:1000]})
        self._set_final_state("released")

    async def heartbeat(self) -> None:
        """Send a heartbeat now. The listener sends them by itself. Raises ``DeliveryLost``."""
        await self.call("heartbeat", {})

    # Calls to the server

    async def call(self, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send an operation to the server. Raises ``DeliveryLost``, and marks the delivery as lost."""
        self.check_active()
        try:
            return await self._listener.call(self.id, operation, body)
        except DeliveryLost as loss:
            self._mark_lost(loss, CANCEL_DELAY_S)  # the exception ends the block, if it is awaited there
            raise

    async def _call_ending(self, operation: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send an operation that may end the delivery. A heartbeat that then finds it ended means nothing."""
        self._ending_call_count += 1
        try:
            return await self.call(operation, body)
        finally:
            self._ending_call_count -= 1

    def handle_loss(self, loss: DeliveryLost) -> None:
        """The listener has found that the delivery is lost."""
        if not self._ending_call_count:
            self._mark_lost(loss, 0.0)

    def _mark_lost(self, loss: DeliveryLost, delay_s: float) -> None:
        """End the delivery as lost: everything in progress for it stops, and the block after this delay."""
        if self.is_ended:
            return
        self._loss = loss
        self._set_final_state("lost")
        asyncio.get_running_loop().call_later(delay_s, self._cancel_block)

    def reserve_name(self, name: str, preview: str) -> None:
        """Use a name for a step or a wait. Raises ``UsageError`` if another one in this delivery has it."""
        first = self._used_names.setdefault(name, preview)
        if first != preview:
            raise UsageError(
                f"two steps of run {self.run_id!r} have the name {name!r}, one with ({first}), one with ({preview}): "
                f"the second one would be given what the first one has returned. Give each a name of its own, such as "
                f"{name + ' 2'!r}"
            )

    @contextmanager
    def guard_decoding(self) -> Generator[None]:
        """Decode a recorded outcome inside this block. If that fails, the delivery fails, even if the code catches the
        error: it would continue with a decision that was never made."""
        try:
            yield
        except UnreadableRecord as unreadable:
            self._decode_error = unreadable
            raise

    async def run_while_claimed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, which is cancelled if the delivery ends first."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        try:
            await asyncio.wait([task])
        finally:
            is_stopped = task not in self._tasks
            self._tasks.discard(task)
            if not task.done():
                task.cancel()
            if is_stopped or task.cancelling():
                await asyncio.gather(task, return_exceptions=True)
        if is_stopped:
            self.check_active()
        return task.result()

    def check_active(self) -> None:
        """Raise an error if the delivery has ended, or must end."""
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
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        self._listener.on_delivery_ended(self.id)

    # The block

    async def __aenter__(self) -> Delivery:
        task = asyncio.current_task()
        assert task is not None
        self._block_task, self._cancel_count, self.is_in_block = task, task.cancelling(), True
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._cancel_block)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._block_task = self._block_task, None
        if task is not None and self._is_stopped:
            is_cancelled_from_outside = task.uncancel() > self._cancel_count
            if isinstance(error, asyncio.CancelledError) and not is_cancelled_from_outside:
                error = None
        return await self.exit_block(error)

    def _cancel_block(self) -> None:
        if self._block_task is not None and not self._is_stopped:
            self._is_stopped = True
            self._block_task.cancel()

    async def exit_block(self, error: BaseException | None) -> bool:
        """End the delivery as its block ends, with this error or none. Returns whether to suppress the error."""
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
        """Release the delivery, unless that takes too long."""
        await self._listener.pause()  # else the run would be delivered to this process again, which is about to end
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self.release(reason=reason)
        except DeliveryLost as loss:
            log.info("%s: %s", self, loss)
        except (HoldfastError, TimeoutError) as error:
            log.warning("%s is not given back (%s): it goes to others when its lease is over", self, error)
            self._set_final_state("released")


def has_only(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is of these kinds, or a group that contains only such errors."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(has_only(member, kinds) for member in group.exceptions)
    return isinstance(error, kinds)
