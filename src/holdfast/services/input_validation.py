"""Inputs of a run, checked before anything is stored: by the JSON schema that workers announce of their workflow.

Schemas come from ``codec.json_schema``, so the rules of JSON Schema that pydantic writes are applied here, and others
are passed over, patterns among them: a server applies schemas of all its tenants, and must not be held up by one. For
the same reason a check stops after ``MAX_STEPS`` parts of a value, and takes the rest as it is. The worker checks all
of it by the declared types when the run begins.

Messages name the place and what is expected there. They never quote the value, which may be a secret, or large.
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
"""Bytes of inputs that are checked here; larger ones are left to the worker."""
MAX_STEPS = 20_000
"""Parts of a value that are looked at: some tens of milliseconds."""
MAX_VIOLATIONS = 10
"""Faults that are told of."""
_MAX_DEPTH = 60
"""Levels of a value, and references in a row, that are looked at."""
_MAX_CHOICES = 12
"""Values of a choice that a message names."""

Schema = Mapping[str, Any]


class SchemaViolation(NamedTuple):
    """What is wrong with a part of the inputs."""

    path: tuple[str | int, ...]
    reason: str

    @property
    def location(self) -> str:
        """The place, as code would name it: ``item.lines[0].price``."""
        first, *rest = self.path
        return str(first) + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest)


def bind_inputs(spec: WorkflowSpec, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """The inputs of a start by name, as they are stored. Raises ``InputError`` if they do not fit the announcement."""
    inputs = encode_inputs_by_name(spec.name, spec.parameters, args, kwargs)
    if not spec.inputs_schema or len(inputs) > MAX_CHECKED_BYTES:
        return inputs
    faults = find_violations(spec.inputs_schema, decode_plain(inputs))
    if faults:
        told = "; ".join(f"input {fault.location!r} {fault.reason}" for fault in faults)
        each = [{"path": fault.location, "message": fault.reason} for fault in faults]
        raise InputError(
            f"Workflow {spec.name!r}: {told}. Its inputs are {spec.name}({_format_parameters(spec)}).", each
        )
    return inputs


def find_violations(schema: str, inputs: Any) -> list[SchemaViolation]:
    """What is wrong with these inputs, one fault for each of them at most."""
    whole = parse_schema(schema)
    check = _SchemaChecker(whole.get("$defs", {}))
    found: dict[str | int, SchemaViolation] = {}
    for fault in check.find_violations(whole, inputs, (), 0):
        found.setdefault(fault.path[0] if fault.path else "", fault)
        if len(found) == MAX_VIOLATIONS:
            break
    return [fault for fault in found.values() if fault.path]


def parse_input(schema: Schema, name: str, text: str) -> Any:
    """What somebody means who types this text for an input: JSON if that fits, else the text itself.

    Of what fits neither way, JSON is taken, and the check tells what is wrong with it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    declared: Any = schema.get("properties", {}).get(name)
    check = _SchemaChecker(schema.get("$defs", {}))
    means_text = declared is not None and not _is_valid(check, declared, value) and _is_valid(check, declared, text)
    return text if means_text else value


def _is_valid(checker: _SchemaChecker, schema: Schema, value: Any) -> bool:
    return next(checker.find_violations(schema, value, (), 0), None) is None


@lru_cache(maxsize=256)
def parse_schema(schema: str) -> dict[str, Any]:
    """A schema that was announced; an empty one takes anything. The same object for the same text: do not change it."""
    try:
        read = json.loads(schema)
    except ValueError:
        return {}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


class _SchemaChecker:
    """One check of one value."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._step_count = 0

    def find_violations(
        self, schema: Any, value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[SchemaViolation]:
        """What is wrong with a value."""
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
            yield SchemaViolation(path, f"must be {self._describe_expected(rules)}, not {_describe_kind(value)}")
            return
        yield from self._find_part_violations(rules, value, path, depth)

    def _find_choice_violations(
        self, choices: Sequence[Any], value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[SchemaViolation]:
        tried = [list(self.find_violations(one, value, path, depth + 1)) for one in choices]
        if not all(tried):
            return
        # Of those that go wrong only further inside, the one with the fewest faults is the one that was meant.
        inside = [faults for faults in tried if len(faults[0].path) > len(path)]
        if inside:
            yield min(inside, key=len)[0]
        else:
            yield SchemaViolation(
                path, f"must be {self._describe_expected({'anyOf': choices})}, not {_describe_kind(value)}"
            )

    def _find_part_violations(
        self, rules: Schema, value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[SchemaViolation]:
        if isinstance(value, Mapping):
            yield from self._find_object_violations(rules, cast("Mapping[Any, Any]", value), path, depth)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from self._find_list_violations(rules, list(cast("list[Any]", value)), path, depth)
        elif (why := _describe_bound_violation(rules, value)) is not None:
            yield SchemaViolation(path, why)

    def _find_object_violations(
        self, rules: Schema, value: Mapping[Any, Any], path: tuple[str | int, ...], depth: int
    ) -> Iterator[SchemaViolation]:
        declared: Mapping[str, Any] = rules.get("properties", {})
        others: Any = rules.get("additionalProperties", True)
        for name in rules.get("required", ()):
            if name not in value:
                words = self._describe_expected(declared.get(name, {}))
                yield SchemaViolation(
                    (*path, name), "is missing" if words == _ANYTHING else f"is missing: it must be {words}"
                )
        for name, item in value.items():
            inner: Any = declared.get(name, others)
            if inner is False:
                yield SchemaViolation((*path, str(name)), "is not known")
            else:
                yield from self.find_violations(inner, item, (*path, str(name)), depth + 1)

    def _find_list_violations(
        self, rules: Schema, items: list[Any], path: tuple[str | int, ...], depth: int
    ) -> Iterator[SchemaViolation]:
        least, most = rules.get("minItems", 0), rules.get("maxItems")
        if len(items) < least or (most is not None and len(items) > most):
            yield SchemaViolation(path, f"must have {_format_range(least, most, 'item')}, not {len(items)}")
            return
        first: Sequence[Any] = rules.get("prefixItems", ())
        for at, item in enumerate(items):
            if self._step_count > MAX_STEPS:
                return
            yield from self.find_violations(
                first[at] if at < len(first) else rules.get("items"), item, (*path, at), depth + 1
            )

    def _describe_expected(self, schema: Any, depth: int = 0) -> str:
        """What a schema asks for, in words."""
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
    """What a value is, in words that say nothing of what is in it."""
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
            # Other scalars of Python's become texts on their way: a date, a UUID, bytes.
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
    """Whether a text is of this format, as the worker will read it; of an unknown format, any is."""
    reads = _get_parsers().get(format)
    if reads is None:
        return True
    try:
        reads(text)
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
        least, most = rules.get("minLength", 0), rules.get("maxLength")
        if len(value) < least or (most is not None and len(value) > most):
            return f"must have {_format_range(least, most, 'character')}, not {len(value)}"
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
    """The inputs by name; those in brackets may be left out."""
    required = parse_schema(spec.inputs_schema).get("required", ())
    return ", ".join(name if name in required else f"[{name}]" for name in spec.parameters)
