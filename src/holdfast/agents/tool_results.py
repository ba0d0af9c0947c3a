"""Files in the results of tools: how they are recorded, and how a model is shown them.

A tool may return images, audio and documents of the model library, alone, in lists and in dicts, or its ``ToolReturn``.
``ToolOutputCodec`` records them (see ``reports.tool_results``), and the conversation that is made from the journal has
them again as what the model library sends. An MCP server's image is plain data, ``{"$image": "image/png", "base64":
...}``, and is shown as an image as well.
"""

from __future__ import annotations

import base64
import binascii
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from holdfast.agents.models.messages import dump_content, load_content
from holdfast.codec import ValueCodec, decode_plain
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UnrecordableValue
from holdfast.reports.tool_results import FILE_KEY, TOOL_RESULT_PREFIX, has_files

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent

SUPPORTED_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What every provider takes."""

_IMAGE_KEY = "$image"


def make_image(media_type: str, data: str) -> dict[str, str]:
    """An image in a result, as it is recorded; ``data`` is base64."""
    return {_IMAGE_KEY: media_type, "base64": data}


class ToolOutputCodec(ValueCodec):
    """Records what a tool returns: files and ``ToolReturn`` in their own form, all else by the declared type."""

    __slots__ = ("_declared_codec",)

    def __init__(self, declared_codec: ValueCodec) -> None:
        self.annotation = declared_codec.annotation
        self._declared_codec = declared_codec

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value as it will be read from them."""
        if _has_files(value):
            data = _encode_with_files(value, subject)
            return data, self.decode(data, subject)
        data, read = self._declared_codec.round_trip(value, subject)
        if has_files(data):
            raise UnrecordableValue(f"{capitalize_first(subject)} has a key '$tool_result', which is reserved.")
        return data, read

    def decode(self, data: bytes, subject: str) -> object:
        """The value in the bytes."""
        if not has_files(data):
            return self._declared_codec.decode(data, subject)
        result = _decode_with_files(data)
        if not result.is_tool_return:
            return result.value
        from pydantic_ai.messages import ToolReturn

        return ToolReturn(result.value, content=result.content, metadata=result.metadata)


class ToolResult(NamedTuple):
    """What a model is shown of a tool's result."""

    value: Any
    """The result, with files in it."""
    content: str | list[UserContent] | None = None
    """What it is shown beside the result, as if the user had sent it."""
    metadata: Any = None
    """For the application, and not for the model."""
    is_tool_return: bool = False
    """The tool has separated these from each other."""


def decode_tool_result(payload: bytes) -> ToolResult:
    """A recorded result as a model is shown it."""
    return _decode_with_files(payload) if has_files(payload) else ToolResult(restore_images(decode_plain(payload)))


def _encode_with_files(value: Any, subject: str) -> bytes:
    from pydantic_ai.messages import ToolReturn

    more: dict[str, Any] = {}
    if isinstance(value, ToolReturn):
        given = cast("ToolReturn[Any]", value)
        content = given.content
        if content is not None:
            more["content"] = content if isinstance(content, str) else dump_content(content)
        more |= {"metadata": given.metadata, "separate": True}
        value = given.return_value
    try:
        return TOOL_RESULT_PREFIX + to_json({"value": _files_to_json(value), **more})[1:]
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise UnrecordableValue(
            f"{capitalize_first(subject)} has files in it, and cannot be recorded: {error}."
        ) from error


def _files_to_json(value: Any) -> Any:
    """As plain data, with each file in its own form."""
    from pydantic_ai.messages import is_multi_modal_content

    if is_multi_modal_content(value):
        return {FILE_KEY: dump_content([value])[0]}
    if isinstance(value, list | tuple):
        return [_files_to_json(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {str(name): _files_to_json(one) for name, one in cast("dict[Any, Any]", value).items()}
    return value if isinstance(value, str) else to_jsonable_python(value)


def _decode_with_files(payload: bytes) -> ToolResult:
    told: dict[str, Any] = from_json(payload)
    content = told.get("content")
    return ToolResult(
        _files_from_json(told["value"]),
        content if content is None or isinstance(content, str) else load_content(content),
        told.get("metadata"),
        bool(told.get("separate")),
    )


def _files_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_files_from_json(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {FILE_KEY}:
            return load_content([fields[FILE_KEY]])[0]
        return {name: _files_from_json(one) for name, one in fields.items()}
    return value


def _has_files(value: Any) -> bool:
    """Whether this is a ``ToolReturn``, or a file, or has files in it."""
    if "pydantic_ai.messages" not in sys.modules:
        return False  # nobody can have made one
    from pydantic_ai.messages import ToolReturn, is_multi_modal_content

    seen: set[int] = set()
    """Containers: one that contains itself is refused by the codec of the declared type."""

    def search(part: Any) -> bool:
        if isinstance(part, dict | list | tuple):
            if id(cast(object, part)) in seen:
                return False
            seen.add(id(cast(object, part)))
            parts = cast("dict[Any, Any]", part).values() if isinstance(part, dict) else cast("list[Any]", part)
            return any(map(search, parts))
        return is_multi_modal_content(part)

    return isinstance(value, ToolReturn) or search(value)


def restore_images(result: Any) -> Any:
    """A recorded result as a model is shown it: the images in it are images."""
    if isinstance(result, list):
        found = cast("list[Any]", result)
        return [_restore_image(one) for one in found] if any(map(_is_image, found)) else found
    return _restore_image(result)


def get_parts_with_images(content: Any) -> list[Any] | None:
    """What a model is shown, as a list, if there are images in it."""
    from pydantic_ai.messages import BinaryContent

    pieces = cast("list[Any]", content) if isinstance(content, list) else [content]
    return pieces if any(isinstance(piece, BinaryContent) for piece in pieces) else None


def _restore_image(value: Any) -> Any:
    if not _is_image(value):
        return value
    from pydantic_ai.messages import BinaryContent

    try:
        return BinaryContent(base64.b64decode(value["base64"], validate=True), media_type=value[_IMAGE_KEY])
    except binascii.Error:
        return f"(an image of type {value[_IMAGE_KEY]} that cannot be read)"


def _is_image(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    return (
        fields.keys() == {_IMAGE_KEY, "base64"}
        and fields[_IMAGE_KEY] in SUPPORTED_IMAGE_TYPES
        and isinstance(fields["base64"], str)
    )
