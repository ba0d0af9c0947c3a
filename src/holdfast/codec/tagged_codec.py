"""The codec for values without a full declared type: no annotation, ``Any``, ``dict``, ``list[Any]`` and the like.

Values are recorded by their own types (see ``tags``). The annotation is still enforced as far as it goes: a step
declared ``-> dict`` that returns a list gets an error, and a client's JSON list for a ``tuple`` parameter is read as a
tuple.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaValidator, to_json

from holdfast.codec.formatting import format_type, make_unreadable_error, make_unrecordable_error
from holdfast.codec.json_schema import build_json_schema
from holdfast.codec.tags import pack_and_unpack, unpack_record
from holdfast.codec.value_codec import ValueCodec


class TaggedCodec(ValueCodec):
    """Records values of the closed set by their own types."""

    __slots__ = ("_adapter", "_shape_validator")

    def __init__(self, annotation: object, *, has_shape: bool) -> None:
        self.annotation = annotation
        self._shape_validator: SchemaValidator | None = None
        self._adapter: TypeAdapter[Any] | None = None
        if has_shape:
            try:
                adapter = TypeAdapter[Any](cast(Any, annotation))
                self._shape_validator, self._adapter = cast(SchemaValidator, adapter.validator), adapter
            except PydanticUserError:
                pass  # pydantic does not know this annotation; the closed set is enough of a check

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value as it will be read from them."""
        if type(value) is str and self._shape_validator is None:
            try:
                return to_json(value), value
            except ValueError:
                pass  # a lone surrogate: the slow path reports it
        if self._shape_validator is not None and not self._shape_validator.isinstance_python(value, strict=True):
            problem = f"it is declared as `{format_type(self.annotation)}`, but it is a `{format_type(type(value))}`"
            raise make_unrecordable_error(
                subject, problem, "Make it what the annotation says, or change the annotation to what it is."
            )
        return pack_and_unpack(value, subject)

    def build_json_schema(self, definition_prefix: str) -> dict[str, Any]:
        """A JSON schema of the values, as far as the annotation describes them."""
        return {} if self._adapter is None else build_json_schema(self._adapter, definition_prefix)

    def decode(self, data: bytes, subject: str) -> object:
        """The value in the bytes, converted to the annotation if needed."""
        value = unpack_record(data, subject)
        if self._shape_validator is None or self._shape_validator.isinstance_python(value, strict=True):
            return value
        try:
            return self._shape_validator.validate_python(value)
        except ValidationError as error:
            raise make_unreadable_error(subject, self.annotation, error) from None
