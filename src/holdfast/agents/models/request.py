"""One request to one model, through the model library.

``Model.request`` is called directly: the library's own helpers walk the whole conversation in Python before each
request, which a long conversation cannot afford. What they do there is needed for few conversations: ``sendable`` finds
out which.

Where somebody listens, the answer is asked for as a stream, and its text is handed on piece by piece. What is recorded
is the same: the library puts the pieces together. A model that cannot stream is asked as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.agents.models.finish_reasons import UNFINISHED, is_cut_short, is_unfinished, refusal_in
from holdfast.errors import ModelRefused

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

MOST_CONTINUATIONS = 10
"""How often a model may pause in one answer and be asked to go on."""


class Looked:
    """How far the messages of one conversation have been looked at, and what was found."""

    __slots__ = ("count", "unusual")

    def __init__(self) -> None:
        self.count = 0
        self.unusual = False
        """There is a part that the library must translate first."""

    def at(self, messages: list[ModelMessage]) -> bool:
        """Whether there is such a part. Each message is looked at once: a conversation only grows."""
        if not self.unusual:
            usual = _usual_parts()
            self.unusual = any(type(part) not in usual for message in messages[self.count :] for part in message.parts)
            self.count = len(messages)
        return self.unusual


async def request(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    hear: Callable[[str], None] | None = None,
) -> ModelResponse:
    """The model's whole answer. One that pauses in the middle of it is asked to go on, and its pieces are joined.

    ``hear`` is handed its text while it comes.
    """
    heard = None if hear is None or not can_stream(model) else _Heard(hear)

    async def ask(messages: list[ModelMessage]) -> ModelResponse:
        if heard is not None and (streamed := await _streamed(model, messages, settings, parameters, heard)):
            return streamed
        whole = await model.request(messages, settings, parameters)
        if is_cut_short(model, whole):
            raise _misbehaviour(UNFINISHED)
        return whole

    answer = await ask(messages)
    pauses = 0
    while answer.state == "suspended":
        pauses += 1
        if pauses > MOST_CONTINUATIONS and not model.continuation_delay(answer):
            raise ModelRefused(f"the model paused {pauses} times in one answer")  # each pause is paid: not again
        try:
            await asyncio.sleep(model.continuation_delay(answer) or 0)  # a job at the provider's is looked at again
            more = await ask([*messages, answer])
        except BaseException:
            await _withdraw(model, answer)
            raise
        answer = _joined(answer, more)
    if answer.finish_reason == "content_filter" and not answer.parts:
        from pydantic_ai.exceptions import ContentFilterError

        if refusal := refusal_in(answer):
            raise ModelRefused(f"the model refuses to answer: {refusal}", refusal=refusal)
        raise ContentFilterError("the content filter has left nothing of the answer")
    if answer.finish_reason == "error" and not answer.parts:
        raise _misbehaviour("the model has answered with an error and nothing else")
    return answer


def _misbehaviour(words: str) -> Exception:
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    return UnexpectedModelBehavior(words)


def can_stream(model: Model) -> bool:
    """Whether it says that it can answer piece by piece."""
    return _stream_of(type(model))(model)


@cache
def _stream_of(kind: type[Any]) -> Callable[[Any], bool]:
    """How that is found out for a class of models."""
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.wrapper import WrapperModel

    # Whoever has written a `request` of his own, to watch or change it, would be passed by if it were streamed.
    order = kind.__mro__
    if order.index(_home(kind, "request")) < order.index(_home(kind, "request_stream")):
        return lambda _: False
    if issubclass(kind, WrapperModel):
        return lambda model: can_stream(model.wrapped)
    if issubclass(kind, FunctionModel):
        return lambda model: model.stream_function is not None
    can = kind.request_stream is not Model.request_stream
    return lambda _: can


def _home(kind: type[Any], method: str) -> type[Any]:
    """The class that the method comes from."""
    return next(one for one in kind.__mro__ if method in vars(one))


async def _streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    heard: _Heard,
) -> ModelResponse | None:
    """The answer, heard piece by piece; ``None`` from a model that cannot stream after all."""
    opened = False
    try:
        async with model.request_stream(messages, settings, parameters) as stream:
            opened = True
            await heard.listen_to(stream)
            answer = stream.get()
    except NotImplementedError:
        if opened:
            raise
        return None
    if is_unfinished(type(stream), answer):
        raise _misbehaviour(UNFINISHED)
    return answer


class _Heard:
    """Hands on the text of an answer, put together as it will be read from the record: see ``plain_reply``."""

    __slots__ = ("_after_text", "_any_text", "_hear")

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._any_text = False
        self._after_text = False
        """The part that came last is a text."""

    async def listen_to(self, stream: StreamedResponse) -> None:
        """Until the stream has ended."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

        hear = self._hear
        async for event in stream:  # of a long answer, thousands: nothing more is done for each than must be
            if type(event) is PartDeltaEvent:
                if type(event.delta) is TextPartDelta:
                    hear(event.delta.content_delta)
            elif type(event) is PartStartEvent:
                part = event.part
                if is_text := type(part) is TextPart:
                    if self._any_text and not self._after_text:
                        hear("\n\n")
                    self._any_text = True
                    hear(part.content)
                self._after_text = is_text


def sendable(
    model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, looked: Looked
) -> list[ModelMessage]:
    """The conversation as this model can be sent it: mostly, that is the list itself."""
    whole = messages if isinstance(messages, list) else list(messages)
    # The ids of another provider's calls may be too long for this one.
    if looked.at(whole) or model.profile.get("tool_call_id_length") is not None:
        return model.prepare_messages(whole, parameters)
    return whole


@cache
def _usual_parts() -> frozenset[type]:
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


def _joined(answer: ModelResponse, more: ModelResponse) -> ModelResponse:
    if answer.provider_response_id and answer.provider_response_id == more.provider_response_id:
        return more  # the same answer, told anew
    details = {**(answer.provider_details or {}), **(more.provider_details or {})}
    return replace(
        more,
        parts=[*answer.parts, *more.parts],
        usage=answer.usage + more.usage,
        provider_details=details or None,
        provider_response_id=more.provider_response_id or answer.provider_response_id,
    )


async def _withdraw(model: Model, answer: ModelResponse) -> None:
    """Nobody will ask for the rest: the provider need not go on."""
    try:
        await model.cancel_suspended_response(answer)
    except Exception:
        pass  # the error that made us give up is the one to tell of
