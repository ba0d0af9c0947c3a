"""Inputs are checked by what workers announce of their workflow, before anything is stored."""

from __future__ import annotations

import inspect
import json
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Literal, get_type_hints
from uuid import uuid4

import pytest
from pydantic import BaseModel, Field

from holdfast import InputError
from holdfast.codec.inputs import InputsCodec
from holdfast.services.input_validation import MAX_CHECKED_BYTES, bind_inputs, parse_input, parse_schema
from holdfast.stores.contract import WorkflowSpec


class Line(BaseModel):
    sku: str = Field(min_length=2, max_length=5)
    amount: int = Field(1, ge=1, lt=100)
    parts: list[Line] = []


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Bill(BaseModel):
    kind: Literal["bill"]
    days: int


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Access(Flag):
    READ = 1
    WRITE = 2


class Level(Enum):
    LOW = "low"

    @classmethod
    def _missing_(cls, value: object) -> Level | None:
        return cls(value.lower()) if isinstance(value, str) and not value.islower() else None


async def permit(access: Access, level: Level = Level.LOW) -> None: ...


async def offer(customer: str, cents: int, note: str = "", size: Size = Size.SMALL) -> None: ...


async def order(line: Line, lines: list[Line] | None = None, pay: Card | Bill | None = None) -> None: ...


async def times(
    at: datetime,
    day: date | None = None,
    wait: timedelta = timedelta(0),
    price: Decimal = Decimal(0),
    loud: bool = False,
) -> None: ...


async def stars(first: int, *rest: int, **others: float) -> None: ...


async def anything(one: Any, two: dict[str, Any], three: Any = None) -> None: ...


async def ratio(part: float, pair: tuple[int, str] = (1, "a"), ids: set[int] | None = None) -> None: ...


def make_spec(function: Any) -> WorkflowSpec:
    codec = InputsCodec(function.__name__, inspect.signature(function), get_type_hints(function))
    return WorkflowSpec(function.__name__, codec.parameters, inputs_schema=codec.schema)


def refused(function: Any, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        bind_inputs(make_spec(function), args, kwargs)
    for fault in caught.value.violations:
        assert f"input {fault['path']!r} {fault['message']}" in str(caught.value)
    return [(fault["path"], fault["message"]) for fault in caught.value.violations]


def test_the_error_names_the_workflow_the_input_and_what_is_expected():
    with pytest.raises(InputError) as caught:
        bind_inputs(make_spec(offer), (), {"customer": "acme", "cents": "lots"})
    assert str(caught.value) == (
        "Workflow 'offer': input 'cents' must be an integer, not a string. "
        "Its inputs are offer(customer, cents, [note], [size])."
    )


@pytest.mark.parametrize(
    ("function", "inputs", "faults"),
    [
        (offer, {"customer": "x"}, [("cents", "is missing: it must be an integer")]),
        (offer, {}, [("customer", "is missing: it must be a string"), ("cents", "is missing: it must be an integer")]),
        (offer, {"customer": 5, "cents": 5}, [("customer", "must be a string, not an integer")]),
        (offer, {"customer": "x", "cents": "500"}, [("cents", "must be an integer, not a string")]),
        (offer, {"customer": "x", "cents": 5.5}, [("cents", "must be an integer, not a number")]),
        (offer, {"customer": "x", "cents": True}, [("cents", "must be an integer, not true or false")]),
        (offer, {"customer": "x", "cents": None}, [("cents", "must be an integer, not null")]),
        (offer, {"customer": "x", "cents": 5, "size": "xl"}, [("size", 'must be "s" or "l", not a string')]),
        (order, {"line": {}}, [("line.sku", "is missing: it must be a string")]),
        (order, {"line": [1]}, [("line", "must be an object, not a list")]),
        (order, {"line": {"sku": "a"}}, [("line.sku", "must have 2 to 5 characters, not 1")]),
        (order, {"line": {"sku": "abc", "amount": 0}}, [("line.amount", "must be at least 1")]),
        (order, {"line": {"sku": "abc", "amount": 100}}, [("line.amount", "must be less than 100")]),
        (
            order,
            {"line": {"sku": "abc", "parts": [{"sku": "ab"}, {"sku": 7}]}},
            [("line.parts[1].sku", "must be a string, not an integer")],
        ),
        (order, {"line": {"sku": "abc"}, "lines": 5}, [("lines", "must be a list or null, not an integer")]),
        (
            order,
            {"line": {"sku": "abc"}, "pay": {"kind": "bill", "days": "many"}},
            [("pay.days", "must be an integer, not a string")],
        ),
        (times, {"at": "tomorrow"}, [("at", "must be a date and time, not a string")]),
        (times, {"at": "2027-01-31T10:00", "day": "31"}, [("day", "must be a date or null, not a string")]),
        (times, {"at": "2027-01-31T10:00", "wait": "soon"}, [("wait", "must be a duration, not a string")]),
        (times, {"at": "2027-01-31T10:00", "price": "lots"}, [("price", "must be a number, not a string")]),
        (times, {"at": "2027-01-31T10:00", "loud": "yes"}, [("loud", "must be true or false, not a string")]),
        (anything, {"one": 1}, [("two", "is missing: it must be an object")]),
        (anything, {"two": {}}, [("one", "is missing")]),
        (ratio, {"part": 1, "pair": [1]}, [("pair", "must have 2 items, not 1")]),
        (ratio, {"part": 1, "pair": ["a", 1]}, [("pair[0]", "must be an integer, not a string")]),
    ],
)
def test_inputs_that_do_not_match(function: Any, inputs: dict[str, Any], faults: list[tuple[str, str]]):
    assert refused(function, **inputs) == faults


def test_what_comes_by_stars_is_checked_too():
    assert refused(stars, 1, 2, "three") == [("*rest[1]", "must be an integer, not a string")]
    assert refused(stars, 1, speed="high") == [("**others.speed", "must be a number, not a string")]
    bind_inputs(make_spec(stars), (1, 2, 3), {"speed": 1.5})


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (offer, {"customer": "x", "cents": 500, "size": Size.LARGE}),
        (offer, {"customer": "", "cents": 5.0}),
        (order, {"line": Line(sku="abc"), "lines": [Line(sku="abc")], "pay": Bill(kind="bill", days=3)}),
        (order, {"line": {"sku": "abc", "unknown": 1}, "lines": None}),
        (
            times,
            {"at": datetime.now(UTC), "day": date(2027, 1, 31), "wait": timedelta(seconds=5), "price": Decimal("1.5")},
        ),
        (times, {"at": "2027-01-31 10:00", "day": "2027-01-31", "wait": "PT5S", "price": "1.50"}),
        (anything, {"one": uuid4(), "two": {"a": b"\xff"}, "three": [None, {1, 2}]}),
        (ratio, {"part": 1, "pair": (2, "b"), "ids": {1, 2}}),
        (ratio, {"part": float("nan"), "ids": [1, 1]}),
    ],
)
def test_inputs_that_fit(function: Any, inputs: dict[str, Any]):
    spec = make_spec(function)
    hints = get_type_hints(function)
    stored = bind_inputs(spec, (), inputs)
    InputsCodec(spec.name, inspect.signature(function), hints).decode(stored)  # as the worker reads them


