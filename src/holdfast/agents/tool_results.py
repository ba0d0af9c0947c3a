"""Files in the results of tools: their recorded form, and the form that a model gets.

A tool may return images, audio, and documents of the model library, alone, in lists, and in dicts, or its
``ToolReturn``. ``ToolOutputCodec`` records them (see ``reports.tool_results``), and the conversation that is made from
the journal has them as objects of the model library again. An image of an MCP server is plain data,
``{"$image": "image/png", "base64": ...}``, and the model gets it as an image, too.
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
"""Types that every provider accepts."""

_IMAGE_KEY = "$image"


def make_image(media_type: str, data: str) -> dict[str, str]:
    """The recorded form of an image in a result; ``data`` is base64."""
    return {_IMAGE_KEY: media_type, "base64": data}


class ToolOutputCodec(ValueCodec):
    """Records a tool's result: files and ``ToolReturn`` in their own form, everything else by the declared type."""

    __slots__ = ("_declared_codec",)

    def __init__(self, declared_codec: ValueCodec) -> None:
        self.annotation = declared_codec.annotation
        self._declared_codec = declared_codec

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value decoded from them."""
        if _has_files(value):
            data = _encode_with_files(value, subject)
            return data, self.decode(data, subject)
        data, read = self._declared_codec.round_trip(value, subject)
        if has_files(data):
            raise UnrecordableValue(f"{capitalize_first(subject)} has a key '$tool_result', which is reserved.")
        return data, read

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded value."""
        if not has_files(data):
            return self._declared_codec.decode(data, subject)
        result = _decode_with_files(data)
        if not result.is_tool_return:
            return result.value
        from pydantic_ai.messages import ToolReturn

        return ToolReturn(result.value, content=result.content, metadata=result.metadata)


class ToolResult(NamedTuple):
    """A tool's result in the form that a model gets."""

    value: Any
    """The result, with files in it."""
    content: str | list[UserContent] | None = None
    """Further content for the model, as if the user had sent it."""
    metadata: Any = None
    """For the application, not for the model."""
    is_tool_return: bool = False
    """The tool returned a ``ToolReturn``."""


def decode_tool_result(payload: bytes) -> ToolResult:
    """A recorded result in the form that a model gets."""
    return _decode_with_files(payload) if has_files(payload) else ToolResult(restore_images(decode_plain(payload)))


def _encode_with_files(value: Any, subject: str) -> bytes:
    from pydantic_ai.messages import ToolReturn

    extra: dict[str, Any] = {}
    if isinstance(value, ToolReturn):
        tool_return = cast("ToolReturn[Any]", value)
        content = tool_return.content
        if content is not None:
            extra["content"] = content if isinstance(content, str) else dump_content(content)
        extra |= {"metadata": tool_return.metadata, "separate": True}
        value = tool_return.return_value
    try:
        return TOOL_RESULT_PREFIX + to_json({"value": _files_to_json(value), **extra})[1:]
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise UnrecordableValue(
            f"{capitalize_first(subject)} has files in it, and cannot be recorded: {error}."
        ) from error


def _files_to_json(value: Any) -> Any:
    """The value as plain data, with each file in its own form."""
    from pydantic_ai.messages import is_multi_modal_content

    if is_multi_modal_content(value):
        return {FILE_KEY: dump_content([value])[0]}
    if isinstance(value, list | tuple):
        return [_files_to_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {str(name): _files_to_json(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value if isinstance(value, str) else to_jsonable_python(value)


def _decode_with_files(payload: bytes) -> ToolResult:
    recorded: dict[str, Any] = from_json(payload)
    content = recorded.get("content")
    return ToolResult(
        _files_from_json(recorded["value"]),
        content if content is None or isinstance(content, str) else load_content(content),
        recorded.get("metadata"),
        bool(recorded.get("separate")),
    )


def _files_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_files_from_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {FILE_KEY}:
            return load_content([fields[FILE_KEY]])[0]
        return {name: _files_from_json(item) for name, item in fields.items()}
    return value


def _has_files(value: Any) -> bool:
    """Whether this is a ``ToolReturn`` or a file, or contains files."""
    if "pydantic_ai.messages" not in sys.modules:
        return False  # without the library, there are none
    from pydantic_ai.messages import ToolReturn, is_multi_modal_content

    # Containers that were searched. The codec of the declared type refuses one that contains itself.
    seen: set[int] = set()

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
    """A recorded result with recorded images as images of the model library."""
    if isinstance(result, list):
        return [_restore_image(item) for item in cast("list[Any]", result)]
    return _restore_image(result)


def get_parts_with_images(content: Any) -> list[Any] | None:
    """The content as a list, if there are images in it."""
    from pydantic_ai.messages import BinaryContent

    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    return parts if any(isinstance(part, BinaryContent) for part in parts) else None


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
