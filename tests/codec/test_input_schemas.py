"""The JSON schemas that workers announce for the inputs of their workflows."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, get_type_hints

import pytest
from pydantic import BaseModel, Field, field_validator

from holdfast.codec.inputs import MAX_SCHEMA_LENGTH, InputsCodec


class Line(BaseModel):
    sku: str
    amount: int = 1
    parts: list[Line] = []


class Aliased(BaseModel):
    number: int = Field(alias="No")


class Splitting(BaseModel):
    words: list[str]

    @field_validator("words", mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value


@dataclass
class Address:
    city: str
    token: str = "a secret default"


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


def schema_of(function: Any) -> dict[str, Any]:
    return json.loads(InputsCodec("flow", inspect.signature(function), get_type_hints(function)).schema)


def test_a_schema_has_names_types_and_required_inputs():
    async def flow(customer: str, cents: int, note: str = "", kind: Literal["a", "b"] = "a") -> None: ...

    assert schema_of(flow) == {
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "cents": {"type": "integer"},
            "note": {"type": "string"},
            "kind": {"enum": ["a", "b"], "type": "string"},
        },
        "required": ["customer", "cents"],
        "additionalProperties": False,
    }


def test_models_that_refer_to_themselves_are_defined_once_for_each_input():
    async def flow(first: Line, second: list[Line]) -> None: ...

    schema = schema_of(flow)
    assert schema["properties"]["first"] == {"$ref": "#/$defs/first.Line"}
    assert schema["properties"]["second"]["items"] == {"$ref": "#/$defs/second.Line"}
    assert schema["$defs"]["first.Line"]["required"] == ["sku"]
    assert schema["$defs"]["second.Line"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/second.Line"}


def test_a_schema_contains_no_defaults():
    async def flow(where: Address, password: str = "hunter22") -> None: ...

    text = json.dumps(schema_of(flow))
    assert "secret" not in text
    assert "hunter22" not in text


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        (Any, {}),
        (inspect.Parameter.empty, {}),
        (Size, {"enum": ["s", "l"], "title": "Size", "type": "string"}),
        (dict[str, Any], {"type": "object", "additionalProperties": True}),
        (list, {"type": "array", "items": {}}),
        (datetime | None, {"anyOf": [{"format": "date-time", "type": "string"}, {"type": "null"}]}),
        (Decimal, {"anyOf": [{"type": "number"}, {"format": "decimal", "type": "string"}]}),
        # JSON schema cannot say what these take.
        (Aliased, {"title": "Aliased", "type": "object"}),
        (Splitting, {"title": "Splitting", "type": "object", "properties": {"words": {}}, "required": ["words"]}),
    ],
)
def test_a_type(declared: Any, schema: dict[str, Any]):
    parameter = inspect.Parameter("one", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=declared)
    found = json.loads(InputsCodec("flow", inspect.Signature([parameter]), {}).schema)
    assert found["properties"]["one"] == schema


def test_stars():
    async def flow(first: int, *rest: int, **others: float) -> None: ...

    schema = schema_of(flow)
    assert schema["properties"]["*rest"] == {"type": "array", "items": {"type": "integer"}}
    assert schema["properties"]["**others"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert schema["required"] == ["first"]


def test_a_schema_that_is_too_large_has_only_the_names():
    choices = Literal[tuple(f"a choice with a long name {number}" for number in range(2000))]  # pyright: ignore
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("choice", kind), inspect.Parameter("other", kind, default=0)]
    codec = InputsCodec("flow", inspect.Signature(parameters), {"choice": choices, "other": int})
    schema = json.loads(codec.schema)
    assert schema["properties"] == {"choice": {}, "other": {}}
    assert schema["required"] == ["choice"]
    assert len(json.dumps(schema)) < MAX_SCHEMA_LENGTH
