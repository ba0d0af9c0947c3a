"""The recorded form of each part of a message, field by field. This module imports the model library: see ``messages``.

Written by hand and not with pydantic, because it runs for every message of every turn, and because the form stays the
same when the library renames a class. If a field that these tables do not contain has a value, the library dumps the
whole part, so that nothing is lost.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import __version__ as LIBRARY
from pydantic_ai.messages import (
    AudioUrl,
    BinaryAudio,
    BinaryContent,
    BinaryImage,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.usage import RequestUsage
from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.codec.formatting import get_type
from holdfast.errors import UnreadableRecord, UnrecordableValue

_get_fields: Callable[[object], dict[str, Any]] = vars

_ALIASES = {"_media_type": "media_type", "_identifier": "identifier"}
"""Private fields of the library, and the names of the constructor's parameters."""

_CALL_FIELDS = "tool_call_id args tool_kind id provider_name provider_details"
_RESULT_FIELDS = "tool_call_id content tool_kind metadata timestamp outcome"
_FILE_FIELDS = "_media_type _identifier force_download vendor_metadata"

_LayoutTable = dict[str, tuple[type[Any], str, str]]
"""By the recorded name of a class: the class, the field that is written under that name, and the other fields."""

_PART_LAYOUTS: _LayoutTable = {
    "text": (TextPart, "content", "id provider_name provider_details"),
    "thinking": (ThinkingPart, "content", "id signature provider_name provider_details"),
    "call": (ToolCallPart, "tool_name", _CALL_FIELDS),
    "native_call": (NativeToolCallPart, "tool_name", _CALL_FIELDS),
    "native_result": (NativeToolReturnPart, "tool_name", f"{_RESULT_FIELDS} provider_name provider_details"),
    "prompt": (UserPromptPart, "content", "timestamp"),
    "result": (ToolReturnPart, "tool_name", _RESULT_FIELDS),
    "system": (SystemPromptPart, "content", "timestamp dynamic_ref context_id scope metadata"),
}
_CONTENT_LAYOUTS: _LayoutTable = {
    "text": (TextContent, "content", "metadata"),
    "image_url": (ImageUrl, "url", _FILE_FIELDS),
    "audio_url": (AudioUrl, "url", _FILE_FIELDS),
    "video_url": (VideoUrl, "url", _FILE_FIELDS),
    "document_url": (DocumentUrl, "url", _FILE_FIELDS),
    "binary": (BinaryContent, "data", "media_type _identifier vendor_metadata"),
    "image": (BinaryImage, "data", "media_type _identifier vendor_metadata"),
    "audio": (BinaryAudio, "data", "media_type _identifier vendor_metadata"),
    "uploaded_file": (UploadedFile, "file_id", "provider_name _media_type _identifier vendor_metadata"),
    "cache_point": (CachePoint, "ttl", ""),
}
_MESSAGE_LAYOUTS: _LayoutTable = {
    "user": (ModelRequest, "parts", "timestamp instructions run_id conversation_id metadata state"),
    "model": (
        ModelResponse,
        "parts",
        "usage model_name model_id timestamp provider_name provider_url canonical_system provider_details "
        "provider_response_id finish_reason run_id conversation_id metadata history_digest state",
    ),
}


class _Layout:
    """The recorded form of one class."""

    __slots__ = ("cls", "fields", "keys", "kind", "main_field", "required", "unmapped")

    def __init__(self, kind: str, cls: type[Any], main_field: str, field_names: str) -> None:
        written = field_names.split()
        defaults = {field.name: _get_default(field) for field in dataclasses.fields(cls)}
        self.kind = kind
        self.cls = cls
        self.main_field = main_field
        self.fields = tuple((name, _ALIASES.get(name, name), defaults.get(name)) for name in written)
        self.keys = tuple(key for _, key, _ in self.fields)
        self.required = tuple(
            _ALIASES.get(field.name, field.name)
            for field in dataclasses.fields(cls)
            if field.name in written and field.default is field.default_factory is dataclasses.MISSING
        )
        """Fields without a default: left out if they are ``None``, and ``None`` again when they are read."""
        known = {main_field, "kind", "part_kind", *written}
        self.unmapped = tuple((name, default) for name, default in defaults.items() if name not in known)


