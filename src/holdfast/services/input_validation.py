"""Checks the inputs of a run before anything is stored, by the JSON schema that workers announce for the workflow.

Schemas come from ``codec.json_schema``, so only the keywords that pydantic writes are applied. Others are ignored,
including patterns: a server applies the schemas of all its tenants, and one of them must not block it. For the same
reason a check stops after ``MAX_STEPS`` parts of a value, and accepts the rest. The worker checks everything by the
declared types when the run starts.

Messages name the location and what is expected there. They never quote the value, which may be secret or large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from math import isfinite
from typing import Any, NamedTuple, cast
from uuid import UUID

from holdfast.codec import decode_plain, encode_inputs_by_name
from holdfast.errors import InputError
from holdfast.stores.contract import WorkflowSpec

MAX_CHECKED_BYTES = 1024 * 1024
"""Larger inputs are checked only by the worker."""
MAX_STEPS = 20_000
"""Maximum number of checked parts of a value: some tens of milliseconds."""
MAX_VIOLATIONS = 10
"""Maximum number of reported violations."""
_MAX_DEPTH = 60
"""Maximum depth of checked values and of chained references."""
_MAX_CHOICES = 12
"""Maximum number of allowed values that a message names."""

Schema = Mapping[str, Any]


class _Violation(NamedTuple):
    """A part of the inputs that does not match the schema."""

    path: tuple[str | int, ...]
    reason: str

    @property
    def location(self) -> str:
        """The path as code would write it: ``item.lines[0].price``."""
        first, *rest = self.path
        return str(first) + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest)


def bind_inputs(spec: WorkflowSpec, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """The stored form of the inputs of a start by name. Raises ``InputError`` if they do not match the schema."""
    inputs = encode_inputs_by_name(spec.name, spec.parameters, args, kwargs)
    if not spec.inputs_schema or len(inputs) > MAX_CHECKED_BYTES:
        return inputs
    violations = _find_violations(spec.inputs_schema, decode_plain(inputs))
    if violations:
        summary = "; ".join(f"input {one.location!r} {one.reason}" for one in violations)
        details = [{"path": one.location, "message": one.reason} for one in violations]
        raise InputError(
            f"Workflow {spec.name!r}: {summary}. Its inputs are {spec.name}({_format_parameters(spec)}).", details
        )
    return inputs


def _find_violations(schema: str, inputs: Any) -> list[_Violation]:
    """The first violation in each of these inputs."""
    parsed = parse_schema(schema)
    checker = _SchemaChecker(parsed.get("$defs", {}))
    found: dict[str | int, _Violation] = {}
    for violation in checker.find_violations(parsed, inputs, (), 0):
        found.setdefault(violation.path[0] if violation.path else "", violation)
        if len(found) == MAX_VIOLATIONS:
            break
    return [violation for violation in found.values() if violation.path]


def parse_input(schema: Schema, name: str, text: str) -> Any:
    """The value of text that was typed for an input: as JSON if that matches its schema, else the text itself.

    If neither matches, it is JSON, and the check reports what is wrong with it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    declared: Any = schema.get("properties", {}).get(name)
    checker = _SchemaChecker(schema.get("$defs", {}))
    is_text = declared is not None and not checker.is_valid(declared, value) and checker.is_valid(declared, text)
    return text if is_text else value


@lru_cache(maxsize=256)
def parse_schema(schema: str) -> dict[str, Any]:
    """An announced schema; an invalid one is empty, and matches anything. Do not change the result: it is cached."""
    try:
        read = json.loads(schema)
    except ValueError:
        return {}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


