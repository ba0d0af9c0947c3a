"""A model call of another framework as a recorded step of a program.

An adapter calls ``record_model_call`` where its framework calls a model. In a program (see ``authoring.program``), the
call becomes the step ``model call``, which is executed in place; after a crash it returns the recorded answer. Anywhere
else, the framework's call is made as it is.

The record of the step is an envelope, as for Holdfast's own agents: readers of the run find the texts, the tool calls,
and the usage of the answer in it without the framework. The framework's own form of the answer is in ``response``. The
request is in the ``CALL`` record: see ``request_log``.

A *streamed* answer is passed on while it arrives. It is recorded before the consumer sees its last event, because
many consumers do not read on after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.admission.usage import BUDGET_SIGNAL, Usage
from holdfast.authoring.program_calls import open_in_place_call, wait_for_signal_sync
from holdfast.authoring.workflow_api import wait_for_signal
from holdfast.codec import ValueCodec
from holdfast.codec.formatting import capitalize_first
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import ModelUsage, StepDefinition
from holdfast.engine.in_place_call import InPlaceCall, NotRecorded, StepFunction
from holdfast.engine.program_context import find_program
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import BudgetExceeded, UnreadableRecord, UnrecordableValue, UsageError
from holdfast.integrations.request_log import get_request_log
from holdfast.reports.recorded_reply import (
    FORMAT_VERSION,
    MODEL_CALL_STEP,
    USAGE_FIELDS,
    ToolCallReport,
    decode_envelope,
)
from holdfast.services.model_prices import TokenCounts, make_usage

T = TypeVar("T")
E = TypeVar("E")

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a framework sends to a model. It identifies the call, so it must not contain anything random.

    Args:
        model: the model with its provider, as in ``"openai:gpt-4o"``.
        messages: the whole conversation as JSON data, in the order of the messages. People read them: a message has a
            ``role`` (``system``, ``user``, ``assistant``, or ``tool``) and, if possible, its text in ``content``.
        settings: everything else that influences the answer, as JSON data: tools, temperature, ...
        max_output_tokens: the limit of the answer, to estimate its cost if the run has a budget.
        url: the URL of the provider's API, which may decide the price.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_output_tokens: int = 0
    url: str | None = None


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What readers of the run see of an answer."""

    text: str = ""
    tool_calls: Sequence[ToolCallReport] = ()
    tokens: TokenCounts | None = None
    """``None``: the provider does not report them."""
    thinking: str = ""
    model: str = ""
    """The model that answered (default: the requested one)."""
    finish_reason: str | None = None
    call_count: int = 1
    """How many model calls were made for it: more than one for the turn of an agent that runs elsewhere."""


class AnswerCodec(ABC, Generic[T]):
    """How a framework's answer is recorded. For a stream, the answer is the list of its events."""

    is_exact = False
    """Whether ``load`` returns an answer that equals the dumped one, so that a new answer need not be loaded again."""

    @abstractmethod
    def dump(self, answer: T) -> Any:
        """The answer as JSON data."""

    @abstractmethod
    def load(self, data: Any) -> T:
        """The answer from its JSON data."""

    @abstractmethod
    def describe(self, answer: T) -> ModelAnswer:
        """What readers see of it."""

    def get_text(self, event: Any) -> str:
        """The text in an event of a stream, for those who follow the run."""
        return ""

    def is_last(self, event: Any) -> bool:
        """Whether this event ends the answer, even if the stream continues."""
        return False


class EnoughRead(BaseException):
    """Thrown into a recorded stream by a consumer that has enough, and waits until that is recorded.

    A stream that is just closed records it soon after, because code that the garbage collector calls cannot wait.
    """


async def record_model_call(model_input: ModelInput, codec: AnswerCodec[T], call: Callable[[], Awaitable[T]]) -> T:
    """The model's answer: the recorded one, or that of ``call``."""
    while (opened := _open_call(model_input, codec)) is not None:
        try:
            return await opened.call(call)
        except BudgetExceeded:
            await wait_for_signal(BUDGET_SIGNAL)
    return await call()


def record_model_call_sync(model_input: ModelInput, codec: AnswerCodec[T], call: Callable[[], T]) -> T:
    """The same for code that is not async."""
    while (opened := _open_call(model_input, codec)) is not None:
        try:
            return opened.call_sync(call)
        except BudgetExceeded:
            wait_for_signal_sync(BUDGET_SIGNAL)
    return call()


