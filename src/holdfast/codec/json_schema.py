"""JSON schemas of declared types, for clients, servers, and forms, which do not have the code.

A schema here is as strict as a start in the process that has the code: a text is not a number, even if pydantic would
read it as one. Where JSON Schema cannot describe what a type takes (a validator that runs first, an alias in addition
to the name, a class that pydantic does not know), the schema accepts anything, and the worker checks by the type
itself. Defaults are left out: they belong to the code, and may be secret.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue


class _TolerantSchemaGenerator(GenerateJsonSchema):
    """pydantic's JSON schema, with a gap for everything that it cannot describe."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a title made of the name says nothing

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    # A user's validator that sees the value first may take anything, unless it declares what it takes.

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        return super().function_before_schema(schema) if "json_schema_input_schema" in schema else {}

    def function_wrap_schema(self, schema: Any) -> JsonSchemaValue:
        return super().function_wrap_schema(schema) if "json_schema_input_schema" in schema else {}

    def function_plain_schema(self, schema: Any) -> JsonSchemaValue:
        return super().function_plain_schema(schema) if "json_schema_input_schema" in schema else {}

    # Records are read by name or alias, and a schema knows only one of them.

    def model_fields_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "object"} if _has_aliases(schema["fields"].values()) else super().model_fields_schema(schema)

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "object"} if _has_aliases(schema["fields"].values()) else super().typed_dict_schema(schema)

    def dataclass_args_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "object"} if _has_aliases(schema["fields"]) else super().dataclass_args_schema(schema)

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        """An enum with a ``_missing_`` of its own, such as a ``Flag``, takes more than its members' values."""
        takes_more = schema["cls"]._missing_.__func__ is not cast("Any", Enum._missing_).__func__
        return {} if takes_more else super().enum_schema(schema)

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """A number, or its text."""
        number = super().decimal_schema(schema)
        limits = cast("dict[str, Any]", number["anyOf"][0]) if "anyOf" in number else {"type": "number"}
        return {"anyOf": [limits, {"type": "string", "format": "decimal"}]}


def build_json_schema(adapter: TypeAdapter[Any], definition_prefix: str) -> dict[str, Any]:
    """The JSON schema of a type; references to definitions are ``#/$defs/{definition_prefix}Name``."""
    try:
        return adapter.json_schema(
            by_alias=False,
            ref_template=f"#/$defs/{definition_prefix}{{model}}",
            schema_generator=_TolerantSchemaGenerator,
        )
    except Exception:  # a user's type may raise anything; the worker checks the value
        return {}


def _has_aliases(fields: Any) -> bool:
    return any("validation_alias" in field for field in fields)