class _SchemaChecker:
    """Checks values, with one step limit for all of them."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._step_count = 0

    def find_violations(self, schema: Any, value: Any, path: tuple[str | int, ...], depth: int) -> Iterator[_Violation]:
        """The violations in a value."""
        self._step_count += 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._step_count > MAX_STEPS:
            return
        rules = cast("dict[str, Any]", schema)
        if isinstance(ref := rules.get("$ref"), str):
            yield from self.find_violations(self._definitions.get(ref.removeprefix("#/$defs/")), value, path, depth + 1)
        for one in rules.get("allOf", ()):
            yield from self.find_violations(one, value, path, depth + 1)
        choices: Any = rules.get("anyOf") or rules.get("oneOf")
        if choices:
            yield from self._find_choice_violations(choices, value, path, depth)
        if not _is_allowed(rules, value) or not _has_type(rules, value):
            yield _Violation(path, f"must be {self._describe_expected(rules)}, not {_describe_kind(value)}")
            return
        yield from self._find_part_violations(rules, value, path, depth)

    def is_valid(self, schema: Schema, value: Any) -> bool:
        """Whether a value has no violations."""
        return next(self.find_violations(schema, value, (), 0), None) is None

    def _find_choice_violations(
        self, choices: Sequence[Any], value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[_Violation]:
        by_choice = [list(self.find_violations(one, value, path, depth + 1)) for one in choices]
        if not all(by_choice):
            return
        # If some choices fail only deeper inside, the one with the fewest violations is probably the intended one.
        inside = [violations for violations in by_choice if len(violations[0].path) > len(path)]
        if inside:
            yield min(inside, key=len)[0]
        else:
            yield _Violation(
                path, f"must be {self._describe_expected({'anyOf': choices})}, not {_describe_kind(value)}"
            )

    def _find_part_violations(
        self, rules: Schema, value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[_Violation]:
        if isinstance(value, Mapping):
            yield from self._find_object_violations(rules, cast("Mapping[Any, Any]", value), path, depth)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from self._find_list_violations(rules, list(cast("list[Any]", value)), path, depth)
        elif (why := _describe_bound_violation(rules, value)) is not None:
            yield _Violation(path, why)

    def _find_object_violations(
        self, rules: Schema, value: Mapping[Any, Any], path: tuple[str | int, ...], depth: int
    ) -> Iterator[_Violation]:
        declared: Mapping[str, Any] = rules.get("properties", {})
        others: Any = rules.get("additionalProperties", True)
        for name in rules.get("required", ()):
            if name not in value:
                words = self._describe_expected(declared.get(name, {}))
                yield _Violation(
                    (*path, name), "is missing" if words == _ANYTHING else f"is missing: it must be {words}"
                )
        for name, item in value.items():
            inner: Any = declared.get(name, others)
            if inner is False:
                yield _Violation((*path, str(name)), "is not known")
            else:
                yield from self.find_violations(inner, item, (*path, str(name)), depth + 1)

    def _find_list_violations(
        self, rules: Schema, items: list[Any], path: tuple[str | int, ...], depth: int
    ) -> Iterator[_Violation]:
        min_count, max_count = rules.get("minItems", 0), rules.get("maxItems")
        if len(items) < min_count or (max_count is not None and len(items) > max_count):
            yield _Violation(path, f"must have {_format_range(min_count, max_count, 'item')}, not {len(items)}")
            return
        prefix: Sequence[Any] = rules.get("prefixItems", ())
        for index, item in enumerate(items):
            if self._step_count > MAX_STEPS:
                return
            schema = prefix[index] if index < len(prefix) else rules.get("items")
            yield from self.find_violations(schema, item, (*path, index), depth + 1)

    def _describe_expected(self, schema: Any, depth: int = 0) -> str:
        """What a schema expects, in words."""
        if not isinstance(schema, dict) or depth > 5:
            return _ANYTHING
        rules = cast("dict[str, Any]", schema)
        if isinstance(ref := rules.get("$ref"), str):
            return self._describe_expected(self._definitions.get(ref.removeprefix("#/$defs/")), depth + 1)
        if "const" in rules or "enum" in rules:
            values = rules.get("enum", [rules.get("const")])
            shown = [json.dumps(one, ensure_ascii=False) for one in values[:_MAX_CHOICES]]
            return " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"
        choices: Any = rules.get("anyOf") or rules.get("oneOf")
        if choices:
            return " or ".join(dict.fromkeys(self._describe_expected(one, depth + 1) for one in choices))
        if (kind := rules.get("type")) == "string":
            return _FORMAT_WORDS.get(rules.get("format", ""), "a string")
        return _TYPE_WORDS.get(kind, _ANYTHING) if isinstance(kind, str) else _ANYTHING


_ANYTHING = "a value"
_TYPE_WORDS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_FORMAT_WORDS = {
    "date-time": "a date and time",
    "date": "a date",
    "time": "a time of day",
    "duration": "a duration",
    "uuid": "a UUID",
    "decimal": "a number",
}


def _describe_kind(value: Any) -> str:
    """The type of a value in words, without its content."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "an integer"
        case float() | Decimal():
            return "a number"
        case str():
            return "a string" if value else "an empty string"
        case Mapping():
            return "an object"
        case list() | tuple() | set() | frozenset():
            return "a list"
        case _:
            return f"a {type(value).__name__}"  # pyright: ignore[reportUnknownArgumentType]


