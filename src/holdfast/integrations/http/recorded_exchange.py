"""Makes an HTTP exchange a step of the program.

Only successful answers are recorded: what fails is passed on and, when the program runs again, sent again. Clients
repeat failed requests by themselves, and the repeated request is then the same call. So is a stream that breaks.

The answer that the program gets is always the one that a later process would get from the record: with the same few
headers, and a stream in the same parts. A stream's consumer gets the part with the last event when it is recorded.

A consumer that closes a stream early gets what it has read when it runs again, unless it was interrupted by an
exception: then the call is withdrawn.
"""

from __future__ import annotations

import json
import sys
from asyncio import events
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from pydantic_core import from_json

from holdfast.authoring.program_calls import get_program, open_in_place_call
from holdfast.codec import codec_for, compute_content_digest
from holdfast.core.execution import get_current_execution
from holdfast.core.program_calls import LoggedCall
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.in_place_call import InPlaceCall, NotRecorded, StepFunction
from holdfast.engine.program_context import find_program
from holdfast.engine.program_run import CallContent
from holdfast.integrations.http.endpoints import RequestFilter, find_protocols, find_provider, get_path
from holdfast.integrations.http.event_format import UNDIVIDED, EventFormat, EventSplitter, get_event_format
from holdfast.integrations.http.exchange import (
    Answer,
    AsyncLiveAnswer,
    Head,
    LiveAnswer,
    Request,
    dump_bytes,
    dump_head,
    load_bytes,
    load_head,
)
from holdfast.integrations.http.protocol import ModelProtocol, get_dict
from holdfast.integrations.model_call import (
    AnswerCodec,
    EnoughRead,
    ModelAnswer,
    ModelInput,
    record_model_call,
    record_model_call_sync,
    record_model_stream,
    record_model_stream_sync,
)

T = TypeVar("T")

HTTP_CALL_STEP = "http call"
"""The step of a call that matches a pattern."""

Send = Callable[[], LiveAnswer]
AsyncSend = Callable[[], Awaitable[AsyncLiveAnswer]]


class ModelRecording:
    """Records a model call."""

    def __init__(self, protocol: ModelProtocol, model_input: ModelInput, *, is_streamed: bool) -> None:
        self._protocol = protocol
        self._input = model_input
        self._is_streamed = is_streamed

    async def answer(self, send: AsyncSend) -> tuple[Head, bytes | AsyncStream]:
        """The recorded answer, or that of ``send``."""
        if self._is_streamed:
            events = record_model_stream(
                self._input, _StreamCodec(self._protocol), partial(_read_stream, send, self._protocol)
            )
            return cast(Head, await anext(events)), AsyncStream(events)
        codec = _AnswerCodec(self._protocol)
        return _unpack(await record_model_call(self._input, codec, partial(_read, send, codec.is_recordable)))

    def answer_sync(self, send: Send) -> tuple[Head, bytes | Stream]:
        """The same for code that is not async."""
        if self._is_streamed:
            events = record_model_stream_sync(
                self._input, _StreamCodec(self._protocol), partial(_read_stream_sync, send, self._protocol)
            )
            return cast(Head, next(events)), Stream(events)
        codec = _AnswerCodec(self._protocol)
        return _unpack(record_model_call_sync(self._input, codec, partial(_read_sync, send, codec.is_recordable)))


class StepRecording:
    """Records a call that matches a pattern. Its answer is read to the end before the program gets it."""

    def __init__(self, request: Request) -> None:
        self._name = f"{request.method} {request.public_url}"
        self._digest = compute_content_digest(self._name, request.stable_body)

    async def answer(self, send: AsyncSend) -> tuple[Head, bytes]:
        """The recorded answer, or that of ``send``."""

        async def call() -> Any:
            return _dump_answer(await _read(send, _is_success))

        return _load_step_answer(await self._open().call(call))

    def answer_sync(self, send: Send) -> tuple[Head, bytes]:
        """The same for code that is not async."""
        return _load_step_answer(self._open().call_sync(lambda: _dump_answer(_read_sync(send, _is_success))))

    def _open(self) -> InPlaceCall:
        content = CallContent(self._digest, self._describe, self._explain_change)
        return open_in_place_call(get_program(), _make_step, (self._name,), {}, content, is_opaque=True)

    def _describe(self, position: int) -> str:
        return json.dumps({"http": self._name})

    def _explain_change(self, recorded: LoggedCall, find_call: Callable[[int], LoggedCall | None]) -> str:
        details = json.loads(recorded.identity.details or "{}")
        if (name := details.get("http")) is None:
            return ""
        return f"  recorded: {name}\n  now:      {self._name}" + ("  (with another body)" if name == self._name else "")


Recording = ModelRecording | StepRecording


