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

from holdfast.codec import bind_by_name, to_plain
from holdfast.errors import InputError
from holdfast.stores.contract import WorkflowSpec

MAX_CHECKED = 1024 * 1024
"""Bytes of inputs that are checked here; larger ones are left to the worker."""
MAX_STEPS = 20_000
"""Parts of a value that are looked at: some tens of milliseconds."""
MAX_FAULTS = 10
"""Faults that are told of."""
_DEEPEST = 60
"""Levels of a value, and references in a row, that are looked at."""
_MOST_CHOICES = 12
"""Values of a choice that a message names."""

Schema = Mapping[str, Any]


class Fault(NamedTuple):
    """What is wrong with a part of the inputs."""

    path: tuple[str | int, ...]
    why: str

    @property
    def where(self) -> str:
        """The place, as code would name it: ``item.lines[0].price``."""
        first, *rest = self.path
        return str(first) + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest)


def bind_inputs(spec: WorkflowSpec, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """The inputs of a start by name, as they are stored. Raises ``InputError`` if they do not fit the announcement."""
    inputs = bind_by_name(spec.name, spec.parameters, args, kwargs)
    if not spec.inputs_schema or len(inputs) > MAX_CHECKED:
        return inputs
    faults = find_faults(spec.inputs_schema, to_plain(inputs))
    if faults:
        told = "; ".join(f"input {fault.where!r} {fault.why}" for fault in faults)
        each = [{"where": fault.where, "why": fault.why} for fault in faults]
        raise InputError(f"Workflow {spec.name!r}: {told}. Its inputs are {spec.name}({_names(spec)}).", each)
    return inputs


def find_faults(schema: str, inputs: Any) -> list[Fault]:
    """What is wrong with these inputs, one fault for each of them at most."""
    whole = read_schema(schema)
    check = _Check(whole.get("$defs", {}))
    found: dict[str | int, Fault] = {}
    for fault in check.faults(whole, inputs, (), 0):
        found.setdefault(fault.path[0] if fault.path else "", fault)
        if len(found) == MAX_FAULTS:
            break
    return [fault for fault in found.values() if fault.path]


def value_of_text(schema: Schema, name: str, text: str) -> Any:
    """What somebody means who types this text for an input: JSON if that fits, else the text itself.

    Of what fits neither way, JSON is taken, and the check tells what is wrong with it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    declared: Any = schema.get("properties", {}).get(name)
    check = _Check(schema.get("$defs", {}))
    means_text = declared is not None and not _fits(check, declared, value) and _fits(check, declared, text)
    return text if means_text else value


def _fits(check: _Check, schema: Schema, value: Any) -> bool:
    return next(check.faults(schema, value, (), 0), None) is None


@lru_cache(maxsize=256)
def read_schema(schema: str) -> dict[str, Any]:
    """A schema that was announced; an empty one takes anything. The same object for the same text: do not change it."""
    try:
        read = json.loads(schema)
    except ValueError:
        return {}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


class _Check:
    """One check of one value."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._steps = 0

    def faults(self, schema: Any, value: Any, path: tuple[str | int, ...], depth: int) -> Iterator[Fault]:
        """What is wrong with a value."""
        self._steps += 1
        if not isinstance(schema, dict) or depth > _DEEPEST or self._steps > MAX_STEPS:
            return
        rules = cast("dict[str, Any]", schema)
        if isinstance(ref := rules.get("$ref"), str):
            yield from self.faults(self._definitions.get(ref.removeprefix("#/$defs/")), value, path, depth + 1)
        for one in rules.get("allOf", ()):
            yield from self.faults(one, value, path, depth + 1)
        choices: Any = rules.get("anyOf") or rules.get("oneOf")
        if choices:
            yield from self._of_choices(choices, value, path, depth)
        if not _is_allowed(rules, value) or not _has_type(rules, value):
            yield Fault(path, f"must be {self._expected(rules)}, not {_kind(value)}")
            return
        yield from self._of_parts(rules, value, path, depth)

    def _of_choices(
        self, choices: Sequence[Any], value: Any, path: tuple[str | int, ...], depth: int
    ) -> Iterator[Fault]:
        tried = [list(self.faults(one, value, path, depth + 1)) for one in choices]
        if not all(tried):
            return
        # Of those that go wrong only further inside, the one with the fewest faults is the one that was meant.
        inside = [faults for faults in tried if len(faults[0].path) > len(path)]
        if inside:
            yield min(inside, key=len)[0]
        else:
            yield Fault(path, f"must be {self._expected({'anyOf': choices})}, not {_kind(value)}")

    def _of_parts(self, rules: Schema, value: Any, path: tuple[str | int, ...], depth: int) -> Iterator[Fault]:
        if isinstance(value, Mapping):
            yield from self._of_object(rules, cast("Mapping[Any, Any]", value), path, depth)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from self._of_list(rules, list(cast("list[Any]", value)), path, depth)
        elif (why := _out_of_bounds(rules, value)) is not None:
            yield Fault(path, why)

    def _of_object(
        self, rules: Schema, value: Mapping[Any, Any], path: tuple[str | int, ...], depth: int
    ) -> Iterator[Fault]:
        declared: Mapping[str, Any] = rules.get("properties", {})
        others: Any = rules.get("additionalProperties", True)
        for name in rules.get("required", ()):
            if name not in value:
                words = self._expected(declared.get(name, {}))
                yield Fault((*path, name), "is missing" if words == _ANYTHING else f"is missing: it must be {words}")
        for name, item in value.items():
            inner: Any = declared.get(name, others)
            if inner is False:
                yield Fault((*path, str(name)), "is not known")
            else:
                yield from self.faults(inner, item, (*path, str(name)), depth + 1)

    def _of_list(self, rules: Schema, items: list[Any], path: tuple[str | int, ...], depth: int) -> Iterator[Fault]:
        least, most = rules.get("minItems", 0), rules.get("maxItems")
        if len(items) < least or (most is not None and len(items) > most):
            yield Fault(path, f"must have {_between(least, most, 'item')}, not {len(items)}")
            return
        first: Sequence[Any] = rules.get("prefixItems", ())
        for at, item in enumerate(items):
            if self._steps > MAX_STEPS:
                return
            yield from self.faults(first[at] if at < len(first) else rules.get("items"), item, (*path, at), depth + 1)

    def _expected(self, schema: Any, depth: int = 0) -> str:
        """What a schema asks for, in words."""
        if not isinstance(schema, dict) or depth > 5:
            return _ANYTHING
        rules = cast("dict[str, Any]", schema)
        if isinstance(ref := rules.get("$ref"), str):
            return self._expected(self._definitions.get(ref.removeprefix("#/$defs/")), depth + 1)
        if "const" in rules or "enum" in rules:
            values = rules.get("enum", [rules.get("const")])
            shown = [json.dumps(one, ensure_ascii=False) for one in values[:_MOST_CHOICES]]
            return " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"
        choices: Any = rules.get("anyOf") or rules.get("oneOf")
        if choices:
            return " or ".join(dict.fromkeys(self._expected(one, depth + 1) for one in choices))
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


def _kind(value: Any) -> str:
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
    return any(_is_of(kind, rules, value) for kind in kinds)


def _is_of(kind: str, rules: Schema, value: Any) -> bool:
    match kind:
        case "string":
            if isinstance(value, str):
                return _parses(str(rules.get("format", "")), value)
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


def _parses(format: str, text: str) -> bool:
    """Whether a text is of this format, as the worker will read it; of an unknown format, any is."""
    reads = _readers().get(format)
    if reads is None:
        return True
    try:
        reads(text)
    except ValueError:
        return False
    return True


@cache
def _readers() -> dict[str, Callable[[str], Any]]:
    from pydantic import TypeAdapter

    kinds = {"date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal}
    return {name: TypeAdapter[Any](kind).validate_python for name, kind in kinds.items()}


def _out_of_bounds(rules: Schema, value: Any) -> str | None:
    if isinstance(value, str):
        least, most = rules.get("minLength", 0), rules.get("maxLength")
        if len(value) < least or (most is not None and len(value) > most):
            return f"must have {_between(least, most, 'character')}, not {len(value)}"
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


def _between(least: int, most: int | None, what: str) -> str:
    if most is None:
        return f"at least {least} {what}{'' if least == 1 else 's'}"
    if least == most:
        return f"{least} {what}{'' if least == 1 else 's'}"
    return f"{least} to {most} {what}s" if least else f"at most {most} {what}{'' if most == 1 else 's'}"


def _names(spec: WorkflowSpec) -> str:
    """The inputs by name; those in brackets may be left out."""
    required = read_schema(spec.inputs_schema).get("required", ())
    return ", ".join(name if name in required else f"[{name}]" for name in spec.parameters)
