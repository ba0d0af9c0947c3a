"""A run's inputs: bound to the signature, encoded by type or by name, read by type."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from holdfast.codec import (
    InputsCodec,
    compute_digest,
    decode_plain,
    encode_inputs_by_name,
    parse_template_fields,
    render_run_id,
)
from holdfast.errors import InputError


class Size(enum.Enum):
    BIG = "big"


class Order(BaseModel):
    id: int = Field(alias="orderId")
    when: datetime
    tags: set[str] = set()
    raw: bytes = b""


@dataclass
class Row:
    price: float


def inputs_of(fn: Callable[..., Any]) -> InputsCodec:
    return InputsCodec(fn.__name__, inspect.signature(fn), get_type_hints(fn))


def etl(customer: str, rows: int = 10, *, since: datetime | None = None): ...
def loose(a, b=2): ...
def everything(first: int, /, second: str = "s", *args: date, flag: bool = False, **kwargs: Decimal): ...
def orders(order: Order, rows: list[Row], size: Size, pair: tuple[int, str], seen: set[str], raw: bytes): ...
def mixed(note: dict[str, str], blob: bytes, pair: Any): ...


def round_trip(fn: Callable[..., Any], *args: object, **kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    codec = inputs_of(fn)
    return codec.decode(codec.encode(args, kwargs))


def bound(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return inspect.signature(fn).bind(*args, **kwargs).arguments


def test_inputs_are_one_json_object_of_the_given_arguments():
    assert inputs_of(etl).encode(("acme",), {}) == b'{"customer":"acme"}'
    assert inputs_of(etl).encode((), {"rows": 3, "customer": "acme"}) == b'{"customer":"acme","rows":3}'


def test_defaults_are_the_workers_to_fill_in():
    args, kwargs = round_trip(etl, "acme")
    assert bound(etl, args, kwargs) == {"customer": "acme"}


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (etl, ("acme", 3), {"since": datetime(2024, 1, 1)}),
        (loose, ((1, 2),), {"b": {3}}),
        (everything, (1,), {}),
        (everything, (1, "x", date(2024, 1, 1), date(2024, 1, 2)), {"flag": True, "extra": Decimal("1.10")}),
        (everything, (1,), {"second": "x"}),
        (
            orders,
            (
                Order(orderId=1, when=datetime(2024, 1, 1), raw=b"\xff"),
                [Row(1.5)],
                Size.BIG,
                (1, "x"),
                {"a", "b"},
                b"\xff",
            ),
            {},
        ),
        (mixed, ({"$tuple": "x"}, b"aGk=", (1, 2)), {}),
        (mixed, ({"$tuple": "x"}, b"aGk=", 1), {}),
    ],
)
def test_arguments_come_back_as_they_were_given(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
    assert bound(fn, *round_trip(fn, *args, **kwargs)) == bound(fn, args, kwargs)


def test_odd_names_in_kwargs_come_back():
    def keep(**rest: Any): ...

    value = {"$tuple": 1, "x y": (1, 2), "$json": {"$json": 3}}
    assert round_trip(keep, **value) == ((), value)
    assert round_trip(keep, **{"$json": 1}) == ((), {"$json": 1})


def test_parameter_names_keep_their_stars():
    assert inputs_of(everything).parameters == ("first", "second", "*args", "flag", "**kwargs")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, ["'etl'", "missing a required argument: 'customer'", "etl(customer"]),
        (("a", 1, 2), {}, ["too many positional arguments", "etl(customer"]),
        (("a",), {"nope": 1}, ["'nope'", "etl(customer"]),
        ((5,), {}, ["'customer'", "'etl'", "`str`", "`int`"]),
        (("a",), {"rows": "5"}, ["'rows'", "`int`", "`str`"]),
    ],
)
def test_arguments_that_do_not_fit_are_an_input_error(args: Any, kwargs: Any, words: list[str]):
    with pytest.raises(InputError) as error:
        inputs_of(etl).encode(args, kwargs)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"customer": 5}', ["'customer'", "'etl'", "valid string"]),
        (b"{}", ["missing a required argument: 'customer'"]),
        (b'{"customer": "a", "nope": 1}', ["'nope'"]),
        (b"[1]", ["JSON object"]),
        (b"{", ["not JSON"]),
    ],
)
def test_stored_inputs_that_do_not_fit_are_an_input_error(data: bytes, words: list[str]):
    with pytest.raises(InputError) as error:
        inputs_of(etl).decode(data)
    assert all(word in str(error.value) for word in words), str(error.value)


# The same inputs, by type and by name


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (etl, ("acme",), {"since": datetime(2024, 1, 1, tzinfo=UTC)}),
    (etl, ("acme", 3), {}),
    (everything, (1, "x", date(2024, 1, 1)), {"flag": True, "extra": Decimal("1.10")}),
    (
        orders,
        (
            Order(orderId=1, when=datetime(2024, 1, 1), tags={"a", "b"}),
            [Row(1)],
            Size.BIG,
            (1, "x"),
            {"b", "a"},
            b"\xff",
        ),
        {},
    ),
    (loose, (UUID(int=3),), {"b": [None, 1.5, {"k": "v"}]}),
    (mixed, ({"$tuple": "x"}, b"\xff", (1, 2)), {}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_a_client_without_the_code_gives_the_workflow_the_same_arguments(fn: Any, args: Any, kwargs: Any):
    codec = inputs_of(fn)
    by_name = encode_inputs_by_name(fn.__name__, codec.parameters, args, kwargs)
    assert bound(fn, *codec.decode(by_name)) == bound(fn, *codec.decode(codec.encode(args, kwargs)))


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_equal_inputs_have_equal_digests_however_they_were_encoded(fn: Any, args: Any, kwargs: Any):
    codec = inputs_of(fn)
    by_name = encode_inputs_by_name(fn.__name__, codec.parameters, args, kwargs)
    assert compute_digest(by_name) == compute_digest(codec.encode(args, kwargs))
    assert len(compute_digest(by_name)) == 16


@given(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.integers(), max_size=6))
def test_the_digest_does_not_depend_on_the_order_of_keys_nor_on_whole_floats(numbers: dict[str, Any]):
    def total(numbers: dict[str, float]): ...

    backwards = dict(reversed(numbers.items()))
    whole = {key: float(n) if float(n) == n else n for key, n in backwards.items()} if _fits(numbers) else backwards
    assert compute_digest(encode_inputs_by_name("t", ["numbers"], [numbers], {})) == compute_digest(
        encode_inputs_by_name("t", ["numbers"], [whole], {})
    )


def _fits(numbers: dict[str, Any]) -> bool:
    return all(abs(n) < 1e300 for n in numbers.values())


def test_other_inputs_have_another_digest():
    seen = {
        compute_digest(encode_inputs_by_name("w", ["a"], [value], {}))
        for value in (1, 2, "1", None, [1], {"a": 1}, True, (2,))
    }
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 2, 3), {}, ["3 positional", "w(a, b)"]),
        ((1,), {"a": 2}, ["'a' twice"]),
        ((1,), {"c": 2}, ["no input 'c'", "w(a, b)"]),
        ((object(),), {}, ["'a'", "object"]),
        ((SecretStr("hunter2"),), {}, ["never recorded"]),
    ],
)
def test_a_client_gets_an_error_that_names_the_wrong_argument(args: Any, kwargs: Any, words: list[str]):
    with pytest.raises(InputError) as error:
        encode_inputs_by_name("w", ["a", "b"], args, kwargs)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "hunter2" not in str(error.value)


def test_inputs_can_be_shown_without_the_code():
    data = inputs_of(mixed).encode(({"$x": "y"}, b"hi", (1, 2)), {})
    assert decode_plain(data) == {"note": {"$x": "y"}, "blob": "aGk=", "pair": (1, 2)}


# Ids


def test_an_id_template_is_filled_from_the_inputs():
    data = inputs_of(etl).encode(("acme", 3), {})
    assert render_run_id("etl-{customer}-{rows}", data, "etl") == "etl-acme-3"
    assert render_run_id("{{literal}}", data, "etl") == "{literal}"


def test_an_id_is_the_same_however_the_inputs_were_encoded():
    def daily(day: date, size: Size, ratio: float): ...

    codec = inputs_of(daily)
    args = (date(2024, 5, 1), Size.BIG, 5.0)
    template = "{day}-{size}-{ratio}"
    ids = {
        render_run_id(template, codec.encode(args, {}), "daily"),
        render_run_id(template, encode_inputs_by_name("daily", codec.parameters, args, {}), "daily"),
        render_run_id(
            template, encode_inputs_by_name("daily", codec.parameters, ("2024-05-01", "big", 5), {}), "daily"
        ),
    }
    assert ids == {"2024-05-01-big-5"}


def test_defaults_count_as_inputs_of_the_template():
    data = inputs_of(etl).encode(("acme",), {})
    assert render_run_id("{customer}-{rows}", data, "etl", {"rows": 10, "size": Size.BIG}) == "acme-10"
    assert render_run_id("{size}", data, "etl", {"size": Size.BIG}) == "big"


def test_a_template_may_name_an_input_that_came_as_keyword():
    def keep(**rest: Any): ...

    assert render_run_id("agent-{run_id}", inputs_of(keep).encode((), {"run_id": "test"}), "keep") == "agent-test"


@pytest.mark.parametrize(
    ("template", "customer", "words"),
    [
        ("{nope}", "acme", ["'nope'", "customer"]),
        ("{customer}", "", ["0 characters"]),
        ("{customer}", "x" * 201, ["201 characters", "200"]),
        ("{customer}", "a\nb", ["control characters"]),
        ("{customer.__class__}", "acme", ["only the names"]),
        ("{customer[0]}", "acme", ["only the names"]),
        ("{customer!r}", "acme", ["only the names"]),
        ("{customer:>10}", "acme", ["only the names"]),
        ("{}", "acme", ["only the names"]),
        ("{customer", "acme", ["cannot be read"]),
        ("{customer}", ["acme"], ["single value"]),
    ],
)
def test_a_template_that_gives_no_id_says_why(template: str, customer: Any, words: list[str]):
    with pytest.raises(InputError) as error:
        render_run_id(template, encode_inputs_by_name("etl", ["customer"], [customer], {}), "etl")
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_templates_fields_are_its_names():
    assert parse_template_fields("{b}-x-{a}") == ("b", "a")
