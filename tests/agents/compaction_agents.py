"""Agents whose conversations become too long, and models that remember what they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart

from holdfast import tool
from holdfast.testing import ScriptedModel, call

SIZE = 400
"""Characters of what the tool finds: about 100 tokens."""

TOO_LONG = ModelContextWindowExceededError("scripted", "Your input exceeds the context window of this model.")


@tool
async def find(number: int) -> str:
    """Finds something."""
    return f"{number:0{SIZE}d}"


@tool
async def find_much(characters: int) -> str:
    """Finds as much as it is asked for."""
    return "begin" + "x" * (characters - 8) + "end"


class Listener(ScriptedModel):
    """A scripted model that keeps what it was sent, and looks whether a provider would take it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[list[ModelMessage]] = []
        """The contexts, turn by turn."""
        self.transcripts: list[str] = []
        """What it was to summarise."""

    async def request(self, messages: list[ModelMessage], *args: Any) -> ModelResponse:
        response = await super().request(messages, *args)
        if self.calls[-1].turn:
            check_pairs(messages)
            self.sent.append(list(messages))
        else:
            [part] = messages[0].parts
            self.transcripts.append(part.content)  # type: ignore[arg-type, union-attr]
        return response


def check_pairs(messages: Sequence[ModelMessage]) -> None:
    """As providers have it: the results of all calls of an answer follow it at once, and no others."""
    waiting: set[str] = set()
    for message in messages:
        if isinstance(message, ModelResponse):
            assert not waiting
            waiting = {call.tool_call_id for call in message.tool_calls}
        else:
            results = {part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)}
            assert results == waiting
            waiting = set()
    assert not waiting
    assert not isinstance(messages[-1], ModelResponse)


def texts(message: Any) -> list[Any]:
    """The contents of a message's parts."""
    return [part.content for part in message.parts]


def make_find_script(turns: int, last: Any = "done") -> list[Any]:
    """The model calls ``find`` in each turn, and answers in the last one."""
    return [*(call("find", number=number) for number in range(turns)), last]
