"""One request to one model, through the model library.

``Model.request`` is called directly: the library's own helpers walk the whole conversation in Python before each
request, which a long conversation cannot afford. What they do there is needed for few conversations: ``sendable`` finds
out which.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
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

_REMEMBERED = 1000
_looked_at: OrderedDict[int, tuple[ModelMessage, int, bool]] = OrderedDict()
"""Of conversations by the identity of their lists: the first message, how many were looked at, and what was found."""


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


def sendable(model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[ModelMessage]:
    """The conversation as this model can be sent it: mostly, that is the list itself."""
    whole = messages if isinstance(messages, list) else list(messages)
    # The ids of another provider's calls may be too long for this one.
    if _has_unusual_parts(whole) or model.profile.get("tool_call_id_length") is not None:
        return model.prepare_messages(whole, parameters)
    return whole


def _has_unusual_parts(messages: list[ModelMessage]) -> bool:
    """Whether there is a part that the library must translate first. Each message is looked at once."""
    if not messages:
        return False
    key = id(messages)
    first, looked_at, unusual = _looked_at.get(key, (None, 0, False))
    if first is not messages[0] or looked_at > len(messages):  # a list that has the place of one that is gone
        looked_at, unusual = 0, False
    if not unusual:
        usual = _usual_parts()
        unusual = any(type(part) not in usual for message in messages[looked_at:] for part in message.parts)
    _looked_at[key] = (messages[0], len(messages), unusual)
    _looked_at.move_to_end(key)
    if len(_looked_at) > _REMEMBERED:
        _looked_at.popitem(last=False)
    return unusual


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