def find_recording(request: Request, request_filter: RequestFilter) -> Recording | None:
    """How this request is recorded; ``None``: it is not.

    Only code of a program records calls. In a workflow, a model call is refused.
    """
    path = get_path(request.url)
    if request.method == "POST":
        body = get_dict(_parse(request.body))
        for protocol in find_protocols(path):
            if not protocol.accepts(body):
                continue
            provider = find_provider(request.url)
            read = protocol.read_request(body, path)
            if not read.model and provider is None:
                continue
            if not _is_in_run():
                return None
            model = f"{provider or protocol.provider}:{read.model}"
            model_input = ModelInput(model, read.messages, read.settings, read.max_output_tokens, request.endpoint)
            return ModelRecording(protocol, model_input, is_streamed=protocol.is_streamed(body, path))
    if request_filter.has_pattern(request.method, request.url) and find_program() is not None:
        return StepRecording(request)
    return None


def _is_in_run() -> bool:
    return find_program() is not None or get_current_execution() is not None


def _make_step(function: StepFunction) -> StepDefinition:
    return StepDefinition(HTTP_CALL_STEP, function, True, codec_for(Any), ("request",), {})


# Whole answers


class _Failure(NamedTuple):
    """The error of a call that is not recorded."""

    error: Exception


class _AnswerCodec(AnswerCodec[Answer]):
    def __init__(self, protocol: ModelProtocol) -> None:
        self._protocol = protocol
        self._described: tuple[bytes, ModelAnswer] | None = None
        """By its body: an answer is described before it is recorded, and again as it was decoded."""

    def is_recordable(self, answer: Answer) -> bool:
        """Whether this is an answer to record."""
        if not answer.head.is_success:
            return False
        body = _parse(answer.body)
        if isinstance(body, dict):
            found = cast("dict[str, Any]", body)
            self._described = answer.body, _describe(partial(self._protocol.read_answer, found))
            return not self._protocol.is_error(found)
        return not self._protocol.answers_json

    def dump(self, answer: Answer) -> Any:
        return _dump_answer(answer)

    def load(self, data: Any) -> Answer:
        return Answer(load_head(data), load_bytes(data["body"]))

    def describe(self, answer: Answer) -> ModelAnswer:
        if self._described is None or self._described[0] != answer.body:
            body = _parse(answer.body)
            found = _describe(partial(self._protocol.read_answer, body)) if isinstance(body, dict) else ModelAnswer()
            self._described = answer.body, found
        return self._described[1]


async def _read(send: AsyncSend, is_recordable: Callable[[Answer], bool]) -> Answer:
    """The whole answer of a live call."""
    try:
        live = await send()
        try:
            answer = Answer(live.head, await live.read())
        finally:
            await live.close()
    except Exception as error:
        raise NotRecorded(_Failure(error)) from None
    if not is_recordable(answer):
        raise NotRecorded(answer)
    return answer


def _read_sync(send: Send, is_recordable: Callable[[Answer], bool]) -> Answer:
    try:
        live = send()
        try:
            answer = Answer(live.head, live.read())
        finally:
            live.close()
    except Exception as error:
        raise NotRecorded(_Failure(error)) from None
    if not is_recordable(answer):
        raise NotRecorded(answer)
    return answer


def _unpack(answer: Answer | _Failure) -> tuple[Head, bytes]:
    if isinstance(answer, _Failure):
        raise answer.error
    return answer


def _is_success(answer: Answer) -> bool:
    return answer.head.is_success


def _dump_answer(answer: Answer) -> dict[str, Any]:
    return {**dump_head(answer.head), "body": dump_bytes(answer.body)}


def _load_step_answer(found: Any) -> tuple[Head, bytes]:
    if isinstance(found, Answer | _Failure):  # not recorded
        return _unpack(found)
    return load_head(found), load_bytes(found["body"])


# Streams


class _Part:
    """Some whole events of a stream."""

    __slots__ = ("_event_format", "_events", "data")

    def __init__(self, data: bytes, event_format: EventFormat) -> None:
        self.data = data
        self._event_format = event_format
        self._events: list[Any] | None = None

    @property
    def events(self) -> list[Any]:
        """The events."""
        if self._events is None:
            self._events = list(self._event_format.parse(self.data))
        return self._events


_StreamEvent = Head | _Part
"""The first one of a stream is its head."""


