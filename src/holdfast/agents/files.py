"""Images in the results of tools: how they are recorded, and how a model is shown them.

A result is recorded as plain data. An image in it, or the result itself, is ``{"$image": "image/png", "base64": ...}``;
when the conversation is made from the journal, that becomes what the model library sends as an image.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

SHOWABLE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What every provider takes."""

_MARK = "$image"


def image(media_type: str, data: str) -> dict[str, str]:
    """An image in a result, as it is recorded; ``data`` is base64."""
    return {_MARK: media_type, "base64": data}


def shown(result: Any) -> Any:
    """A recorded result as a model is shown it: the images in it are images."""
    if isinstance(result, list):
        found = cast("list[Any]", result)
        return [_shown(one) for one in found] if any(map(_is_image, found)) else found
    return _shown(result)


def pieces_with_images(content: Any) -> list[Any] | None:
    """What a model is shown, as a list, if there are images in it."""
    from pydantic_ai.messages import BinaryContent

    pieces = cast("list[Any]", content) if isinstance(content, list) else [content]
    return pieces if any(isinstance(piece, BinaryContent) for piece in pieces) else None


def _shown(value: Any) -> Any:
    if not _is_image(value):
        return value
    from pydantic_ai.messages import BinaryContent

    try:
        return BinaryContent(base64.b64decode(value["base64"], validate=True), media_type=value[_MARK])
    except binascii.Error:
        return f"(an image of type {value[_MARK]} that cannot be read)"


def _is_image(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    return fields.keys() == {_MARK, "base64"} and fields[_MARK] in SHOWABLE and isinstance(fields["base64"], str)
