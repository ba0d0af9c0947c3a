"""Check JSON schemas that callers provide, and apply them to values, in bounded time.

A schema can keep a validator busy forever: with a pattern that takes a backtracking engine exponential time, with
references that double at each level, or just with its size. The process that validates may serve other callers. So:

- RE2 matches patterns in time that is linear in the text. It has no backreferences and no lookaround, and
  ``check_schema`` refuses patterns that RE2 does not support. Without the package ``google-re2``, which the extra
  ``server`` installs, Python's ``re`` matches patterns: a program that checks an answer of its own user blocks nobody
  else. A server does not start without ``google-re2``.
- A schema that arrives over HTTP has a maximum size (``check_schema``), and applying any schema takes a maximum number
  of steps (``find_violations``).
- Nothing is fetched, so a schema cannot make this process send requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from holdfast.codec.canonical import to_canonical_bytes
from holdfast.errors import InputError

_re2: Any
try:
    import re2
except ModuleNotFoundError:
    _re2 = None
else:
    _re2 = re2

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_SCHEMA_DEPTH: Final = 32
MAX_SCHEMA_VALUES: Final = 4_000
"""Values in a schema."""
MAX_PATTERN_LENGTH: Final = 1_000
"""Characters of a pattern."""
MAX_STEPS: Final = 100_000
"""Maximum number of keywords applied to parts of a value. A keyword that takes longer than most counts as several."""
MAX_CHECKED_BYTES: Final = 1024 * 1024
"""Bytes of a value that is checked: a message may quote all of it."""
MAX_MESSAGE_LENGTH: Final = 500
"""Characters of a message that are kept."""
_MAX_PATTERN_MEMORY_BYTES: Final = 1 << 20
"""Bytes that RE2 may use for a pattern: this bounds what repetitions of repetitions expand to."""
_NAMES_PER_STEP: Final = 100
"""Names, or schemas, of a keyword that are gone through in the time of a step."""
_ITEMS_PER_STEP: Final = 4
"""Items of a value that a schema without keywords is applied to in the time of a step."""
_BYTES_PER_STEP: Final = 100
"""Bytes of a value that are made canonical in the time of a step."""
_CHARACTERS_PER_STEP: Final = 1000
"""Characters of a text that are written, or matched, in the time of a step."""
_SEARCHED_PER_STEP: Final = 4
"""Values of a schema that are searched for the target of a reference in the time of a step."""
_ITERATING_KEYWORDS: Final = (
    "items",
    "additionalItems",
    "contains",
    "propertyNames",
    "additionalProperties",
    "uniqueItems",
)
"""Keywords that go through all items of a value."""
_UNSUPPORTED_KEYWORDS: Final = ("unevaluatedProperties", "unevaluatedItems", "$recursiveRef")
"""Keywords whose cost cannot be bounded here."""


class SchemaViolation(NamedTuple):
    """A part of a value that does not match a schema."""

    path: tuple[str | int, ...]
    json_path: str
    message: str


def check_schema(schema: Mapping[str, Any], subject: str) -> None:
    """Raise ``InputError`` for a schema that is invalid, or too large to be applied quickly.

    ``subject`` begins the error message, such as ``"the form"``.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise InputError(f"{subject} is too large: its JSON schema may have {MAX_SCHEMA_BYTES:,} bytes")
    patterns = [one for part in _collect_objects(schema, subject) for one in _iter_patterns(part)]
    for pattern in patterns:
        _check_pattern(pattern, subject)
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError

    try:
        _find_dialect(schema).check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        raise InputError(f"{subject} is not a valid JSON schema: {error.message[:500]}") from None
    except UnusableSchema as error:
        raise InputError(f"{subject} {error}") from None


