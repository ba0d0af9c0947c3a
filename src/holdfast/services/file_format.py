"""The JSON form of stored types in journal files and archives.

Pydantic derives the form from the declarations of the types: an object with every field by its name. Fields that a
reader does not know are ignored, and fields with a default may be missing, so files of older and newer releases can be
read. The form is exact: reading a file gives back the values of the store, byte for byte. Bytes are written as text if
they are UTF-8, as recorded JSON is, and as ``{"base64": ...}`` if not.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode, b64encode
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, reduce
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from holdfast.codec.formatting import location_to_path
from holdfast.core.records import RecordKind
from holdfast.errors import UsageError
from holdfast.stores.operations import Run

T = TypeVar("T")


class FileFormat(NamedTuple):
    """A kind of file: what its header says, and the words that errors use for it."""

    name: str
    """The value of ``format`` in the header."""
    version: int
    """Increases when an older Holdfast would misread the file. New fields are not a reason."""
    description: str
    hint: str
    """How to get such a file."""

    @property
    def header(self) -> dict[str, Any]:
        """The fields that say what the file is."""
        return {"format": self.name, "version": self.version}

    def parse_object(self, text: str | bytes, source: str) -> dict[str, Any]:
        """Parse a JSON object. Raises ``UsageError``, which calls the text ``source``."""
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{source} is not {self.description}: it is not JSON ({error}). {self.hint}") from None
        if not isinstance(data, dict):
            raise UsageError(f"{source} is not {self.description}: it is not a JSON object. {self.hint}")
        return cast("dict[str, Any]", data)

    def check_header(self, data: Any, source: str) -> None:
        """Raise ``UsageError`` unless this release can read a file with this header."""
        if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != self.name:
            raise UsageError(f'{source} is not {self.description}: it has no "format": "{self.name}". {self.hint}')
        version = cast("dict[str, Any]", data).get("version")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise UsageError(f"{source} cannot be read: 'version' must be a whole number, 1 or more. {self.hint}")
        if version > self.version:
            raise UsageError(
                f"{source} was written by a newer Holdfast (format version {version}; this one reads up to "
                f"{self.version}). Read it with that one."
            )

    def decode(self, kind: type[T], data: Any, source: str) -> T:
        """Read a value of a stored type. Raises ``UsageError``, which names the field and what it must be."""
        try:
            return _get_adapter(kind).validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            path = "".join(location_to_path(first["loc"])).removeprefix(".")
            raise UsageError(f"{source} cannot be read: {path}: {first['msg']}. {self.hint}") from None


def encode(value: Any) -> Any:
    """The JSON data of a value of a stored type."""
    return _get_adapter(cast("Any", type(value))).dump_python(value, mode="json")


def to_json_line(data: Any) -> str:
    """JSON on one line."""
    text = json.dumps(data, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data)  # a lone surrogate can be written only as an escape
    return text


# Forms of types


def _write_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _read_bytes(data: Any) -> bytes:
    try:
        return data.encode() if isinstance(data, str) else b64decode(data["base64"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise PydanticCustomError("recorded_bytes", 'Input should be a string or {"base64": ...}') from None


_KindLabel = StrEnum("_KindLabel", [kind.name for kind in RecordKind])
_FORMS: dict[Any, Any] = {
    str: StrictStr,
    bool: StrictBool,
    int: StrictInt,
    float: StrictFloat,
    bytes: Annotated[bytes, PlainValidator(_read_bytes), PlainSerializer(_write_bytes)],
    RecordKind: Annotated[
        _KindLabel,
        AfterValidator(lambda label: RecordKind[label.name]),
        PlainSerializer(lambda kind: kind.label),
    ],
}
_STORE_FIELDS: dict[type, dict[str, Any]] = {
    Run: {"key": 0, "owner": None, "starter": None, "is_limited": False, "suspicion": 0, "trace_parent": ""}
}
"""Fields that mean nothing outside the store, with the values they have when they are read from a file."""


@cache
def _get_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(_get_form(kind))


def _get_form(declared: Any) -> Any:
    """A declared type with the forms of this module for the types it is made of."""
    if declared in _FORMS:
        return _FORMS[declared]
    origin, args = get_origin(declared), get_args(declared)
    if origin is UnionType:
        return reduce(lambda form, other: form | other, map(_get_form, args))
    if origin is tuple:
        return tuple[tuple(map(_get_form, args))]
    if is_dataclass(declared) or hasattr(declared, "_fields"):
        return Annotated[declared, _ObjectForm]
    return declared


class _ObjectForm:
    """Makes pydantic read and write a dataclass or a named tuple as an object."""

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        store_fields = _STORE_FIELDS.get(kind, {})
        types = get_type_hints(kind)
        fields = {
            name: core_schema.typed_dict_field(
                handler.generate_schema(_get_form(types[name])), required=parameter.default is parameter.empty
            )
            for name, parameter in inspect.signature(kind).parameters.items()
            if name not in store_fields
        }

        def read(values: dict[str, Any]) -> Any:
            return kind(**values, **store_fields)

        def write(value: Any, write_object: SerializerFunctionWrapHandler) -> Any:
            return write_object({name: getattr(value, name) for name in fields})

        form = core_schema.typed_dict_schema(fields)
        return core_schema.no_info_after_validator_function(
            read, form, serialization=core_schema.wrap_serializer_function_ser_schema(write, schema=form)
        )