def test_no_value_is_quoted():
    with pytest.raises(InputError) as caught:
        bind_inputs(make_spec(offer), (), {"customer": "x", "cents": "sk-1234"})
    assert "sk-1234" not in str(caught.value)


def test_a_workflow_that_was_announced_without_a_schema_takes_what_fits_its_names():
    spec = WorkflowSpec("old", ("customer", "cents"))
    assert json.loads(bind_inputs(spec, (), {"cents": "lots"})) == {"cents": "lots"}


def test_a_schema_that_cannot_be_read_takes_anything():
    assert bind_inputs(WorkflowSpec("odd", ("a",), inputs_schema="{"), (1,), {})
    assert bind_inputs(WorkflowSpec("odd", ("a",), inputs_schema='{"properties": {"a": {"$ref": "#/no"}}}'), (1,), {})


def test_the_check_of_large_inputs_is_short_and_lets_them_pass():
    async def many(numbers: list[int]) -> None: ...

    spec = make_spec(many)
    began = time.perf_counter()
    bind_inputs(spec, ([*range(150_000), "a text"],), {})
    bind_inputs(spec, ([0] * MAX_CHECKED_BYTES,), {})
    assert time.perf_counter() - began < 5  # a check of each of them would take much longer


def test_a_schema_that_refers_to_itself_ends():
    loop = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}}
    spec = WorkflowSpec("loop", ("a",), inputs_schema=json.dumps(loop))
    began = time.perf_counter()
    bind_inputs(spec, (1,), {})
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cents", "500", 500),
        ("cents", "lots", "lots"),
        ("customer", "500", "500"),
        ("customer", "true", "true"),
        ("customer", "null", "null"),
        ("customer", '"quoted"', "quoted"),
        ("customer", "acme & sons", "acme & sons"),
        ("unknown", "500", 500),
    ],
)
def test_a_text_means_what_its_input_takes(name: str, text: str, value: Any):
    assert parse_input(parse_schema(make_spec(offer).inputs_schema), name, text) == value
    if name != "customer":
        assert parse_input({}, name, text) == value


def test_an_enum_that_takes_more_than_its_members_values_is_left_to_the_worker():
    codec = InputsCodec("permit", inspect.signature(permit), get_type_hints(permit))
    both = Access.READ | Access.WRITE
    inputs = bind_inputs(make_spec(permit), (3,), {"level": "LOW"})
    assert codec.decode(inputs) == ((), {"access": both, "level": Level.LOW})
    assert codec.decode(bind_inputs(make_spec(permit), (both,), {})) == ((), {"access": both})