def find_violations(schema: Any, value: Any, subject: str, max_count: int) -> list[SchemaViolation]:
    """The first ``max_count`` violations in a value.

    Raises ``InputError``, which begins with ``subject``, if the schema cannot be applied in bounded time.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if (size := len(json.dumps(value))) > MAX_CHECKED_BYTES:
        raise InputError(f"{subject} takes values of at most {MAX_CHECKED_BYTES:,} bytes, and this one has {size:,}")
    nothing = Registry[Any]()
    work = _check_state.set(_CheckState())
    try:
        _check_state.get().schema_size = _measure_bounded_schema(schema)
        checker = _make_bounded_validator(_find_dialect(schema))(schema, registry=nothing)
        found = islice(checker.iter_errors(value), max_count)
        return [SchemaViolation(tuple(one.path), one.json_path, one.message[:MAX_MESSAGE_LENGTH]) for one in found]
    except Unresolvable as error:
        raise InputError(f"{subject} refers to {error.ref!r}, which is not in it") from None
    except RecursionError:
        raise InputError(f"{subject} refers to itself without an end") from None
    except OverflowError:
        raise InputError(
            f"{subject} has a multipleOf that cannot be applied to a number as large as this one"
        ) from None
    except UnusableSchema as error:
        raise InputError(f"{subject} {error}") from None
    finally:
        _check_state.reset(work)


class UnusableSchema(Exception):
    """A schema that cannot be applied in bounded time. The message completes a sentence about the schema."""


# Limits of schemas


def _collect_objects(schema: Mapping[str, Any], subject: str) -> list[Mapping[str, Any]]:
    """All objects in a schema. Raises ``InputError`` for one that is too deep or has too much in it."""
    found: list[Mapping[str, Any]] = []
    for count, (one, level) in enumerate(_iter_values(schema), 1):
        if count > MAX_SCHEMA_VALUES:
            raise InputError(f"{subject} is too large: its JSON schema may have {MAX_SCHEMA_VALUES:,} values")
        if level > MAX_SCHEMA_DEPTH:
            raise InputError(f"{subject} is nested too deeply: its JSON schema may have {MAX_SCHEMA_DEPTH} levels")
        if isinstance(one, dict):
            found.append(cast("dict[str, Any]", one))
    return found


def _iter_values(schema: Any) -> Iterator[tuple[Any, int]]:
    """All values in a schema, and how many containers each is in."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    while waiting:
        one, level = waiting.pop()
        yield one, level
        if isinstance(one, dict):
            waiting += ((item, level + 1) for item in cast("dict[str, Any]", one).values())
        elif isinstance(one, list):
            waiting += ((item, level + 1) for item in cast("list[Any]", one))


def _iter_patterns(part: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := part.get("pattern"), str):
        yield pattern
    if isinstance(named := part.get("patternProperties"), dict):
        yield from cast("dict[str, Any]", named)