def _has_type(rules: Schema, value: Any) -> bool:
    wanted: Any = rules.get("type")
    if wanted is None:
        return True
    kinds = cast("list[str]", wanted) if isinstance(wanted, list) else [str(wanted)]
    return any(_is_type(kind, rules, value) for kind in kinds)


def _is_type(kind: str, rules: Schema, value: Any) -> bool:
    match kind:
        case "string":
            if isinstance(value, str):
                return _can_parse(str(rules.get("format", "")), value)
            # Other Python scalars become strings when they are encoded: a date, a UUID, bytes.
            return not isinstance(value, bool | int | float | Decimal | Mapping | list | tuple | set | None)
        case "integer":
            if isinstance(value, float | Decimal):
                return isfinite(value) and value == int(value)
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list | tuple | set | frozenset)
        case _:
            return True


def _is_allowed(rules: Schema, value: Any) -> bool:
    allowed: Any = rules.get("enum", [rules["const"]] if "const" in rules else None)
    return allowed is None or any(one == value and type(one) is type(value) for one in allowed)


def _can_parse(format: str, text: str) -> bool:
    """Whether the worker can parse text of this format. Text of an unknown format is accepted."""
    parse = _get_parsers().get(format)
    if parse is None:
        return True
    try:
        parse(text)
    except ValueError:
        return False
    return True


@cache
def _get_parsers() -> dict[str, Callable[[str], Any]]:
    from pydantic import TypeAdapter

    kinds = {"date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal}
    return {name: TypeAdapter[Any](kind).validate_python for name, kind in kinds.items()}


def _describe_bound_violation(rules: Schema, value: Any) -> str | None:
    if isinstance(value, str):
        min_length, max_length = rules.get("minLength", 0), rules.get("maxLength")
        if len(value) < min_length or (max_length is not None and len(value) > max_length):
            return f"must have {_format_range(min_length, max_length, 'character')}, not {len(value)}"
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        for rule, words, holds in _BOUNDS:
            if (bound := rules.get(rule)) is not None and not holds(value, bound):
                return f"must be {words} {bound}"
    return None


_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "at least", lambda value, bound: value >= bound),
    ("maximum", "at most", lambda value, bound: value <= bound),
    ("exclusiveMinimum", "more than", lambda value, bound: value > bound),
    ("exclusiveMaximum", "less than", lambda value, bound: value < bound),
)


def _format_range(min_count: int, max_count: int | None, unit: str) -> str:
    if max_count is None:
        return f"at least {min_count} {unit}{'' if min_count == 1 else 's'}"
    if min_count == max_count:
        return f"{min_count} {unit}{'' if min_count == 1 else 's'}"
    return (
        f"{min_count} to {max_count} {unit}s"
        if min_count
        else f"at most {max_count} {unit}{'' if max_count == 1 else 's'}"
    )


def _format_parameters(spec: WorkflowSpec) -> str:
    """The names of the inputs, optional ones in brackets."""
    required = parse_schema(spec.inputs_schema).get("required", ())
    return ", ".join(name if name in required else f"[{name}]" for name in spec.parameters)
