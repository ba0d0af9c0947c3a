"""What a transcript says about a turn that was cut off, and the prompt that continues it.

Entries are the SDK's own, and most of their fields are internal. This reads only the messages in them, which have the
form of Anthropic's API.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from holdfast.integrations.claude_agent.tool_calls import ToolUse

RESUMED = "The process that ran this conversation stopped, and another one continues it."


class ToolOutcome(NamedTuple):
    """The result of a call, as the transcript has it."""

    id: str
    is_error: bool


class Transcript:
    """The entries of a session and of its subagents."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], subagents: Sequence[Mapping[str, Any]] = ()) -> None:
        self._messages = list(_iter_messages(entries))
        self._all_messages = [*self._messages, *_iter_messages(subagents)]

    def has_prompt(self, prompt: str) -> bool:
        """Whether the turn with this prompt has begun."""
        return any(role == "user" and prompt in texts for role, _, texts in self._messages)

    def list_tool_uses(self, servers: Collection[str]) -> list[ToolUse]:
        """The calls of these servers' tools that the model has made in the session."""
        found: list[ToolUse] = []
        for role, blocks, _ in self._messages:
            for block in blocks if role == "assistant" else ():
                if block.get("type") == "tool_use":
                    prefix, _, rest = str(block.get("name")).partition("__")
                    server = next((one for one in servers if rest.startswith(f"{one}__")), None)
                    if prefix == "mcp" and server is not None:
                        tool = rest.removeprefix(f"{server}__")
                        found.append(ToolUse(str(block["id"]), server, tool, block.get("input") or {}))
        return found

    def list_tool_outcomes(self) -> list[ToolOutcome]:
        """The results of calls in it, also of calls that subagents made."""
        return [
            ToolOutcome(str(block.get("tool_use_id")), bool(block.get("is_error")))
            for role, blocks, _ in self._all_messages
            for block in blocks
            if role == "user" and block.get("type") == "tool_result"
        ]

    def mentions(self, id: str) -> bool:
        """Whether a resumed turn was told about this call."""
        return any(RESUMED in text and id in text for _, _, texts in self._messages for text in texts)


def make_resume_prompt(results: Sequence[tuple[ToolUse, str]]) -> str:
    """The prompt for a turn that was cut off, with what the model has not learned about its tool calls."""
    lines = [RESUMED]
    if results:
        lines.append("These tool calls were recorded before:")
        lines += [f"- {use.full_name}({json.dumps(use.arguments)}), call {use.id}, {result}" for use, result in results]
    lines.append("Continue where you left off.")
    return "\n".join(lines)


def _iter_messages(
    entries: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, list[Mapping[str, Any]], list[str]]]:
    """The role, the blocks, and the texts of each message."""
    for entry in entries:
        message: Any = entry.get("message")
        if entry.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        content: Any = cast("dict[str, Any]", message).get("content")
        if isinstance(content, str):
            yield str(entry["type"]), [], [content]
        elif isinstance(content, list):
            blocks = [cast("dict[str, Any]", block) for block in cast("list[Any]", content) if isinstance(block, dict)]
            yield str(entry["type"]), [*blocks], [str(block["text"]) for block in blocks if "text" in block]
