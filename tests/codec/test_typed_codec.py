"""Values with a declared type: recorded by it, and only if they survive."""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional, TypeVar, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field, field_serializer
from pydantic_core import core_schema
from typing_extensions import TypedDict

from holdfast.codec import codec_for, decode_plain
from holdfast.errors import DefinitionError, UnreadableRecord, UnrecordableValue

WHAT = "the output of step 'extract'"


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Customer(TypedDict):
    name: str


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Row:
    id: int
    price: float
    when: datetime | None = None
    tags: set[str] = field(default_factory=set)


@dataclass
class WideRow(Row):
    discount: float = 0.0


@dataclass(frozen=True)
class Frozen:
    a: int


class Base(BaseModel):
    name: str


class Derived(Base):
    extra: int = 1


class Aliased(BaseModel):
    a: int = Field(alias="A")
    b: int = Field(validation_alias="B", serialization_alias="bee")


class Shaped(BaseModel):
    width: int

    @computed_field
    @property
    def area(self) -> int:
        return self.width**2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    when: datetime
    color: Color


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


class Blob(BaseModel):
    content: bytes
    score: float | None = None
    when: str | datetime = ""
    anything: Any = None


class WithPrivate(BaseModel):
    a: int
    _cache: dict[str, int] = PrivateAttr(default_factory=dict)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a\x00é\u2028"),
        (int, 10**6000),
        (bool, True),
        (None, None),
        (float, 1.5),
        (float, -0.0),
        (float, math.inf),
        (bytes, b"\xff\x00"),
        (list[bytes], [b"\xff", b"text"]),
        (list[float], [1.0, -math.inf]),
        (datetime, datetime(2024, 1, 1, 12, 30, 1, 5, tzinfo=UTC)),
        (datetime, datetime(2024, 1, 1)),
        (date, date(2024, 1, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=-3, microseconds=7)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (Path, Path("/tmp/x")),
        (Color, Color.RED),
        (Level, Level.LOW),
        (Literal["a", 1], 1),
        (int | str, "5"),
        (Optional[int], None),  # noqa: UP045
        (Union[int, float], 1.0),  # noqa: UP007
        (float | int, 1),
        (str | datetime, datetime(2024, 1, 1)),
        (str | datetime, "2024-01-01T00:00:00"),
        (str | UUID, "12345678-1234-5678-1234-567812345678"),
        (str | UUID, UUID(int=7)),
        (str | bytes, b"\xff"),
        (tuple[int, ...], (1, 2)),
        (tuple[()], ()),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (dict[Color, int], {Color.RED: 1}),
        (dict[str, str], {"$tuple": "x"}),
        pytest.param(set[str], {"a", "b"}, id="set[str]"),  # shown in another order in each process
        (frozenset[int], frozenset({8, 0, 16})),
        (set[Frozen], {Frozen(1), Frozen(2)}),
        (deque[int], deque([1, 2])),
        (OrderedDict[str, int], OrderedDict(b=1, a=2)),
        (defaultdict[str, int], defaultdict(int, a=1)),
        (re.Pattern[str], re.compile("a+")),
        (Customer, {"name": "acme"}),
        (list[Customer], [{"name": "acme"}]),
        (Point, Point(1, 2.0)),
        (Row, Row(1, 2.5, datetime(2024, 1, 1), {"a", "b"})),
        (WideRow, WideRow(1, 2.5, discount=0.5)),
        (list[Row | WideRow], [WideRow(1, 2.0, discount=1.0)]),
        (Base, Base(name="x")),
        (list[Derived | Base], [Derived(name="x", extra=2)]),
        (Cat | Dog, Dog(tricks=["sit"])),
        (Aliased, Aliased(A=1, B=2)),
        (list[Aliased], [Aliased(A=1, B=2)]),
        (Shaped, Shaped(width=3)),
        (Strict, Strict(when=datetime(2024, 1, 1), color=Color.RED)),
        (Open, Open(a=1, b=[1, "x"])),
        (Tree, Tree(value=1, children=[Tree(value=2)])),
        (RootModel[list[int]], RootModel[list[int]]([1, 2])),
        (Blob, Blob(content=b"\xff", score=math.inf, when=datetime(2024, 1, 1), anything=(1, {2}))),
        (Blob, Blob(content=b"text")),
        (WithPrivate, WithPrivate(a=1)),
        (tuple[Base, dict[str, Any]], (Base(name="x"), {"k": (1, 2)})),
        (Annotated[int, Field(gt=0)], 5),
    ],
    ids=lambda part: re.sub(r"0x\w+", "", str(part))[:60] if not isinstance(part, int) else "number",
)
def test_a_value_of_the_declared_type_comes_back_as_it_was(annotation: Any, value: object):
    codec = codec_for(annotation)
    data, seen = codec.round_trip(value, WHAT)
    assert type(seen) is type(value)
    assert seen == value
    assert codec.decode(data, WHAT) == seen
    assert codec.encode(seen, WHAT) == data
    decode_plain(data)


