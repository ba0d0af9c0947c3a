"""The messages of a turn as they are recorded: the SDK's own classes, by their names and fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from claude_agent_sdk import types
from claude_agent_sdk.types import AssistantMessage, Message, ResultMessage, StreamEvent, TextBlock, ToolUseBlock
from typing_extensions import override

from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.integrations import AnswerCodec, ModelAnswer, TokenCounts, ToolCallReport

_CLASS, _FIELDS = "$class", "fields"


class TurnCodec(AnswerCodec[list[Message]]):
    """A turn: its messages, without the pieces of those that were also sent as a whole.

    Args:
        has_own_cost: whether the cost that the SDK reports is that of the turn. For a turn that continues another one,
            it includes the cost of that one, so the tokens are priced instead.
    """

    def __init__(self, *, has_own_cost: bool) -> None:
        self._has_own_cost = has_own_cost

    @override
    def dump(self, answer: list[Message]) -> Any:
        return [_dump(message) for message in answer if not isinstance(message, StreamEvent)]

    @override
    def load(self, data: Any) -> list[Message]:
        return [_load(message) for message in data]

    @override
    def describe(self, answer: list[Message]) -> ModelAnswer:
        said = [message for message in answer if isinstance(message, AssistantMessage)]
        calls = [
            ToolCallReport(block.id, block.name, block.input)
            for message in said
            for block in message.content
            if isinstance(block, ToolUseBlock)
        ]
        return ModelAnswer(
            "".join(map(self.get_text, answer)),
            calls,
            next((self._count_tokens(message) for message in answer if isinstance(message, ResultMessage)), None),
            model=said[-1].model if said else "",
            call_count=max(1, len({message.message_id for message in said})),  # an answer may be several messages
        )

    @override
    def get_text(self, event: Message) -> str:
        if not isinstance(event, AssistantMessage) or event.parent_tool_use_id is not None:
            return ""
        return "".join(f"{block.text}\n" for block in event.content if isinstance(block, TextBlock))

    @override
    def is_last(self, event: Message) -> bool:
        return isinstance(event, ResultMessage)

    def _count_tokens(self, result: ResultMessage) -> TokenCounts | None:
        """The tokens of the requests that the last process of the turn has made."""
        if result.usage is None:
            return None
        read, written = (result.usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
        return TokenCounts(
            (result.usage.get("input_tokens") or 0) + read + written,
            result.usage.get("output_tokens") or 0,
            read,
            written,
            result.total_cost_usd if self._has_own_cost else None,
        )


def _dump(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if getattr(types, name, None) is not type(value):
            raise UnrecordableValue(f"a message of the class {name!r}, which is not one of the SDK's own")
        return {_CLASS: name, _FIELDS: {one.name: _dump(getattr(value, one.name)) for one in fields(value) if one.init}}
    if isinstance(value, Mapping):
        items = {str(key): _dump(one) for key, one in cast("Mapping[Any, Any]", value).items()}
        return {_CLASS: "", _FIELDS: items} if _CLASS in items else items
    if isinstance(value, list | tuple):
        return [_dump(one) for one in cast("list[Any]", value)]
    return value


def _load(data: Any) -> Any:
    if isinstance(data, list):
        return [_load(one) for one in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    found = cast("dict[str, Any]", data)
    if _CLASS not in found:
        return {key: _load(one) for key, one in found.items()}
    values = {key: _load(one) for key, one in found[_FIELDS].items()}
    if not found[_CLASS]:
        return values
    kind = getattr(types, found[_CLASS], None)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise UnreadableRecord(f"this version of claude-agent-sdk has no message of the class {found[_CLASS]!r}")
    return kind(**values)