def _get_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        return None if isinstance(default, datetime | str) else default  # timestamps and ids are always written
    return None if field.default is dataclasses.MISSING else field.default


def _build_layouts(table: _LayoutTable) -> tuple[dict[type[Any], _Layout], dict[str, _Layout]]:
    layouts = [_Layout(kind, *row) for kind, row in table.items()]
    return {layout.cls: layout for layout in layouts}, {layout.kind: layout for layout in layouts}


_part_by_class, _part_by_kind = _build_layouts(_PART_LAYOUTS)
_content_by_class, _content_by_kind = _build_layouts(_CONTENT_LAYOUTS)
_message_by_class, _message_by_kind = _build_layouts(_MESSAGE_LAYOUTS)


def dump(message: ModelMessage) -> dict[str, Any]:
    """A message as plain data."""
    layout = _message_by_class.get(get_type(message))
    if layout is None:
        raise UnrecordableValue(
            f"A message is a `ModelRequest` or a `ModelResponse`, not a `{type(message).__name__}`."
        )
    fields = _get_fields(message)
    data: dict[str, Any] = {"role": layout.kind, "parts": [_dump_part(part, layout.cls) for part in message.parts]}
    _write_fields(layout, fields, data)
    if _has_unmapped(layout, fields):
        whole = _dump_with_library(dataclasses.replace(message, parts=[]))
        del whole["parts"]
        return {**data, "other": whole, "library": LIBRARY}
    return data


