"""The codec for values with a declared type: pydantic writes them, pydantic reads them back.

The record is the type's JSON, by field name and without computed fields. Where JSON does not preserve the value (bytes
that are not text inside a model, NaN, a ``datetime`` in a ``str | datetime``), the value is taken apart by its declared
type, and its parts are recorded in the tagged form. In both cases the value is recorded only if it survives (see
``round_trip``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from holdfast.codec.canonical import to_canonical_bytes
from holdfast.codec.encrypted_values import check_readable
from holdfast.codec.formatting import (
    capitalize_first,
    describe_validation_error,
    format_path,
    format_type,
    get_type,
    is_declarable,
    make_unreadable_error,
    make_unrecordable_error,
    suggest_fix,
)
from holdfast.codec.json_schema import build_json_schema
from holdfast.codec.recorded_errors import get_error_message
from holdfast.codec.round_trip import Difference, find_difference, get_data_fields
from holdfast.codec.tags import MAX_DECIMAL_BITS, TAGGED_PREFIX, is_plain, pack, unpack
from holdfast.codec.value_codec import ValueCodec
from holdfast.errors import CodecError, DefinitionError, UnreadableRecord, UnrecordableValue

_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="null")

_PYDANTIC_ERRORS = (PydanticSerializationError, ValueError, TypeError, AttributeError, RecursionError)
"""What pydantic, or a user's validator or serializer, raises for a value that it cannot handle."""

_DISCRIMINATOR_HINT = (
    "Where two declared classes look alike, give each a field that differs: `kind: Literal['a'] = 'a'`."
)