class _StreamCodec(AnswerCodec[list[_StreamEvent]]):
    def __init__(self, protocol: ModelProtocol) -> None:
        self._protocol = protocol
        self._described: tuple[int, ModelAnswer] | None = None
        """By the number of parts: an answer is described before it is recorded, and again as it was decoded."""

    def dump(self, answer: list[_StreamEvent]) -> Any:
        head, *parts = answer
        return {**dump_head(cast(Head, head)), "parts": [dump_bytes(cast(_Part, part).data) for part in parts]}

    def load(self, data: Any) -> list[_StreamEvent]:
        head = load_head(data)
        event_format = get_event_format(head.content_type)
        return [head, *(_Part(load_bytes(part), event_format) for part in data["parts"])]

    def describe(self, answer: list[_StreamEvent]) -> ModelAnswer:
        if self._described is None or self._described[0] != len(answer):
            head, parts = cast(Head, answer[0]), cast("list[_Part]", answer[1:])
            if get_event_format(head.content_type) is UNDIVIDED:
                events = list(UNDIVIDED.parse(b"".join(part.data for part in parts)))
            else:
                events = [event for part in parts for event in part.events]
            self._described = len(answer), _describe(partial(self._protocol.read_events, events))
        return self._described[1]

    def get_text(self, event: _StreamEvent) -> str:
        return "" if isinstance(event, Head) else "".join(map(self._protocol.get_text, event.events))

    def is_last(self, event: _StreamEvent) -> bool:
        return not isinstance(event, Head) and any(map(self._protocol.is_last, event.events))


async def _read_stream(send: AsyncSend, protocol: ModelProtocol) -> AsyncGenerator[_StreamEvent]:
    """The parts of a live stream."""
    try:
        live = await send()
    except Exception as error:
        raise NotRecorded(_raise(error)) from None
    try:
        if not live.head.is_success:
            raise NotRecorded(_iterate(live.head, _Part(await live.read(), UNDIVIDED)))
        yield live.head
        event_format = get_event_format(live.head.content_type)
        splitter = EventSplitter(event_format)
        chunks = live.iter_chunks()
        while True:
            try:
                chunk = await anext(chunks, None)
            except Exception as error:
                raise NotRecorded(_raise(error)) from None
            part = _Part(splitter.finish() if chunk is None else splitter.add(chunk), event_format)
            if any(map(protocol.is_error, part.events)):
                raise NotRecorded(_iterate(part, _Part(splitter.finish(), event_format)))
            if part.data:
                yield part
            if chunk is None:
                return
    finally:
        await live.close()


def _read_stream_sync(send: Send, protocol: ModelProtocol) -> Generator[_StreamEvent]:
    try:
        live = send()
    except Exception as error:
        raise NotRecorded(_raise_sync(error)) from None
    try:
        if not live.head.is_success:
            raise NotRecorded((live.head, _Part(live.read(), UNDIVIDED)))
        yield live.head
        event_format = get_event_format(live.head.content_type)
        splitter = EventSplitter(event_format)
        chunks = live.iter_chunks()
        while True:
            try:
                chunk = next(chunks, None)
            except Exception as error:
                raise NotRecorded(_raise_sync(error)) from None
            part = _Part(splitter.finish() if chunk is None else splitter.add(chunk), event_format)
            if any(map(protocol.is_error, part.events)):
                raise NotRecorded((part, _Part(splitter.finish(), event_format)))
            if part.data:
                yield part
            if chunk is None:
                return
    finally:
        live.close()


async def _iterate(*events: _StreamEvent) -> AsyncIterator[_StreamEvent]:
    for event in events:
        yield event


async def _raise(error: Exception) -> AsyncIterator[_StreamEvent]:
    raise error
    yield  # makes it a generator


def _raise_sync(error: Exception) -> Iterator[_StreamEvent]:
    raise error
    yield


class _Interrupted(BaseException):
    """Thrown into a stream whose consumer was interrupted."""


def _is_interrupted() -> bool:
    """Whether the consumer closes the stream because of an exception, and not because it has enough."""
    error = sys.exception()
    return error is not None and not isinstance(error, GeneratorExit)


class Stream:
    """The body of a streamed answer."""

    def __init__(self, events: Generator[_StreamEvent]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return cast(_Part, next(self._events)).data

    def close(self) -> None:
        """The consumer has enough."""
        if _is_interrupted():
            with suppress(_Interrupted):
                self._events.throw(_Interrupted())
        elif events._get_running_loop() is None:  # else waiting might block the engine's own loop
            with suppress(StopIteration, EnoughRead):
                self._events.throw(EnoughRead())
        self._events.close()


class AsyncStream:
    """The same for async code."""

    def __init__(self, events: AsyncGenerator[_StreamEvent]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return cast(_Part, await anext(self._events)).data

    def close(self) -> Coroutine[Any, Any, None]:
        """The consumer has enough. Await the result; the call decides whether the consumer was interrupted."""
        return self._close(is_interrupted=_is_interrupted())

    async def _close(self, *, is_interrupted: bool) -> None:
        if is_interrupted:
            with suppress(_Interrupted):
                await self._events.athrow(_Interrupted())
        else:
            with suppress(StopAsyncIteration, EnoughRead):
                await self._events.athrow(EnoughRead())
        await self._events.aclose()


def _parse(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def _describe(read: Callable[[], ModelAnswer]) -> ModelAnswer:
    """What readers see of an answer: nothing, if it has another form than the protocol."""
    try:
        return read()
    except (TypeError, AttributeError, KeyError, ValueError):
        return ModelAnswer()