@given(
    st.lists(st.builds(Row, st.integers(), st.floats(allow_nan=False), st.none() | st.datetimes(), st.sets(st.text())))
)
def test_rows_survive(rows: list[Row]):
    codec = codec_for(list[Row])
    data, seen = codec.round_trip(rows, WHAT)
    assert seen == rows
    assert codec.encode(seen, WHAT) == data


def test_not_a_number_survives():
    assert math.isnan(codec_for(float).round_trip(math.nan, WHAT)[1])
    assert math.isnan(codec_for(Blob).round_trip(Blob(content=b"", score=math.nan), WHAT)[1].score)


def test_an_int_where_a_float_is_declared_is_recorded_as_the_float():
    assert codec_for(float).round_trip(5, WHAT) == (b"5.0", 5.0)
    data, seen = codec_for(Point).round_trip(Point(1, 2), WHAT)
    assert type(seen.y) is float
    assert codec_for(Point).encode(seen, WHAT) == data


def test_an_int_is_read_as_the_declared_float_in_the_tagged_form_too():
    @dataclass
    class Sample:
        raw: bytes
        weight: float

    seen = codec_for(Sample).round_trip(Sample(b"\xff", 5), WHAT)[1]
    assert seen == Sample(b"\xff", 5.0)
    assert type(seen.weight) is float


