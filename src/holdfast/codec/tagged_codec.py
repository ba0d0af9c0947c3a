"""The codec for values without a full declared type: no annotation, ``Any``, ``dict``, ``list[Any]`` and the like.

Values are recorded by what they are (see ``tags``). What the annotation does say is still held to: a step declared
``-> dict`` that returns a list is told so, and a client's JSON list for a ``tuple`` parameter is read as a tuple.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaValidator, to_json

from holdfast.codec.encrypted_values import refuse_sealed
from holdfast.codec.formatting import begin, name_of, refuse, unreadable
from holdfast.codec.json_schema import json_schema_of
from holdfast.codec.tags import pack_and_unpack, unpack
from holdfast.codec.value_codec import ValueCodec
from holdfast.errors import UnreadableRecord


class TaggedCodec(ValueCodec):
    """Records values of the closed set, by what they are."""

    __slots__ = ("_adapter", "_shape")

    def __init__(self, annotation: object, *, shaped: bool) -> None:
        self.annotation = annotation
        self._shape: SchemaValidator | None = None
        self._adapter: TypeAdapter[Any] | None = None
        if shaped:
            try:
                adapter = TypeAdapter[Any](cast(Any, annotation))
                self._shape, self._adapter = cast(SchemaValidator, adapter.validator), adapter
            except PydanticUserError:
                pass  # pydantic does not know this annotation; the closed set is check enough

    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the value as it will be read from them."""
        if type(value) is str and self._shape is None:
            try:
                return to_json(value), value
            except ValueError:
                pass  # a lone surrogate: the slow way says so
        if self._shape is not None and not self._shape.isinstance_python(value, strict=True):
            trouble = f"it is declared as `{name_of(self.annotation)}`, but it is a `{name_of(type(value))}`"
            raise refuse(what, trouble, "Make it what the annotation says, or change the annotation to what it is.")
        return pack_and_unpack(value, what)

    def json_schema(self, definitions: str) -> dict[str, Any]:
        """A JSON schema of the values; of what an annotation leaves open it says nothing."""
        return {} if self._adapter is None else json_schema_of(self._adapter, definitions)

    def decode(self, data: bytes, what: str) -> object:
        """The value in the bytes, fitted to what the annotation says."""
        try:
            value = unpack(data)
        except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
            refuse_sealed(data, what)
            raise UnreadableRecord(f"{begin(what)} cannot be read: {error}.") from error
        if self._shape is None or self._shape.isinstance_python(value, strict=True):
            return value
        try:
            return self._shape.validate_python(value)
        except ValidationError as error:
            raise unreadable(what, self.annotation, error) from None
