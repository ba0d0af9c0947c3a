"""The canonical form of values: the same bytes for equal values, in time that grows with their size alone."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json, to_jsonable_python

from holdfast.codec import canonical, codec_for, compute_digest

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    hashable | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=5)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=20,
)


def simple_form(value: Any) -> Any:
    """What canonical bytes are the JSON of, written as plainly as possible."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return dict(sorted({_name(key): simple_form(item) for key, item in value.items()}.items()))
    if isinstance(value, list | tuple):
        return [simple_form(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((simple_form(item) for item in value), key=to_json)
    return to_jsonable_python(value, bytes_mode="base64")


def _name(key: Any) -> str:
    try:
        (name,) = to_jsonable_python({key: None}, bytes_mode="base64")
    except (TypeError, ValueError):
        return to_json(simple_form(key)).decode()
    return name


@given(values)
def test_canonical_bytes_are_the_json_of_the_sorted_value(value: Any):
    assert canonical.to_canonical_bytes(value) == to_json(simple_form(value))


def test_digests_of_recorded_inputs_stay_what_they_were():
    value = {"b": [1, 2.0, 2.5, None, True], "a": {3: {"x", "y"}, (1, 2): b"\x00"}, "c": date(2024, 5, 1), "d": "ü"}
    recorded = codec_for(Any).encode(value, "the value")
    assert compute_digest(recorded).hex() == "13df6d1dfc3680ff8b1b83cff3d69a7a"


@pytest.mark.parametrize("kind", [frozenset, tuple, list])
def test_no_part_of_a_nested_value_is_written_more_than_once(monkeypatch: pytest.MonkeyPatch, kind: Any):
    value: Any = kind([f"leaf {number}" for number in range(100)])
    for level in range(60):
        value = kind([value, f"level {level}"])
    written = 0

    def counted(part: Any) -> bytes:
        nonlocal written
        data = to_json(part)
        written += len(data)
        return data

    monkeypatch.setattr(canonical, "to_json", counted)
    whole = canonical.to_canonical_bytes(value)
    assert 0 < written <= len(whole)