class Opaque:
    """Known to pydantic, but equal only to itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.text),
        )


def test_a_type_without_equality_survives_if_its_second_record_is_the_first():
    data, seen = codec_for(list[Opaque]).round_trip([Opaque("a"), Opaque("b")], WHAT)
    assert data == b'["a","b"]'
    assert [one.text for one in seen] == ["a", "b"]
    assert codec_for(tuple[float, Opaque]).round_trip((math.nan, Opaque("b")), WHAT)[1][1].text == "b"


def test_an_int_that_no_float_can_hold_is_refused():
    with pytest.raises(UnrecordableValue, match="float"):
        codec_for(float).round_trip(2**53 + 1, WHAT)


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (list[Base], [Base(name="x"), Derived(name="y")], "at [1] "),
        (Base, Derived(name="y"), ""),
        (Row, WideRow(1, 2.0), ""),
        (dict[str, list[Row]], {"a": [WideRow(1, 2.0)]}, "at ['a'][0] "),
    ],
)
def test_a_subclass_that_would_lose_fields_is_refused(annotation: Any, value: object, place: str):
    with pytest.raises(UnrecordableValue) as refusal:
        codec_for(annotation).round_trip(value, WHAT)
    message = str(refusal.value)
    assert place in message
    assert "`Derived`" in message or "`WideRow`" in message
    assert "in the annotation" in message


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, "5", ["declared as `int`", "it is a `str`"]),
        (str, 5, ["declared as `str`", "it is a `int`"]),
        (int, True, ["`int`", "`bool`"]),
        (None, "left over", ["declared as `None`", "`str`"]),
        (list[int], (1, 2), ["`tuple`"]),
        (list[Row], [Row(1, 2.0), {"id": 1}], ["at [1] ", "`dict`"]),
        (list[Row], [Row("x", 2.0)], ["at [0].id ", "`str`"]),  # type: ignore[arg-type]
        (dict[str, float], {"price": "x"}, ["at ['price'] ", "`str`"]),
        (Customer, {"name": "acme", "surplus": 1}, ["'surplus'"]),
        (Color, "red", ["Color", "`str`"]),
        (Base, Base.model_construct(name=5), ["Base"]),
        (str, "\ud800", ["surrogate"]),
        (Base, Base.model_construct(name="\ud800"), ["surrogate"]),
    ],
)
def test_a_value_of_another_type_is_refused_by_naming_both(annotation: Any, value: object, words: list[str]):
    with pytest.raises(UnrecordableValue) as refusal:
        codec_for(annotation).round_trip(value, WHAT)
    message = str(refusal.value)
    assert message.startswith("The output of step 'extract' cannot be recorded: ")
    assert all(word in message for word in words), message


def test_a_secret_is_refused_and_not_shown():
    class Login(BaseModel):
        user: str
        password: SecretStr

    with pytest.raises(UnrecordableValue, match=r"at \.password .*never recorded") as refusal:
        codec_for(Login).round_trip(Login(user="x", password=SecretStr("hunter2")), WHAT)
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(UnrecordableValue, match="never recorded"):
        codec_for(SecretStr).round_trip(SecretStr("hunter2"), WHAT)


def test_a_field_that_is_left_out_of_the_record_is_noticed():
    class Hidden(BaseModel):
        a: int
        b: int = Field(default=0, exclude=True)

    assert codec_for(Hidden).round_trip(Hidden(a=1), WHAT)[1] == Hidden(a=1)
    with pytest.raises(UnrecordableValue, match=r"at \.b "):
        codec_for(Hidden).round_trip(Hidden(a=1, b=5), WHAT)


def test_a_serializer_that_loses_something_is_noticed():
    class Rounded(BaseModel):
        price: float

        @field_serializer("price")
        def whole(self, price: float) -> int:
            return round(price)

    with pytest.raises(UnrecordableValue, match=r"at \.price "):
        codec_for(Rounded).round_trip(Rounded(price=1.5), WHAT)


def test_two_models_that_json_cannot_tell_apart_are_refused():
    class One(BaseModel):
        a: int

    class Two(BaseModel):
        a: int

    with pytest.raises(UnrecordableValue, match=r"it is a `Two` that would be read back as `One`.*Literal"):
        codec_for(One | Two).round_trip(Two(a=1), WHAT)


def test_a_model_that_contains_itself_is_refused():
    tree = Tree(value=1)
    tree.children.append(tree)
    with pytest.raises(UnrecordableValue):
        codec_for(Tree).round_trip(tree, WHAT)
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UnrecordableValue):
        codec_for(list[list[int]]).round_trip(ring, WHAT)


def test_a_validator_may_quote_the_value_but_the_refusal_does_not():
    from pydantic import field_validator

    class Picky(BaseModel):
        key: str

        @field_validator("key")
        @classmethod
        def check(cls, key: str) -> str:
            raise ValueError(f"bad key {key}")

    with pytest.raises(UnrecordableValue) as refusal:
        codec_for(Picky).round_trip(Picky.model_construct(key="hunter2"), WHAT)
    assert "hunter2" not in str(refusal.value)


def test_an_annotation_that_is_added_later_reads_the_older_records():
    untyped = codec_for(Any)
    assert codec_for(tuple[int, int]).decode(untyped.encode((1, 2), WHAT), WHAT) == (1, 2)
    when = datetime(2024, 1, 1, tzinfo=UTC)
    row = {"id": 1, "price": 2.0, "when": when, "tags": {"a"}}
    assert codec_for(Row).decode(untyped.encode(row, WHAT), WHAT) == Row(1, 2.0, when, {"a"})
    assert codec_for(Row).decode(b'{"id": 1, "price": 2}', WHAT) == Row(1, 2.0)


def test_a_record_that_no_longer_fits_the_type_says_what_to_do():
    class Old(BaseModel):
        a: int

    class New(BaseModel):
        a: int
        b: int

    with pytest.raises(UnreadableRecord, match=r"cannot be read as .*New`: at \.b Field required.*default"):
        codec_for(New).decode(codec_for(Old).encode(Old(a=1), WHAT), WHAT)
    with pytest.raises(UnreadableRecord):
        codec_for(int).decode(b"not json", WHAT)


def test_a_type_that_can_never_be_recorded_is_an_error_of_the_definition():
    class Connection: ...

    with pytest.raises(DefinitionError, match=r"Connection.*inside the step"):
        codec_for(Connection)
    for lazy in (AsyncIterator[int], Iterator[int]):
        with pytest.raises(DefinitionError, match=r"Iterator.*Return a list"):
            codec_for(lazy)


def test_a_step_that_never_returns_needs_no_type():
    assert codec_for(NoReturn).round_trip(None, WHAT) == (b"null", None)


@pytest.mark.parametrize(
    "loose",
    [Any, object, inspect.Parameter.empty, inspect.Signature.empty, list, dict[str, Any], Any | None, TypeVar("T")],
)
def test_a_loose_annotation_records_values_by_their_own_types(loose: Any):
    value: Any = {"pair": (1, 2)} if loose is not list else [(1, 2)]
    assert codec_for(loose).round_trip(value, WHAT)[1] == value


def test_the_same_annotation_has_the_same_codec():
    assert codec_for(list[Row]) is codec_for(list[Row])
    assert codec_for(Literal[1]) is not codec_for(Literal[True])


def test_what_the_workflow_sees_is_a_copy():
    rows = [Row(1, 2.0)]
    seen = codec_for(list[Row]).round_trip(rows, WHAT)[1]
    rows[0].price = 99.0
    assert seen[0].price == 2.0


class Parent(BaseModel):
    child: Child | None = None


early = codec_for(Parent)  # as a decorator would, before the module has come to ``Child``


class Child(BaseModel):
    name: str


def test_a_class_may_be_defined_after_the_step_that_returns_it():
    value = Parent(child=Child(name="x"))
    assert early.round_trip(value, WHAT)[1] == value
    assert codec_for(list[Parent]).round_trip([value], WHAT)[1] == [value]
