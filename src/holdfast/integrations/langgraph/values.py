"""What a graph's nodes and tools return, as data: messages, commands, and the user's own classes.

A value is recorded by its own type. Plain data is recorded as it is, so that people can read it. Objects are recorded
with the name of their class and the values of their fields::

    {"python_class": "langchain_core.messages.tool:ToolMessage", "fields": {"content": "sunny", "tool_call_id": "c1"}}

Reading a record never imports a module, never unpickles, and never calls an ``__init__``: a class must be loaded, and
be a pydantic model, a dataclass, a named tuple, or an enumeration.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any, cast
from uuid import UUID

from langgraph.types import Send
from pydantic import BaseModel

from holdfast.codec import ValueCodec, codec_for
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import HoldfastError, UnreadableRecord, UnrecordableValue

_OBJECT, _FIELDS = "python_class", "fields"
_PLAIN_DICT = "builtins:dict"
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_DATA_CODEC = codec_for(Any)


class GraphValueCodec(ValueCodec):
    """Values of a graph to bytes and back."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = Any

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value decoded from them."""
        data, plain = _DATA_CODEC.round_trip(to_data(value, subject), subject)
        return data, from_data(plain, subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded value."""
        return from_data(_DATA_CODEC.decode(data, subject), subject)


VALUE_CODEC = GraphValueCodec()


def to_data(value: Any, subject: str) -> Any:
    """The value as data of Holdfast's built-in types."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind is dict:
        items = {key: to_data(item, subject) for key, item in value.items()}
        return {_OBJECT: _PLAIN_DICT, _FIELDS: items} if _OBJECT in items else items
    if kind is list:
        return [to_data(item, subject) for item in value]
    if kind in (tuple, set, frozenset):
        return kind(to_data(item, subject) for item in value)
    fields = _get_fields(value)
    if fields is not None:
        return {_OBJECT: _get_class_name(kind, subject), _FIELDS: to_data(fields, subject)}
    for base in (str, int, float):
        if isinstance(value, base):  # of a subclass, such as the text of a message
            return base(value)
    return value  # a date, a UUID, ..., or refused by the codec with the place of the value


def from_data(data: Any, subject: str) -> Any:
    """The value that has this data."""
    kind = type(data)
    if kind is dict:
        if _OBJECT in data:
            return _build(data[_OBJECT], data[_FIELDS], subject)
        return {key: from_data(item, subject) for key, item in data.items()}
    if kind is list:
        return [from_data(item, subject) for item in data]
    if kind in (tuple, set, frozenset):
        return kind(from_data(item, subject) for item in data)
    return data


def _get_fields(value: Any) -> Any:
    """What makes up an object; ``None`` if it is none of the supported kinds."""
    if isinstance(value, BaseModel):
        names = value.model_fields_set | (value.model_extra or {}).keys()
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Send):
        return {"node": value.node, "arg": value.arg, "timeout": value.timeout}
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value)) if hasattr(value, "_fields") else None
    if isinstance(value, deque):
        return list(cast("deque[Any]", value))
    if isinstance(value, dict | list):  # a subclass
        return (dict if isinstance(value, dict) else list)(cast(Any, value))
    return None


def _get_class_name(kind: type, subject: str) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find_class(name) is not kind:
        raise UnrecordableValue(
            f"{capitalize_first(subject)} contains a {kind.__qualname__!r}, whose class cannot be found again by its "
            f"name ({name}): define the class at the top level of its module."
        )
    return name


def _find_class(name: str) -> type | None:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = None if found is None else vars(found).get(part)
    return found if isinstance(found, type) else None


def _build(name: str, fields: Any, subject: str) -> Any:
    kind = _find_class(name)
    if kind is None:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} contains a {name!r}, and no such class is loaded here. Import it in the "
            "module that defines the graph."
        )
    try:
        return _find_builder(kind, name)(kind, from_data(fields, subject))
    except HoldfastError:
        raise
    except Exception as error:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} contains a {name!r}, which cannot be rebuilt: {error}"
        ) from error


def _find_builder(kind: type, name: str) -> Callable[[Any, Any], Any]:
    if issubclass(kind, BaseModel):
        return _build_model
    if issubclass(kind, Enum):
        return lambda enum, member: enum[member]
    if dataclasses.is_dataclass(kind) or issubclass(kind, Send):
        return _build_dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple.__new__
    if name == _PLAIN_DICT or kind is deque or issubclass(kind, dict | list):
        return _build_collection
    raise TypeError("it is not a model, a dataclass, a named tuple, or an enumeration")


def _build_model(kind: type[BaseModel], fields: dict[str, Any]) -> BaseModel:
    """The model without a validation, which may change or refuse its own values."""
    defaults = _get_defaults(kind)
    built = kind.__new__(kind)
    values = {name: make() for name, make in defaults.items() if name not in fields}
    known = kind.model_fields.keys() & fields.keys()
    extra = {name: value for name, value in fields.items() if name not in known}
    object.__setattr__(built, "__dict__", values | {name: fields[name] for name in known})
    object.__setattr__(built, "__pydantic_fields_set__", set(fields))
    object.__setattr__(built, "__pydantic_extra__", extra if kind.model_config.get("extra") == "allow" else None)
    private = {name: attribute.get_default() for name, attribute in kind.__private_attributes__.items()}
    object.__setattr__(built, "__pydantic_private__", private or None)
    return built


@lru_cache(maxsize=512)
def _get_defaults(kind: type[BaseModel]) -> dict[str, Callable[[], Any]]:
    """A function for the default of each field. Pydantic's own inspects the signature of a factory at each call."""
    return {
        name: partial(field.get_default, call_default_factory=True, validated_data={})
        if field.default_factory_takes_validated_data
        else cast("Callable[[], Any]", field.default_factory) or partial(copy.copy, field.default)
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


def _build_dataclass(kind: type, fields: dict[str, Any]) -> Any:
    built = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(built, name, value)
    return built


def _build_collection(kind: Any, items: Any) -> Any:
    built = kind.__new__(kind)
    (built.update if isinstance(built, dict) else built.extend)(items)
    return built


def to_json_data(value: Any) -> Any:
    """An argument or a setting as JSON data that identifies it, without addresses of objects in memory."""
    if type(value) in _PLAIN_TYPES or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_data(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | deque):
        return [to_json_data(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted(str(to_json_data(item)) for item in cast("set[Any]", value))
    if isinstance(value, BaseModel):
        return {
            name: to_json_data(item)
            for name, item in cast("dict[str, Any]", _get_fields(value)).items()
            if name != "id"
        }
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if isinstance(value, date | time | timedelta | UUID | Decimal):
        return str(value)
    if not isinstance(value, type) and (fields := _get_fields(value)) is not None:
        return to_json_data(fields)
    named: Any = value if isinstance(value, type) or callable(value) else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', type(value).__qualname__)}"
