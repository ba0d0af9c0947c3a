"""Tool results that contain files: their recorded form, and how people see them.

A result without files is recorded by its declared type, like the output of any step. One with files is an envelope of
plain data, ``{"$tool_result":1,"value":...}``, in which each file is ``{"$file": {...}}`` in the form of
``agents.models.messages``. If a tool separates its result from other content for the model (the model library's
``ToolReturn``), that content is under ``content`` and ``metadata``. The envelope is large with its files, so the store
keeps it as a blob: compressed, and once for equal content.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import from_json

TOOL_RESULT_PREFIX = b'{"$tool_result":1,'
"""The first bytes of such a record; no other tool result begins with them."""
FILE_KEY = "$file"


def has_files(payload: bytes) -> bool:
    """Whether this is a result with files."""
    return payload.startswith(TOOL_RESULT_PREFIX)


def decode_plain_tool_result(payload: bytes) -> Any:
    """The result for people, with a description of each file."""
    return replace_files(from_json(payload)["value"])


def replace_files(value: Any) -> Any:
    """The value with a description in place of each file."""
    if isinstance(value, list):
        return [replace_files(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {FILE_KEY}:
            return _describe_file(fields[FILE_KEY])
        return {name: replace_files(field) for name, field in fields.items()}
    return value


def _describe_file(file: dict[str, Any]) -> str:
    kind, content = next(iter(file.items()))
    if kind.endswith("_url"):
        return f"<{kind.removesuffix('_url')} {content}>"
    size = f", {len(content.rstrip('=')) * 3 // 4:,} bytes" if kind in ("binary", "image", "audio") else ""
    return f"<{file.get('media_type') or kind.replace('_', ' ')}{size}>"
