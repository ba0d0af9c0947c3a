"""Values without a declared type: a closed set that comes back exactly as it was."""

from __future__ import annotations

import enum
import json
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from holdfast.codec import codec_for, decode_plain
from holdfast.errors import UnreadableRecord, UnrecordableValue

ANY = codec_for(Any)
WHAT = "the output of step 'extract'"


def deeply_equal(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(deeply_equal, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            deeply_equal(k, j) and deeply_equal(v, w) for (k, v), (j, w) in zip(a.items(), b.items(), strict=True)
        )
    return a == b


offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.none() | offsets)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashable, max_size=4)
        | st.dictionaries(hashable | st.sampled_from(["$tuple", "$dict", "$json", "$", "plain"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
@settings(max_examples=400, deadline=None)
def test_every_value_of_the_closed_set_comes_back_as_it_was(value: object):
    data, seen = ANY.round_trip(value, WHAT)
    assert deeply_equal(value, seen)
    assert deeply_equal(ANY.decode(data, WHAT), seen)
    assert deeply_equal(decode_plain(data), seen)
    assert ANY.encode(seen, WHAT) == data


@given(values)
@settings(max_examples=200, deadline=None)
def test_the_stored_form_is_strict_json_after_at_most_one_byte(value: object):
    data = ANY.encode(value, WHAT)

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(data.removeprefix(b"\x01"), parse_constant=no_constants)


@given(values)
@settings(max_examples=200, deadline=None)
def test_what_the_workflow_sees_shares_nothing_mutable_with_what_the_step_returned(value: object):
    if isinstance(value, (list, dict, set)):
        assert ANY.round_trip(value, WHAT)[1] is not value


def test_plain_data_is_stored_as_plain_json():
    value = {"a": 1, "b": ["two", None, True, 1.5], "c": {"d": "é"}}
    assert json.loads(ANY.encode(value, WHAT)) == value


def test_a_dict_that_looks_like_a_tag_is_not_mistaken_for_one():
    value = {"$tuple": [1, 2], "n": {"$dict": 3}}
    data, seen = ANY.round_trip(value, WHAT)
    assert seen == value
    assert data.startswith(b"\x01")


def test_numbers_that_json_cannot_hold_come_back():
    assert math.isnan(ANY.round_trip(float("nan"), WHAT)[1])
    assert ANY.round_trip([-math.inf], WHAT)[1] == [-math.inf]
    assert ANY.round_trip(10**6000, WHAT)[1] == 10**6000
    assert ANY.round_trip({"n": [-(10**6000)]}, WHAT)[1] == {"n": [-(10**6000)]}


def test_a_time_in_a_named_zone_keeps_its_instant():
    when = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    seen = ANY.round_trip(when, WHAT)[1]
    assert seen == when
    assert seen.utcoffset() == timedelta(hours=2)


def test_sets_are_stored_in_the_same_order_whatever_the_hash_seed():
    code = (
        "from holdfast.codec import codec_for, compute_digest; from typing import Any\n"
        "value = {'s': {'a', 'b', 'c', 'dd', 'ee', (1, 'x'), (2, 'y')}, 'f': frozenset('hijklm')}\n"
        "data = codec_for(Any).encode(value, 'it')\n"
        "typed = codec_for(dict[str, set[str]]).encode({'s': set('nopqrst')}, 'it')\n"
        "print(data, typed, compute_digest(data).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


class Color(enum.Enum):
    RED = "red"


class Name(str):
    __slots__ = ()


@dataclass
class Row:
    price: float


class Model(BaseModel):
    price: float


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (Color.RED, ["Color", "-> Color"]),
        (Name("x"), ["Name", "plain `str`"]),
        (Row(1.0), ["Row", "-> Row"]),
        (Model(price=1.0), ["Model", "-> Model"]),
        (Point(1), ["Point", "-> Point"]),
        (OrderedDict(a=1), ["OrderedDict"]),
        (object(), ["object", "plain data"]),
        ((x for x in "abc"), ["generator", "list"]),
        (SecretStr("hunter2"), ["SecretStr", "never recorded"]),
        (time(12, tzinfo=ZoneInfo("Europe/Berlin")), ["time of day"]),
        ("\ud800", ["surrogate", "encode"]),
    ],
)
def test_anything_else_is_refused_with_its_position_and_a_hint(value: object, names: list[str]):
    with pytest.raises(UnrecordableValue) as refusal:
        ANY.round_trip({"rows": [1, value]}, WHAT)
    message = str(refusal.value)
    assert message.startswith("The output of step 'extract' cannot be recorded: at ['rows'][1] ")
    assert all(name in message for name in names), message
    assert "hunter2" not in message


def test_a_coroutine_asks_for_the_missing_await():
    async def fetch() -> None: ...

    coroutine = fetch()
    with pytest.raises(UnrecordableValue, match="await"):
        ANY.round_trip(coroutine, WHAT)
    coroutine.close()


def test_a_value_that_contains_itself_is_refused():
    value: list[Any] = [1]
    value.append({"again": value})
    with pytest.raises(UnrecordableValue, match="contains itself"):
        ANY.round_trip(value, WHAT)


def test_a_value_used_twice_is_not_a_cycle():
    row = (1, 2)
    assert ANY.round_trip([row, row], WHAT)[1] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("levels", [250, 5000])
def test_a_value_nested_too_deeply_is_refused(levels: int):
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    with pytest.raises(UnrecordableValue, match="nested too deeply"):
        ANY.round_trip(value, WHAT)


def test_a_huge_value_does_not_end_up_in_the_error():
    with pytest.raises(UnrecordableValue) as refusal:
        ANY.round_trip({"k" * 100_000: object(), "v": "x" * 100_000}, WHAT)
    assert len(str(refusal.value)) < 600


def test_a_loose_annotation_is_still_enforced():
    with pytest.raises(UnrecordableValue, match=r"declared as `dict`, but it is a `list`"):
        codec_for(dict).round_trip([1], WHAT)
    with pytest.raises(UnrecordableValue, match=r"dict\[str, Any\]"):
        codec_for(dict[str, Any]).round_trip({1: 2}, WHAT)


def test_a_loose_annotation_keeps_the_types_inside():
    value = {"when": datetime(2024, 1, 1, tzinfo=UTC), "day": date(2024, 1, 1), "pair": (1, Decimal("1.10"))}
    assert codec_for(dict[str, Any]).round_trip(value, WHAT)[1] == value
    assert codec_for(dict).round_trip(value, WHAT)[1] == value


def test_a_list_from_json_is_read_as_the_tuple_that_is_declared():
    assert codec_for(tuple).decode(b"[1, 2]", WHAT) == (1, 2)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x01", b'\x01{"$new": 1}', b'\x01{"$uuid": "x"}', b'\x01{"$decimal": "x"}']
)
def test_bytes_that_nothing_wrote_are_unreadable(data: bytes):
    with pytest.raises(UnreadableRecord, match="output of step 'extract'"):
        ANY.decode(data, WHAT)


def test_a_tag_of_a_newer_version_is_shown_as_it_is():
    assert decode_plain(b'\x01{"$new": 1}') == {"$new": 1}


def test_a_uuid_comes_back_as_one():
    value = UUID("12345678123456781234567812345678")
    assert ANY.round_trip(value, WHAT)[1] == value