class TypedCodec(ValueCodec):
    """Records values by their declared type."""

    __slots__ = ("_adapter", "_has_sets", "_to_json", "_to_python", "_validate_json", "_validate_python")

    def __init__(self, annotation: object) -> None:
        self.annotation = annotation
        self._adapter = _make_adapter(annotation)
        self._validate_json: Callable[..., Any] | None = None

    def _prepare(self) -> None:
        """Called at first use, when all classes that the annotation names are defined."""
        try:
            validator, serializer = self._adapter.validator, self._adapter.serializer
            self._validate_python = validator.validate_python
            self._to_json = serializer.to_json
            self._to_python = serializer.to_python
            self._has_sets = _has_sets(self._adapter.core_schema)
            self._validate_json = validator.validate_json
        except PydanticUserError as error:
            raise _make_definition_error(self.annotation, error) from error

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value read from them."""
        if self._validate_json is None:
            self._prepare()
            assert self._validate_json is not None
        found: Difference | None = None
        try:
            data = self._encode_json(value)
            decoded = self._validate_json(data, by_alias=True, by_name=True)
            uncomparable: list[type] = []
            found = find_difference(value, decoded, uncomparable)
            if found is None:
                if not uncomparable or self._encode_json(decoded) == data:
                    return data, decoded
                if float in uncomparable:
                    return self.round_trip(decoded, subject)  # with floats in place of the given ints
        except _PYDANTIC_ERRORS:
            pass  # the tagged form may work; if not, ``_diagnose`` finds out what is wrong
        try:
            return self._round_trip_parts(value, subject)
        except CodecError:
            raise self._diagnose(value, subject, found) from None

    def _round_trip_parts(self, value: object, subject: str) -> tuple[bytes, object]:
        """Record the value taken apart by its declared type, its parts in the tagged form."""
        data = self._pack_parts(value, subject)
        decoded = self.decode(data, subject)
        uncomparable: list[type] = []
        if find_difference(value, decoded, uncomparable):
            raise UnrecordableValue(subject)
        if uncomparable and self._pack_parts(decoded, subject) != data:
            if float in uncomparable:
                return self._round_trip_parts(decoded, subject)
            raise UnrecordableValue(subject)
        return data, decoded

    def _pack_parts(self, value: object, subject: str) -> bytes:
        try:
            data = pack(self._to_parts(value), subject, _simplify)
        except _PYDANTIC_ERRORS as error:
            raise UnrecordableValue(subject) from error
        # Even if plain, it must be read as Python data: a ``str`` in a ``str | UUID`` stays a ``str``.
        return data if data[:1] == TAGGED_PREFIX else TAGGED_PREFIX + data

    def decode(self, data: bytes, subject: str) -> object:
        """The value in the bytes. Reads both forms, so that an annotation can be added or changed later."""
        if self._validate_json is None:
            self._prepare()
            assert self._validate_json is not None
        try:
            if data[:1] != TAGGED_PREFIX:
                return self._validate_json(data, by_alias=True, by_name=True)
            value = unpack(data)
            try:
                return self._validate_python(value, by_alias=True, by_name=True)
            except ValidationError:
                if not is_plain(value, allow_dollar_keys=True):
                    raise
                return self._validate_json(to_json(value), by_alias=True, by_name=True)
        except ValidationError as error:
            check_readable(data, subject)
            raise make_unreadable_error(subject, self.annotation, error) from None
        except Exception as error:  # a user's validator may raise anything
            raise UnreadableRecord(
                f"{capitalize_first(subject)} cannot be read: {type(error).__name__}: {get_error_message(error)}."
            ) from error

    def build_json_schema(self, definition_prefix: str) -> dict[str, Any]:
        """A JSON schema of the values."""
        return build_json_schema(self._adapter, definition_prefix)

    def _encode_json(self, value: object) -> bytes:
        data: bytes = self._to_json(value, by_alias=False, round_trip=True, warnings="error")
        if self._has_sets:
            data = to_json(_sort_sets(value, from_json(data)))
        return data

    def _to_parts(self, value: object) -> object:
        return self._to_python(value, mode="python", by_alias=False, round_trip=True, warnings=False)

    def _diagnose(self, value: object, subject: str, found: Difference | None) -> UnrecordableValue:
        """Find out what is wrong with the value; speed no longer matters."""
        declared = f"it is declared as `{format_type(self.annotation)}`"
        if found is not None:
            difference = (
                f"{format_path(found.path)}{found.problem}"
                if found.path
                else found.problem.replace("there is", "it is", 1)
            )
            is_confused = (
                found.is_type_changed
                and is_declarable(found.original)
                and format_type(type(found.original)) in format_type(self.annotation)
            )
            hint = _DISCRIMINATOR_HINT if is_confused else self._make_hint(found.original)
            return make_unrecordable_error(subject, f"{declared}, but {difference}", hint)
        try:
            self._validate_python(value, strict=True, by_alias=True, by_name=True)
            # So far an instance of the right class was accepted as it is; reading it back checks its content.
            data = self._to_json(value, by_alias=False, round_trip=True, warnings=False)
            self._adapter.validator.validate_json(data, by_alias=True, by_name=True)
        except ValidationError as error:
            return self._make_mismatch_error(value, subject, error)
        except _PYDANTIC_ERRORS:
            pass
        try:
            pack(self._to_parts(value), subject, _simplify)
        except UnrecordableValue as refusal:
            return refusal  # text with lone surrogates, cycles, too many levels
        except _PYDANTIC_ERRORS as error:
            if "ircular" in str(error):
                return make_unrecordable_error(
                    subject, f"{declared}, but it contains itself", "Return data without cycles."
                )
        problem = f"{declared}, but what is written for this `{format_type(type(value))}` cannot be read back"
        return make_unrecordable_error(
            subject, problem, f"Check the validators and serializers of `{format_type(self.annotation)}`."
        )

    def _make_mismatch_error(self, value: object, subject: str, error: ValidationError) -> UnrecordableValue:
        first = error.errors(include_url=False, include_input=False)[0]
        path, culprit = _follow_location(value, first["loc"])
        position = f"{format_path(path)}there is" if path else "it is"
        problem = (
            f"it is declared as `{format_type(self.annotation)}`, but {position} a `{format_type(type(culprit))}` "
            f"({describe_validation_error(first)})"
        )
        return make_unrecordable_error(subject, problem, self._make_hint(culprit))

    def _make_hint(self, culprit: object) -> str:
        if type(culprit).__module__ in ("builtins", "datetime", "decimal", "uuid"):
            return "Make it what the annotation says, or change the annotation to what it is."
        return suggest_fix(culprit, is_annotated=True)


class ScalarCodec(TypedCodec):
    """A ``TypedCodec`` for ``str``, ``int``, ``bool``, ``float``, and ``None``: immutable, so nothing is read back."""

    __slots__ = ("_type",)

    def __init__(self, annotation: object) -> None:
        super().__init__(annotation)
        self._type = NoneType if annotation is None else annotation

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value itself."""
        kind = type(value)
        if kind is self._type and (
            (kind is not float or math.isfinite(cast(float, value)))
            and (kind is not int or cast(int, value).bit_length() <= MAX_DECIMAL_BITS)
        ):
            try:
                return to_json(value), value
            except PydanticSerializationError:
                pass  # a lone surrogate: the slow path reports it
        return super().round_trip(value, subject)


