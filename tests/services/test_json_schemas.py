"""JSON schemas that others have written: whatever stands in them, they are checked and applied in bounded time."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from holdfast.errors import InputError
from holdfast.services import json_schemas
from holdfast.services.json_schemas import check_schema, find_violations

QUICK = 5.0
"""Seconds of processor time that nothing here comes near; what is exponential takes more than a lifetime."""


def faults(schema: Any, value: Any) -> list[str]:
    return [f"{fault.json_path}: {fault.message}" for fault in find_violations(schema, value, "the form", 10)]


@pytest.mark.parametrize("rule", ["pattern", "patternProperties", "additionalProperties"])
def test_a_pattern_takes_linear_time_whatever_it_is(rule: str):
    slow, text = r"^(a+)+$", "a" * 40 + "!"
    schema: Any = {"pattern": slow} if rule == "pattern" else {"patternProperties": {slow: False}}
    value: Any = text if rule == "pattern" else {text: 1}
    if rule == "additionalProperties":
        schema["additionalProperties"] = False
    check_schema(schema, "the form")
    began = time.process_time()
    found = faults(schema, value)
    assert time.process_time() - began < QUICK
    assert bool(found) is (rule != "patternProperties")


def doubling(levels: int) -> dict[str, Any]:
    """A schema of a few kilobytes that takes 2**levels steps to apply."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(levels):
        definitions[f"d{level + 1}"] = {"allOf": [{"$ref": f"#/$defs/d{level}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels}"}


def test_references_that_double_at_each_level_come_to_an_end():
    check_schema(doubling(40), "the form")
    assert faults(doubling(5), "text") == []
    began = time.process_time()
    with pytest.raises(InputError, match=r"the form takes more than 100,000 steps"):
        faults(doubling(40), "text")
    assert time.process_time() - began < 4 * QUICK


def test_items_that_must_be_unique_are_compared_in_linear_time():
    rows = [{"n": number} for number in range(20_000)]
    began = time.process_time()
    assert faults({"uniqueItems": True}, rows) == []
    assert time.process_time() - began < QUICK
    assert faults({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]) == [
        "$: there are items that are not unique"
    ]
    assert faults({"uniqueItems": True}, [1, True, "1", [1], None]) == []


NUMBERS = list(range(100_000))
NAMES = {f"name {number}": 1 for number in range(50_000)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": list(range(3900))}}, [3899] * 40_000),
        ({"items": {"not": {"enum": [[1] * 9 + [number] for number in range(350)]}}}, [[1] * 9 + [999]] * 20_000),
        ({"items": {"properties": {f"a{number}": True for number in range(3900)}}}, [{}] * 40_000),
        ({"items": {"$ref": "#here"}, "$defs": {"a": {"$anchor": "here"}, "b": {"enum": NUMBERS[:3900]}}}, NUMBERS),
        ({"allOf": [{"uniqueItems": True}] * 1300}, NUMBERS),
        ({"allOf": [{"items": {}}] * 1300}, NUMBERS),
        ({"allOf": [{"not": {"contains": False}}] * 900}, NUMBERS),
        ({"allOf": [{"not": {"maxItems": 0}}] * 900}, [[NUMBERS]]),
        ({"allOf": [{"not": {"additionalProperties": False}}] * 900}, NAMES),
        ({"allOf": [{"propertyNames": {}}] * 1300}, NAMES),
    ],
)
def test_a_keyword_that_takes_long_counts_as_many_steps(schema: Any, value: Any):
    check_schema(schema, "the form")
    began = time.process_time()
    with contextlib.suppress(InputError):
        assert faults(schema, value) == []
    assert time.process_time() - began < QUICK


def test_a_number_that_is_too_large_for_a_rule_is_refused():
    with pytest.raises(InputError, match="the form has a multipleOf that cannot be applied"):
        faults({"multipleOf": 0.1}, 10**400)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "(?=a)b"}, r"the form has the pattern '\(\?=a\)b', which cannot be matched in linear time"),
        ({"patternProperties": {r"(a)\1": {}}}, "cannot be matched in linear time"),
        ({"properties": {"a": {"items": {"pattern": "(((a{100}){100}){100})"}}}}, "cannot be matched in linear time"),
        ({"pattern": "a" * 2000}, "a pattern of 2,000 characters"),
        ({"pattern": "("}, "linear time"),
        ({"type": "nonsense"}, "not a valid JSON schema"),
        ({"$schema": "https://example.com/own"}, "not known here"),
        ({"$schema": 5}, "not known here"),
        ({"enum": list(range(5000))}, "may have 4,000 values"),
        ({"description": "a" * 70_000}, "may have 65,536 bytes"),
    ],
)
def test_a_schema_that_cannot_be_applied_is_refused_when_it_is_made(schema: Any, why: str):
    with pytest.raises(InputError, match=why):
        check_schema(schema, "the form")


