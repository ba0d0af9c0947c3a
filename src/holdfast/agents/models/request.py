"""One request to one model, through the model library.

``Model.request`` is called directly: the library's own helpers walk the whole conversation in Python before each
request, which a long conversation cannot afford. What they do there is needed for few conversations: ``sendable`` finds
out which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
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
    model: Model, messages: list[ModelMessage], settings: ModelSettings, parameters: ModelRequestParameters
) -> ModelResponse:
    """The model's whole answer. One that pauses in the middle of it is asked to go on, and its pieces are joined."""
    from pydantic_ai.exceptions import ContentFilterError, UnexpectedModelBehavior

    answer = await model.request(messages, settings, parameters)
    pauses = 0
    while answer.state == "suspended":
        pauses += 1
        if pauses > MOST_CONTINUATIONS and not model.continuation_delay(answer):
            raise UnexpectedModelBehavior(f"the model paused {pauses} times in one answer")
        try:
            await asyncio.sleep(model.continuation_delay(answer) or 0)  # a job at the provider's is looked at again
            more = await model.request([*messages, answer], settings, parameters)
        except BaseException:
            await _withdraw(model, answer)
            raise
        answer = _joined(answer, more)
    if answer.finish_reason == "content_filter" and not answer.parts:
        raise ContentFilterError("the content filter has left nothing of the answer")
    if answer.finish_reason == "error" and not answer.parts:
        raise UnexpectedModelBehavior("the model has answered with an error and nothing else")
    return answer


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