def _make_adapter(annotation: object) -> TypeAdapter[Any]:
    declared = cast(Any, annotation)
    try:
        try:
            return TypeAdapter[Any](declared, config=_CONFIG)
        except PydanticUndefinedAnnotation:
            return TypeAdapter[Any](declared, config=_CONFIG | ConfigDict(defer_build=True))
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return TypeAdapter[Any](declared)  # models and dataclasses have a config of their own
    except PydanticUserError as error:
        raise _make_definition_error(annotation, error) from error


def _make_definition_error(annotation: object, error: PydanticUserError) -> DefinitionError:
    reason = str(error.message).splitlines()[0]
    if isinstance(error, PydanticSchemaGenerationError):
        reason = "pydantic does not know how to write such a value."
    hint = "Use plain data, a dataclass or a pydantic model; keep clients, connections and files inside the step."
    if getattr(annotation, "__name__", "") in ("Iterator", "AsyncIterator", "Generator", "AsyncGenerator"):
        hint = "Return a list."
    return DefinitionError(f"Values declared as `{format_type(annotation)}` cannot be recorded: {reason} {hint}")


def _simplify(value: object) -> object:
    """A part outside the closed set in a form that its type reads: an Enum member as its value, a Path as text."""
    if isinstance(value, Enum):
        return value.value
    return to_jsonable_python(value, by_alias=False, round_trip=True)


def _has_sets(schema: object) -> bool:
    """Whether a pydantic core schema contains a set. Sets have no order, so their records need one."""
    if isinstance(schema, dict):
        node = cast("dict[str, object]", schema)
        return node.get("type") in ("set", "frozenset") or any(map(_has_sets, node.values()))
    if isinstance(schema, (list, tuple)):
        return any(map(_has_sets, cast("list[object]", schema)))
    return False


def _sort_sets(value: Any, plain: Any) -> Any:
    """The JSON data of ``value`` with the elements of its sets in an order that does not depend on the hash seed."""
    if type(plain) is list:
        items = cast("list[Any]", plain)
        if not isinstance(value, (set, frozenset, list, tuple, deque)) or len(cast("list[Any]", value)) != len(items):
            return items
        pairs = zip(cast("list[Any]", value), items, strict=True)
        ordered = [_sort_sets(element, item) for element, item in pairs]
        return sorted(ordered, key=to_canonical_bytes) if isinstance(value, (set, frozenset)) else ordered
    if type(plain) is dict:
        entries = cast("dict[str, Any]", plain)
        if get_data_fields(get_type(value)) is not None:
            return {key: _sort_sets(getattr(value, key, None), item) for key, item in entries.items()}
        if isinstance(value, Mapping) and len(cast("Mapping[Any, Any]", value)) == len(entries):
            pairs = zip(cast("Mapping[Any, Any]", value).values(), entries.items(), strict=True)
            return {key: _sort_sets(part, item) for part, (key, item) in pairs}
    return cast(Any, plain)


def _follow_location(value: Any, location: tuple[int | str, ...]) -> tuple[list[str], object]:
    """Follow pydantic's error location into a value, skipping parts that are not positions (branches of a union)."""
    path: list[str] = []
    for part in location:
        try:
            if isinstance(part, str) and get_data_fields(get_type(value)) is not None:
                value = getattr(value, part)
                path.append(f".{part}")
            else:
                value = value[part]
                path.append(f"[{part!r}]")
        except (LookupError, TypeError, AttributeError):
            continue
    return path, value
