"""One request to one model, through the model library.

``Model.request`` is called directly: the library's own helpers walk the whole conversation in Python before each
request, which takes too long for a long conversation. Few conversations need what they do: ``prepare_messages`` detects
these.

With a listener, the answer is requested as a stream, and its text is passed on piece by piece. The record is the same:
the library joins the pieces. A model that cannot stream is called without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.agents.models.finish_reasons import UNFINISHED_MESSAGE, get_refusal, is_incomplete, is_unfinished
from holdfast.errors import ModelRequestRejected

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

MAX_CONTINUATIONS = 10
"""Maximum number of pauses in one answer that the model is asked to continue."""


@dataclass(slots=True)
class SeenParts:
    """How many messages of a conversation were scanned, and whether one has a part that the library must convert."""

    message_count: int = 0
    has_unusual_part: bool = False

    def scan(self, messages: list[ModelMessage]) -> bool:
        """Whether there is an unusual part. Scans each message once: a conversation only grows."""
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
    """The model's whole answer. If the model pauses, it is called again to continue, and the pieces are joined.

    ``on_text`` gets the text while it arrives.
    """
    relay = None if on_text is None or not can_stream(model) else _TextRelay(on_text)

    async def ask(messages: list[ModelMessage]) -> ModelResponse:
        if relay is not None and (streamed := await _request_streamed(model, messages, settings, parameters, relay)):
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
            # Not retried, because each pause costs money.
            raise ModelRequestRejected(f"the model paused {pauses} times in one answer")
        try:
            await asyncio.sleep(model.continuation_delay(answer) or 0)  # before a background job is polled again
            continuation = await ask([*messages, answer])
        except BaseException:
            await _cancel_suspended(model, answer)
            raise
        answer = _join_responses(answer, continuation)
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
    """Whether the model claims that it can stream."""
    return _make_stream_check(type(model))(model)


@cache
def _make_stream_check(cls: type[Any]) -> Callable[[Any], bool]:
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.wrapper import WrapperModel

    # A subclass that overrides only `request`, to watch or change requests, would be bypassed by a stream.
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
    return next(ancestor for ancestor in cls.__mro__ if method in vars(ancestor))


async def _request_streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    relay: _TextRelay,
) -> ModelResponse | None:
    """The streamed answer; ``None`` if the model cannot stream after all."""
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
    """Passes on the text of an answer, joined as ``decode_reply`` joins it when it reads the record."""

    __slots__ = ("_has_text", "_is_after_text", "_on_text")

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._has_text = False
        self._is_after_text = False
        """The last part was a text."""

    async def relay_stream(self, stream: StreamedResponse) -> None:
        """Pass on the text of the whole stream."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

        on_text = self._on_text
        async for event in stream:  # a long answer has thousands, so each one must be cheap
            if type(event) is PartDeltaEvent:
                if type(event.delta) is TextPartDelta:
                    on_text(event.delta.content_delta)
            elif type(event) is PartStartEvent:
                part = event.part
                if is_text := type(part) is TextPart:
                    if self._has_text and not self._is_after_text:
                        on_text("\n\n")
                    self._has_text = True
                    on_text(part.content)
                self._is_after_text = is_text


def prepare_messages(
    model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, seen_parts: SeenParts
) -> list[ModelMessage]:
    """The conversation in a form that this model accepts: mostly the list itself."""
    prepared = messages if isinstance(messages, list) else list(messages)
    # The ids of another provider's calls may be too long for this one.
    if seen_parts.scan(prepared) or model.profile.get("tool_call_id_length") is not None:
        return model.prepare_messages(prepared, parameters)
    return prepared


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
        return continuation  # the provider repeated the whole answer
    details = {**(response.provider_details or {}), **(continuation.provider_details or {})}
    return replace(
        continuation,
        parts=[*response.parts, *continuation.parts],
        usage=response.usage + continuation.usage,
        provider_details=details or None,
        provider_response_id=continuation.provider_response_id or response.provider_response_id,
    )


async def _cancel_suspended(model: Model, response: ModelResponse) -> None:
    """Let the provider stop, because the rest of the answer will not be requested."""
    try:
        await model.cancel_suspended_response(response)
    except Exception:
        pass  # the caller raises the original error