def test_a_schema_that_is_nested_too_deeply_is_refused():
    schema: Any = {}
    for _ in range(40):
        schema = {"not": schema}
    with pytest.raises(InputError, match="may have 32 levels"):
        check_schema(schema, "the form")


@pytest.mark.parametrize(
    "schema",
    [
        {"unevaluatedProperties": False, "patternProperties": {"^(a+)+$": {}}},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}}},
    ],
)
def test_rules_that_would_escape_the_limits_are_not_applied(schema: Any):
    with pytest.raises(InputError, match=r"cannot be checked here|only the whole may have one"):
        faults(schema, {"a": "a" * 40 + "!"})


def test_a_schema_cannot_refer_to_anything_outside_of_it():
    with pytest.raises(InputError, match="which is not in it"):
        faults({"$ref": "http://127.0.0.1:9/schema"}, 1)
    with pytest.raises(InputError, match="without an end"):
        faults({"$ref": "#"}, 1)


def test_a_value_that_is_too_large_for_a_form_is_refused_before_it_is_checked():
    with pytest.raises(InputError, match="at most 1,048,576 bytes"):
        faults({"type": "number"}, "a" * 2_000_000)


def test_messages_are_short_however_large_the_value_is():
    [fault] = find_violations({"type": "number"}, "a" * 100_000, "the form", 10)
    assert len(fault.message) <= 500


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_older_drafts_are_known(draft: str):
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "object", "required": ["a"]}
    check_schema(schema, "the form")
    assert faults(schema, {}) == ["$: 'a' is a required property"]


def test_without_re2_patterns_are_matched_by_pythons_own_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_schemas, "_re2", None)
    json_schemas._compile_pattern.cache_clear()
    try:
        check_schema({"pattern": "(?=a)a"}, "the form")
        assert faults({"pattern": "(?=a)a"}, "b") == ["$: 'b' does not match '(?=a)a'"]
        with pytest.raises(InputError, match="is not valid"):
            check_schema({"pattern": "("}, "the form")
    finally:
        json_schemas._compile_pattern.cache_clear()


schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer"]),
        "properties": st.dictionaries(st.sampled_from("ab"), st.sampled_from([{}, {"type": "integer"}])),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "c"]), st.just({"type": "integer"})),
        "additionalProperties": st.sampled_from([True, False, {"type": "string"}]),
        "uniqueItems": st.booleans(),
        "pattern": st.sampled_from(["^a+$", "b"]),
        "items": st.just({"type": "integer"}),
        "enum": st.lists(st.sampled_from([0, 1, 1.0, True, "a", [1], [True], {"a": 1}, {"a": 1.0}]), max_size=3),
    },
)
data = st.recursive(
    st.integers(0, 3) | st.booleans() | st.sampled_from(["a", "aa", "b", "c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "ab"]), inner),
    max_leaves=5,
)


@given(schemas, data)
def test_otherwise_values_are_judged_as_jsonschema_judges_them(schema: Any, value: Any):
    expected = sorted(error.json_path for error in Draft202012Validator(schema).iter_errors(value))
    assert sorted(fault.json_path for fault in find_violations(schema, value, "the form", 100)) == expected
