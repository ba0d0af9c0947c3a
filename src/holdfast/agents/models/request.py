"""One request to one model, through the model library.

``Model.request`` is called directly: the library's own helpers walk the whole conversation in Python before each
request, which a long conversation cannot afford. What they do there is needed for few conversations:
``prepare_messages`` finds out which.

Where somebody listens, the answer is asked for as a stream, and its text is handed on piece by piece. What is recorded
is the same: the library puts the pieces together. A model that cannot stream is asked as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.agents.models.finish_reasons import UNFINISHED_MESSAGE, get_refusal, is_incomplete, is_unfinished
from holdfast.errors import ModelRequestRejected

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

MAX_CONTINUATIONS = 10
"""How often a model may pause in one answer and be asked to go on."""


class SeenParts:
    """How far the messages of one conversation have been looked at, and what was found."""

    __slots__ = ("has_unusual_part", "message_count")

    def __init__(self) -> None:
        self.message_count = 0
        self.has_unusual_part = False
        """There is a part that the library must translate first."""

    def scan(self, messages: list[ModelMessage]) -> bool:
        """Whether there is such a part. Each message is looked at once: a conversation only grows."""
        if not self.has_unusual_part:
            usual = _get_usual_parts()
            self.has_unusual_part = any(
                type(part) not in usual for message in messages[self.message_count :] for part in message.parts
            )
            self.message_count = len(messages)
        return self.has_unusual_part


async def request(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    on_text: Callable[[str], None] | None = None,
) -> ModelResponse:
    """The model's whole answer. One that pauses in the middle of it is asked to go on, and its pieces are joined.

    ``on_text`` is handed its text while it comes.
    """
    heard = None if on_text is None or not can_stream(model) else _TextRelay(on_text)

    async def ask(messages: list[ModelMessage]) -> ModelResponse:
        if heard is not None and (streamed := await _request_streamed(model, messages, settings, parameters, heard)):
            return streamed
        whole = await model.request(messages, settings, parameters)
        if is_incomplete(model, whole):
            raise _make_behavior_error(UNFINISHED_MESSAGE)
        return whole

    answer = await ask(messages)
    pauses = 0
    while answer.state == "suspended":
        pauses += 1
        if pauses > MAX_CONTINUATIONS and not model.continuation_delay(answer):
            raise ModelRequestRejected(
                f"the model paused {pauses} times in one answer"
            )  # each pause is paid: not again
        try:
            await asyncio.sleep(model.continuation_delay(answer) or 0)  # a job at the provider's is looked at again
            more = await ask([*messages, answer])
        except BaseException:
            await _cancel_suspended(model, answer)
            raise
        answer = _join_responses(answer, more)
    if answer.finish_reason == "content_filter" and not answer.parts:
        from pydantic_ai.exceptions import ContentFilterError

        if refusal := get_refusal(answer):
            raise ModelRequestRejected(f"the model refuses to answer: {refusal}", refusal=refusal)
        raise ContentFilterError("the content filter has left nothing of the answer")
    if answer.finish_reason == "error" and not answer.parts:
        raise _make_behavior_error("the model has answered with an error and nothing else")
    return answer


def _make_behavior_error(message: str) -> Exception:
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    return UnexpectedModelBehavior(message)


def can_stream(model: Model) -> bool:
    """Whether it says that it can answer piece by piece."""
    return _make_stream_check(type(model))(model)


@cache
def _make_stream_check(cls: type[Any]) -> Callable[[Any], bool]:
    """How that is found out for a class of models."""
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.wrapper import WrapperModel

    # Whoever has written a `request` of his own, to watch or change it, would be passed by if it were streamed.
    order = cls.__mro__
    if order.index(_find_defining_class(cls, "request")) < order.index(_find_defining_class(cls, "request_stream")):
        return lambda _: False
    if issubclass(cls, WrapperModel):
        return lambda model: can_stream(model.wrapped)
    if issubclass(cls, FunctionModel):
        return lambda model: model.stream_function is not None
    can = cls.request_stream is not Model.request_stream
    return lambda _: can


def _find_defining_class(cls: type[Any], method: str) -> type[Any]:
    """The class that the method comes from."""
    return next(one for one in cls.__mro__ if method in vars(one))


async def _request_streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    relay: _TextRelay,
) -> ModelResponse | None:
    """The answer, heard piece by piece; ``None`` from a model that cannot stream after all."""
    opened = False
    try:
        async with model.request_stream(messages, settings, parameters) as stream:
            opened = True
            await relay.relay_stream(stream)
            answer = stream.get()
    except NotImplementedError:
        if opened:
            raise
        return None
    if is_unfinished(type(stream), answer):
        raise _make_behavior_error(UNFINISHED_MESSAGE)
    return answer


class _TextRelay:
    """Hands on the text of an answer, put together as it will be read from the record: see ``decode_reply``."""

    __slots__ = ("_has_text", "_is_after_text", "_on_text")

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._has_text = False
        self._is_after_text = False
        """The part that came last is a text."""

    async def relay_stream(self, stream: StreamedResponse) -> None:
        """Until the stream has ended."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

        hear = self._on_text
        async for event in stream:  # of a long answer, thousands: nothing more is done for each than must be
            if type(event) is PartDeltaEvent:
                if type(event.delta) is TextPartDelta:
                    hear(event.delta.content_delta)
            elif type(event) is PartStartEvent:
                part = event.part
                if is_text := type(part) is TextPart:
                    if self._has_text and not self._is_after_text:
                        hear("\n\n")
                    self._has_text = True
                    hear(part.content)
                self._is_after_text = is_text


def prepare_messages(
    model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, seen_parts: SeenParts
) -> list[ModelMessage]:
    """The conversation as this model can be sent it: mostly, that is the list itself."""
    whole = messages if isinstance(messages, list) else list(messages)
    # The ids of another provider's calls may be too long for this one.
    if seen_parts.scan(whole) or model.profile.get("tool_call_id_length") is not None:
        return model.prepare_messages(whole, parameters)
    return whole


@cache
def _get_usual_parts() -> frozenset[type]:
    from pydantic_ai import messages as library

    return frozenset(
        {
            library.SystemPromptPart,
            library.UserPromptPart,
            library.ToolReturnPart,
            library.TextPart,
            library.ThinkingPart,
            library.ToolCallPart,
            library.NativeToolCallPart,
            library.NativeToolReturnPart,
            library.FilePart,
        }
    )


def _join_responses(response: ModelResponse, continuation: ModelResponse) -> ModelResponse:
    if response.provider_response_id and response.provider_response_id == continuation.provider_response_id:
        return continuation  # the same answer, told anew
    details = {**(response.provider_details or {}), **(continuation.provider_details or {})}
    return replace(
        continuation,
        parts=[*response.parts, *continuation.parts],
        usage=response.usage + continuation.usage,
        provider_details=details or None,
        provider_response_id=continuation.provider_response_id or response.provider_response_id,
    )


async def _cancel_suspended(model: Model, response: ModelResponse) -> None:
    """Nobody will ask for the rest: the provider need not go on."""
    try:
        await model.cancel_suspended_response(response)
    except Exception:
        pass  # the error that made us give up is the one to tell of
