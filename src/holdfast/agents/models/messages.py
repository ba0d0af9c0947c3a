"""The recorded form of messages: plain JSON data that stays readable when the model library changes.

The library reads JSON of its older versions, but not of newer ones, and either may read a journal. Golden files
(``tests/golden``) guard the form.

A message is ``{"role": "user" | "model", "parts": [...], ...}``. A part is named by its first key, which holds its
content::

    {"prompt": "Hello", "timestamp": ...}                     {"text": "Hello!", "id": ...}
    {"prompt": ["Look:", {"image_url": "https://..."}]}       {"thinking": "...", "signature": ...}
    {"system": "Be kind."}                                    {"call": "search", "tool_call_id": ..., "args": ...}
    {"result": "search", "tool_call_id": ..., "content": ...}

The other keys are the model library's field names; default values are left out. Parts that every provider has are
written field by field (see ``message_layouts``). Everything else is in the library's own form, as ``{"other": {...},
"library": "2.66.0"}``, and the library reads it back. An unknown key, written by a newer version, is ignored.

Nothing here imports the library before a message is dumped or loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent


def dump_message(message: ModelMessage) -> dict[str, Any]:
    """A message as plain data, which may share lists and dicts with the message."""
    from holdfast.agents.models.message_layouts import dump

    return dump(message)


def load_message(data: dict[str, Any]) -> ModelMessage:
    """The message in plain data. Raises ``UnreadableRecord``."""
    from holdfast.agents.models.message_layouts import load

    return load(data)


def dump_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Several messages as plain data."""
    return [dump_message(message) for message in messages]


def load_messages(data: Sequence[dict[str, Any]]) -> list[ModelMessage]:
    """Several messages from plain data."""
    return [load_message(item) for item in data]


def dump_content(content: Sequence[UserContent]) -> list[Any]:
    """The parts of a prompt (texts, images, documents) as plain data."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    return dump_message(ModelRequest([UserPromptPart(list(content))]))["parts"][0]["prompt"]


def load_content(data: list[Any]) -> list[UserContent]:
    """The parts of a prompt from plain data."""
    [part] = load_message({"role": "user", "parts": [{"prompt": data}]}).parts
    return part.content  # type: ignore[union-attr, return-value]