def load(data: Mapping[str, Any]) -> ModelMessage:
    """The message in plain data."""
    try:
        layout = _message_by_kind[data["role"]]
        parts = [_load_part(part, layout) for part in data["parts"]]
        if (other := data.get("other")) is not None:
            whole = _load_with_library({**other, "parts": []}, data)
            return cast(ModelMessage, dataclasses.replace(cast(Any, whole), parts=parts))
        return layout.cls(parts=parts, **_read_fields(layout, data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(
            f"A recorded message cannot be read ({type(error).__name__}: {error}). It may have been written by a newer "
            f"version of Holdfast: upgrade this one."
        ) from error


def _dump_part(part: Any, message: type[ModelMessage]) -> dict[str, Any]:
    layout = _part_by_class.get(get_type(part))
    if layout is None:
        return _dump_unknown_part(part, message)
    fields = _get_fields(part)
    data: dict[str, Any] = {layout.kind: fields[layout.main_field]}
    if layout.kind == "prompt":
        if get_type(content := fields["content"]) is not str:
            data["prompt"] = [_dump_content(item) for item in content]
    elif "content" in layout.keys and not is_json_value(fields["content"]):
        return {**data, **_dump_unknown_part(part, message)}  # a result with files in it
    if _has_unmapped(layout, fields):
        return {**data, **_dump_unknown_part(part, message)}
    _write_fields(layout, fields, data)
    return data


def _load_part(data: Mapping[str, Any], message: _Layout) -> Any:
    if (other := data.get("other")) is not None:
        kind = "request" if message.kind == "user" else "response"
        [part] = _load_with_library({"kind": kind, "parts": [other]}, data).parts
        return part
    layout = _part_by_kind[next(iter(data), "")]
    main = data[layout.kind]
    if layout.kind == "prompt" and type(main) is not str:
        main = [_load_content(item) for item in main]
    return layout.cls(**{layout.main_field: main}, **_read_fields(layout, data))


def _dump_content(item: Any) -> str | dict[str, Any]:
    if type(item) is str:
        return item
    layout = _content_by_class.get(get_type(item))
    if layout is None or _has_unmapped(layout, _get_fields(item)):
        prompt = _dump_with_library(ModelRequest(parts=[UserPromptPart(content=[item])]))["parts"][0]
        return {"other": prompt["content"][0], "library": LIBRARY}
    fields = _get_fields(item)
    main = fields[layout.main_field]
    data: dict[str, Any] = {layout.kind: base64.b64encode(main).decode() if get_type(main) is bytes else main}
    _write_fields(layout, fields, data)
    return data


def _load_content(data: str | Mapping[str, Any]) -> Any:
    if type(data) is str:
        return data
    data = cast("Mapping[str, Any]", data)
    if (other := data.get("other")) is not None:
        prompt = {"part_kind": "user-prompt", "content": [other]}
        part = cast(Any, _load_with_library({"kind": "request", "parts": [prompt]}, data).parts[0])
        return part.content[0]
    layout = _content_by_kind[next(iter(data), "")]
    main = data[layout.kind]
    if layout.main_field == "data":
        main = base64.b64decode(main)
    return layout.cls(**{layout.main_field: main}, **_read_fields(layout, data))


# Fields


def _write_fields(layout: _Layout, fields: Mapping[str, Any], data: dict[str, Any]) -> None:
    """Add the fields that differ from their defaults."""
    for name, key, default in layout.fields:
        value = fields.get(name)
        if value is None:
            continue
        kind = get_type(value)
        if kind is str:
            if value != default:
                data[key] = value
        elif kind is datetime:
            data[key] = value.isoformat()
        elif kind is RequestUsage:
            if used := _dump_usage(value):
                data[key] = used
        elif value != default:
            data[key] = value if is_json_value(value) else to_json_value(value)


def _read_fields(layout: _Layout, data: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: data[key] for key in layout.keys if key in data}
    for key in layout.required:
        fields.setdefault(key, None)
    if "timestamp" in fields:
        fields["timestamp"] = datetime.fromisoformat(fields["timestamp"])
    if "usage" in fields:
        fields["usage"] = _load_usage(fields["usage"])
    return fields


def _has_unmapped(layout: _Layout, fields: Mapping[str, Any]) -> bool:
    """Whether a field that the layout does not contain has a value."""
    return any(fields.get(name, default) != default for name, default in layout.unmapped)


def _dump_usage(usage: RequestUsage) -> dict[str, Any]:
    used = {name: value for name, value in _get_fields(usage).items() if value}
    if usage.cost is not None:  # a cost of 0 differs from an unknown one
        used["cost"] = str(usage.cost)
    return used if is_json_value(used) else to_json_value(used)


def _load_usage(data: Mapping[str, Any]) -> RequestUsage:
    fields = dict(data)
    if "cost" in fields:
        fields["cost"] = Decimal(fields["cost"])
    return RequestUsage(**fields)


def is_json_value(value: Any) -> bool:
    """Whether JSON represents it exactly."""
    kind = get_type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        return all(type(key) is str and is_json_value(item) for key, item in value.items())
    if kind is list:
        return all(map(is_json_value, value))
    return False


def to_json_value(value: Any) -> Any:
    """The value as JSON data, such as a datetime as text."""
    try:
        return from_json(to_json(value, inf_nan_mode="strings", bytes_mode="base64"))
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise UnrecordableValue(f"A message cannot be recorded: {error}.") from error


# The library's own form


def _dump_unknown_part(part: Any, message: type[ModelMessage]) -> dict[str, Any]:
    return {"other": _dump_with_library(message(parts=[part]))["parts"][0], "library": LIBRARY}


def _dump_with_library(message: ModelMessage) -> dict[str, Any]:
    try:
        return ModelMessagesTypeAdapter.dump_python([message], mode="json", warnings=False)[0]
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise UnrecordableValue(f"A message cannot be recorded: {error}.") from error


def _load_with_library(data: Mapping[str, Any], record: Mapping[str, Any]) -> ModelMessage:
    try:
        return ModelMessagesTypeAdapter.validate_python([data])[0]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UnreadableRecord(
            f"A recorded message has a part that was written by version {record.get('library', '(unknown)')} of "
            f"pydantic-ai, and version {LIBRARY}, which is installed here, cannot read it: {first['msg']}. Install the "
            f"version that wrote it, or a newer one."
        ) from None