async def record_model_stream(
    model_input: ModelInput,
    codec: AnswerCodec[list[E]],
    open_stream: Callable[[], AsyncIterator[E]],
    *,
    is_opaque: bool = True,
    step_name: str = MODEL_CALL_STEP,
) -> AsyncGenerator[E]:
    """The events of the model's answer: the recorded ones, or those of the stream.

    With ``is_opaque=False``, calls that the code of the stream makes are recorded as well: for a stream that calls
    tools. ``step_name`` is the name of the step. A stream that raises ``NotRecorded`` withdraws the call; the value is
    an iterator of the events to pass on instead.
    """
    while (opened := _open_call(model_input, codec, is_opaque=is_opaque, step_name=step_name)) is not None:
        recording = _StreamRecording(opened, codec)
        iterator: AsyncIterator[E] | None = None
        try:
            if not await opened.start():
                for event in cast("list[E]", await opened.wait()):
                    yield event
                return
            with opened.executing():
                iterator = aiter(open_stream())
            while True:
                with opened.executing() as step:
                    try:
                        event = await anext(iterator)
                    except StopAsyncIteration:
                        break
                    except NotRecorded as unrecorded:
                        recording.withdraw()
                        iterator = aiter(unrecorded.value)
                        continue
                    except Exception as error:
                        if recording.is_withdrawn:
                            raise
                        recording.fail(error)
                        break
                    if not recording.is_withdrawn and (text := codec.get_text(event)):
                        step.publish_text(text)
                if recording.add(event):
                    await opened.wait()
                yield event
            recording.end()
            if not recording.is_withdrawn:
                await opened.wait()
            return
        except BudgetExceeded:
            await wait_for_signal(BUDGET_SIGNAL)
        except EnoughRead:
            recording.end()
            if not recording.is_withdrawn:
                await opened.wait()
            return
        except GeneratorExit:
            recording.end()  # the consumer has enough, and will have when it runs again
            raise
        finally:
            recording.close()
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()
    async for event in open_stream():
        yield event


def record_model_stream_sync(
    model_input: ModelInput, codec: AnswerCodec[list[E]], open_stream: Callable[[], Iterator[E]]
) -> Generator[E]:
    """The same for code that is not async."""
    while (opened := _open_call(model_input, codec)) is not None:
        recording = _StreamRecording(opened, codec)
        iterator: Iterator[E] | None = None
        try:
            if not opened.start_sync():
                yield from cast("list[E]", opened.wait_sync())
                return
            with opened.executing():
                iterator = iter(open_stream())
            while True:
                with opened.executing() as step:
                    try:
                        event = next(iterator)
                    except StopIteration:
                        break
                    except NotRecorded as unrecorded:
                        recording.withdraw()
                        iterator = iter(unrecorded.value)
                        continue
                    except Exception as error:
                        if recording.is_withdrawn:
                            raise
                        recording.fail(error)
                        break
                    if not recording.is_withdrawn and (text := codec.get_text(event)):
                        step.publish_text(text)
                if recording.add(event):
                    opened.wait_sync()
                yield event
            recording.end()
            if not recording.is_withdrawn:
                opened.wait_sync()
            return
        except BudgetExceeded:
            wait_for_signal_sync(BUDGET_SIGNAL)
        except EnoughRead:
            recording.end()
            if not recording.is_withdrawn:
                opened.wait_sync()
            return
        except GeneratorExit:
            recording.end()
            raise
        finally:
            recording.close()
            if isinstance(iterator, Generator):
                iterator.close()
    yield from open_stream()


class _StreamRecording(Generic[E]):
    """The events of a stream until they are reported."""

    def __init__(self, call: InPlaceCall, codec: AnswerCodec[list[E]]) -> None:
        self._call = call
        self._codec = codec
        self._events: list[E] = []
        self._is_reported = False
        self.is_withdrawn = False

    def add(self, event: E) -> bool:
        """Add an event. Returns whether the answer was reported with it."""
        if self._is_reported or self.is_withdrawn:
            return False
        self._events.append(event)
        if self._codec.is_last(event):
            self.end()
            return True
        return False

    def end(self) -> None:
        """Report the answer, if there is one."""
        if self.is_withdrawn:
            return
        if not self._is_reported and self._events:
            self._is_reported = True
            self._call.report(self._events)
        elif not self._is_reported:
            self.fail(UnrecordableValue("The model's stream ended without an event."))

    def fail(self, error: Exception) -> None:
        """Report that the call failed."""
        if not self._is_reported:
            self._is_reported = True
            self._call.report(None, error)

    def withdraw(self) -> None:
        """The answer is not one to record, but it is passed on."""
        if not self._is_reported:
            self.is_withdrawn = True
            self._call.close()

    def close(self) -> None:
        """Withdraw the call, unless its outcome is reported."""
        if not (self._is_reported or self.is_withdrawn):
            self._call.close()
        self._call.release()


