"""The result of an MCP tool as plain data, which is recorded and sent to the model.

Structured content is preferred to the text that most servers also send. One text becomes a string, several items a
list. Images are kept, in the form of ``agents.tool_results``. Other binary data is replaced by a note.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from holdfast.agents.tool_results import SUPPORTED_IMAGE_TYPES, make_image
from holdfast.codec.formatting import truncate

MAX_RESULT_CHARS = 100_000
"""Maximum length of a result without images: the model reads it in every turn that follows."""

MAX_IMAGE_CHARS = 5_000_000
"""Maximum length of an image in base64."""

MAX_IMAGES = 8


def to_plain(result: CallToolResult) -> Any:
    """The result of a successful call."""
    texts, images, notes = _split_blocks(result.content)
    found: list[Any] = []
    if result.structured_content is not None:
        found.append(result.structured_content)
    elif texts:
        found.append("\n".join(texts))
    found += notes
    content = _truncate(None if not found else found[0] if len(found) == 1 else found)
    if not images:
        return content
    return images[0] if content is None and len(images) == 1 else [*([] if content is None else [content]), *images]


def format_error(result: CallToolResult) -> str:
    """The server's message for a failed call."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if not any(text.strip() for text in texts) and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return truncate("\n".join(texts).strip() or "the server does not say why", MAX_RESULT_CHARS)


def _split_blocks(blocks: Sequence[ContentBlock]) -> tuple[list[str], list[Any], list[Any]]:
    """The texts, the images that a model accepts, and notes about the other blocks."""
    texts: list[str] = []
    images: list[Any] = []
    notes: list[Any] = []
    for block in blocks:
        match block:
            case TextContent():
                texts.append(block.text)
            case ImageContent():
                if (
                    block.mime_type in SUPPORTED_IMAGE_TYPES
                    and len(block.data) <= MAX_IMAGE_CHARS
                    and len(images) < MAX_IMAGES
                ):
                    images.append(make_image(block.mime_type, block.data))
                else:
                    notes.append(_describe_omitted("image", block.mime_type, block.data))
            case AudioContent():
                notes.append(_describe_omitted("audio", block.mime_type, block.data))
            case ResourceLink():
                link = {"resource": block.uri, "name": block.name, "description": block.description}
                notes.append({key: value for key, value in link.items() if value})
            case EmbeddedResource(resource=BlobResourceContents() as blob):
                notes.append({"resource": blob.uri, **_describe_omitted("resource", blob.mime_type, blob.blob)})
            case EmbeddedResource():
                notes.append({"resource": block.resource.uri, "text": getattr(block.resource, "text", "")})
    return texts, images, notes


def _describe_omitted(content_kind: str, media_type: str | None, data: str) -> dict[str, str]:
    return {"left out": f"{content_kind} of type {media_type or 'unknown'}, {len(data) * 3 // 4:,} bytes"}


def _truncate(value: Any) -> Any:
    """The value, or the beginning of a value that is too long, with a note."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_RESULT_CHARS:
        return value
    return (
        f"{text[:MAX_RESULT_CHARS]}\n[cut: the result has {len(text):,} characters, of which these are the first "
        f"{MAX_RESULT_CHARS:,}]"
    )