def _check_pattern(pattern: str, subject: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InputError(
            f"{subject} has a pattern of {len(pattern):,} characters, {pattern[:60]!r}…: it may have "
            f"{MAX_PATTERN_LENGTH:,}"
        )
    try:
        _compile_pattern(pattern)
    except UnusableSchema as error:
        raise InputError(f"{subject} {error}") from None


@cache
def _get_dialects() -> dict[str, Any]:
    from jsonschema import validators

    kinds = (
        validators.Draft4Validator,
        validators.Draft6Validator,
        validators.Draft7Validator,
        validators.Draft201909Validator,
        validators.Draft202012Validator,
    )
    names = (cast("dict[str, str]", kind.META_SCHEMA) for kind in kinds)
    return {(name.get("$id") or name["id"]).rstrip("#"): kind for name, kind in zip(names, kinds, strict=True)}


def _find_dialect(schema: Any) -> Any:
    """The class of jsonschema that applies a schema."""
    from jsonschema.validators import Draft202012Validator

    named = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
    if named is None:
        return Draft202012Validator
    found = _get_dialects().get(named.rstrip("#")) if isinstance(named, str) else None
    if found is None:
        raise UnusableSchema(
            f"is written for $schema {str(named)[:100]!r}, which is not known here: leave it out, or name the URL of "
            f"draft 2020-12, 2019-09, 7, 6 or 4"
        )
    return found


def _measure_bounded_schema(schema: Any) -> int:
    """The number of values in a schema. Raises ``UnusableSchema`` for keywords that bypass the limits."""
    size = 0
    for one, _ in _iter_values(schema):
        size += 1
        if isinstance(one, dict):
            part = cast("dict[str, Any]", one)
            if part is not schema and isinstance(part.get("$schema"), str):
                raise UnusableSchema("names a $schema inside of it: only the whole may have one")
            for rule in _UNSUPPORTED_KEYWORDS:
                if rule in part:
                    raise UnusableSchema(f"has the keyword {rule}, which cannot be checked here")
    return size


# Applying schemas


class _CheckState:
    """The steps that are left for a check, and what it has computed."""

    def __init__(self) -> None:
        self.steps_left = MAX_STEPS
        self.schema_size = 0
        self.enum_values: dict[int, frozenset[bytes]] = {}
        """By the id of the list of an ``enum``: the canonical bytes of its values."""


_check_state: ContextVar[_CheckState] = ContextVar("holdfast_schema_work")


@cache
def _make_bounded_validator(dialect: Any) -> Any:
    """The same class with keywords that count their steps and take linear time."""
    from jsonschema import validators

    extend = cast("Callable[..., Any]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
    own: dict[str, Any] = {
        "pattern": _apply_pattern,
        "patternProperties": _apply_pattern_properties,
        "additionalProperties": _apply_additional_properties,
        "uniqueItems": _apply_unique_items,
        "enum": _apply_enum,
        "$ref": _make_reference_rule(dialect.VALIDATORS["$ref"]),
    }
    if (dynamic := dialect.VALIDATORS.get("$dynamicRef")) is not None:
        own["$dynamicRef"] = _make_reference_rule(dynamic)
    rules = {name: _count_steps(name, own.get(name, rule)) for name, rule in dialect.VALIDATORS.items()}
    return extend(dialect, rules)


def _count_steps(name: str, rule: Callable[..., Iterable[Any] | None]) -> Callable[..., Iterator[Any]]:
    visits, searches = name in _ITERATING_KEYWORDS, name != "enum"  # a value is looked up in an enum

    def counted(checker: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
        steps = 1
        if searches and isinstance(keyword, dict | list):
            steps += len(cast("list[Any]", keyword)) // _NAMES_PER_STEP
        if visits and isinstance(value, dict | list):
            steps += len(cast("list[Any]", value)) // _ITEMS_PER_STEP
        _spend_steps(steps)
        for fault in rule(checker, keyword, value, schema) or ():
            _spend_steps(len(fault.message) // _CHARACTERS_PER_STEP)
            yield fault

    return counted


def _spend_steps(steps: int) -> None:
    work = _check_state.get()
    work.steps_left -= steps
    if work.steps_left < 0:
        raise UnusableSchema(f"takes more than {MAX_STEPS:,} steps to check this value: make one of them smaller")


def _apply_pattern(checker: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, str) and not _has_match(pattern, value):
        yield _make_error(f"{_format_text(value)} does not match {pattern!r}")


def _apply_pattern_properties(checker: Any, rules: Mapping[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, rule in rules.items():
            for name, item in cast("dict[str, Any]", value).items():
                if _has_match(pattern, name):
                    yield from checker.descend(item, rule, path=name, schema_path=pattern)


def _apply_additional_properties(checker: Any, rule: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    entries = cast("dict[str, Any]", value).items()
    extra = {
        name: item for name, item in entries if name not in known and not any(_has_match(one, name) for one in patterns)
    }
    if isinstance(rule, dict):
        for name, item in extra.items():
            yield from checker.descend(item, rule, path=name)
    elif rule is False and extra:
        names = ", ".join(map(_format_text, islice(extra, 10)))
        were = "was" if len(extra) == 1 else "were"
        yield _make_error(f"Additional properties are not allowed ({names} {were} unexpected)")


def _apply_unique_items(checker: Any, is_wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    if is_wanted and isinstance(value, list):
        items = cast("list[Any]", value)
        if len(set(map(_canonicalize, items))) < len(items):
            yield _make_error("there are items that are not unique")


def _apply_enum(checker: Any, allowed: list[Any], value: Any, schema: Any) -> Iterator[Any]:
    known = _check_state.get().enum_values
    if id(allowed) not in known:
        known[id(allowed)] = frozenset(map(_canonicalize, allowed))
    if _canonicalize(value) not in known[id(allowed)]:
        yield _make_error(f"{value!r} is not one of {allowed!r}")


def _canonicalize(value: Any) -> bytes:
    """Bytes that are the same for values that JSON schemas regard as equal."""
    key = to_canonical_bytes(value)
    _spend_steps(len(key) // _BYTES_PER_STEP)
    return key


def _make_reference_rule(rule: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The rule for references: the whole schema is searched for each target that is not named by its place."""

    def refer(checker: Any, target: str, value: Any, schema: Any) -> Iterator[Any]:
        if target != "#" and not target.startswith("#/"):
            _spend_steps(_check_state.get().schema_size // _SEARCHED_PER_STEP)
        return rule(checker, target, value, schema)

    return refer


def _make_error(message: str) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _format_text(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}…"


def _has_match(pattern: str, text: str) -> bool:
    _spend_steps(1 + len(text) // _CHARACTERS_PER_STEP)
    return _compile_pattern(pattern)(text) is not None


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Callable[[str], object]:
    """Searches a text for a pattern. Raises ``UnusableSchema``."""
    if _re2 is None:
        try:
            return re.compile(pattern).search
        except (re.error, RecursionError) as error:
            raise UnusableSchema(f"has the pattern {pattern[:100]!r}, which is not valid: {error}") from None
    options = _re2.Options()
    options.max_mem, options.log_errors = _MAX_PATTERN_MEMORY_BYTES, False
    try:
        return _re2.compile(pattern, options).search
    except _re2.error as error:
        cause = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise UnusableSchema(
            f"has the pattern {pattern[:100]!r}, which cannot be matched in linear time ({cause}): patterns are those "
            f"of RE2, without lookaround and backreferences"
        ) from None