# The step


def _open_call(
    model_input: ModelInput, codec: AnswerCodec[Any], *, is_opaque: bool = True, step_name: str = MODEL_CALL_STEP
) -> InPlaceCall | None:
    """The call in the program; ``None`` outside of programs."""
    program = find_program()
    if program is None:
        if get_current_execution() is not None:
            raise UsageError(
                f"a workflow cannot call {model_input.model!r} directly, because this framework's code runs on the "
                "process's event loop: call the agent in a @program, which the workflow can call, or in a @step"
            )
        return None
    log = get_request_log(program.run)
    envelope_codec = _EnvelopeCodec(codec, model_input)

    def make_step(function: StepFunction) -> StepDefinition:
        return StepDefinition(
            step_name, function, True, envelope_codec, ("model",), {}, read_usage=envelope_codec.read_usage
        )

    args = (model_input.model,)
    content = log.make_content(model_input.model, model_input.messages, model_input.settings)
    return open_in_place_call(
        program, make_step, args, {}, content, before=lambda: _reserve(model_input), is_opaque=is_opaque
    )


async def _reserve(model_input: ModelInput) -> None:
    """Reserve the estimated usage, if the run has a budget."""
    executor = get_step_executor()
    if executor.run.has_budget:
        size = len(to_json([model_input.messages, model_input.settings]))
        counts = TokenCounts(-(-size // _CHARS_PER_TOKEN), model_input.max_output_tokens)
        await executor.reserve(make_usage(model_input.model, counts, model_input.url))


def _read_usage(answer: ModelAnswer, model_input: ModelInput) -> ModelUsage:
    """The usage of an answer. The price is that of the model that answered, if its name is known."""
    requested = model_input.model
    if answer.tokens is None:
        return ModelUsage(Usage(calls=answer.call_count, unpriced=1), requested)
    provider = requested.rpartition(":")[0]
    model = f"{provider}:{answer.model}" if answer.model and provider else answer.model or requested
    usage = make_usage(model, answer.tokens, model_input.url)
    if usage.unpriced and model != requested:
        usage = make_usage(requested, answer.tokens, model_input.url)
    return ModelUsage(usage if answer.call_count == 1 else replace(usage, calls=answer.call_count), requested)


class _EnvelopeCodec(ValueCodec):
    """Answers to bytes and back."""

    __slots__ = ("_codec", "_described", "_input")

    def __init__(self, codec: AnswerCodec[Any], model_input: ModelInput) -> None:
        self.annotation = Any
        self._codec = codec
        self._input = model_input
        self._described: tuple[object, tuple[ModelAnswer, ModelUsage]] | None = None

    def read_usage(self, value: object) -> ModelUsage:
        """The usage of an answer."""
        return self._describe(value)[1]

    def _describe(self, value: object) -> tuple[ModelAnswer, ModelUsage]:
        """What readers see of an answer, and its usage. Both are asked for more than once."""
        if self._described is None or self._described[0] is not value:
            answer = self._codec.describe(value)
            self._described = value, (answer, _read_usage(answer, self._input))
        return self._described[1]

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the answer decoded from them."""
        described, (usage, _) = self._describe(value)
        parts: list[dict[str, Any]] = []
        if described.thinking:
            parts.append({"thinking": described.thinking})
        if described.text:
            parts.append({"text": described.text})
        parts += [
            {"call": call.name, "args": call.raw_arguments, "tool_call_id": call.id} for call in described.tool_calls
        ]
        envelope: dict[str, Any] = {
            "$model": FORMAT_VERSION,
            "model": self._input.model,
            "message": {"parts": parts, "finish_reason": described.finish_reason},
            "usage": {name: amount for name in USAGE_FIELDS if (amount := getattr(usage, name))},
        }
        try:
            envelope["response"] = self._codec.dump(value)
            data = to_json(envelope)
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from error
        return data, value if self._codec.is_exact else self.decode(data, subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded answer."""
        envelope = decode_envelope(data, subject)
        if envelope is None or "response" not in envelope:
            raise UnreadableRecord(f"{capitalize_first(subject)} is not the record of a model's answer.")
        try:
            return self._codec.load(envelope["response"])
        except Exception as error:  # of the framework
            raise UnreadableRecord(
                f"{capitalize_first(subject)} cannot be read by this version of its framework: {error}"
            ) from error


def parse_arguments(text: Any) -> Any:
    """A tool call's arguments as data, if they are JSON."""
    if isinstance(text, str | bytes):
        with suppress(ValueError):
            return from_json(text)
    return text
