"""The parameters of an MCP tool: known by a JSON schema alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from holdfast.agents.argument_errors import it_was, refusal, stranger, unreadable
from holdfast.agents.tool_parameters import Given
from holdfast.codec.formatting import cut
from holdfast.errors import ArgumentsRefused, UsageError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

_MOST_FAULTS = 8
_LONGEST_PATH = 120

_BOUNDS = {
    "minimum": "should be {} or more",
    "maximum": "should be {} or less",
    "exclusiveMinimum": "should be more than {}",
    "exclusiveMaximum": "should be less than {}",
    "multipleOf": "should be a multiple of {}",
    "minLength": "should have {} characters or more",
    "maxLength": "should have {} characters or less",
    "minItems": "should have {} items or more",
    "maxItems": "should have {} items or less",
    "pattern": "should match {!r}",
    "format": "should be a {}",
    "const": "should be {!r}",
}


class SchemaParameters:
    """What a model may pass to a tool of which only the schema is known.

    See ``agents.tool_approvals.ToolParameters``.
    """

    def __init__(self, tool: str, schema: dict[str, Any]) -> None:
        self._tool = tool
        self._given_schema = schema
        self.names = tuple(_properties(schema))
        self.takes_others = schema.get("additionalProperties") is not False

    def schema(self, descriptions: Mapping[str, str], /) -> dict[str, Any]:
        """The schema as it was given."""
        return self._given_schema

    def check(self, given: Given, reserved: str | None, /) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, as one dict; or ``ArgumentsRefused``, which says what is wrong with them."""
        from referencing.exceptions import Unresolvable

        arguments = self._read(given)
        validator, problem = _looked_at(json.dumps(self._given_schema))
        if validator is None:
            raise UsageError(
                f"the arguments of the tool {self._tool!r} cannot be checked: its schema is none: {problem}"
            )
        try:
            errors = list(itertools.islice(validator.iter_errors(arguments), _MOST_FAULTS + 1))
        except Unresolvable:
            errors = []  # it refers to what is elsewhere, where nobody looks: the server checks for itself
        if errors:
            faults = [fault for error in errors for fault in self._faults(error)]
            raise ArgumentsRefused(refusal(self._tool, faults, self.names))
        return [arguments], {}

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> dict[str, Any]:
        """The arguments that were checked, by name."""
        [arguments] = args
        return arguments

    def _read(self, given: Given) -> dict[str, Any]:
        if isinstance(given, dict):
            return given
        if given is None or given.strip() in ("", "null"):
            return {}
        try:
            found = from_json(given.encode("utf-8", "surrogatepass"))
            problem = "they are no JSON object"
        except ValueError as error:
            found, problem = None, str(error)
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
        raise ArgumentsRefused(refusal(self._tool, [unreadable(problem)], self.names))

    def _faults(self, error: ValidationError) -> Iterator[str]:
        """What one error of the schema's check means, in words for a model."""
        path = _path(error)
        expected: Any = error.validator_value
        instance: Any = error.instance
        match error.validator:
            case "required":
                missing = [name for name in expected if name not in instance]
                # The check tells of each name that is missing; its message is the only place that says of which.
                name = next((one for one in missing if error.message.startswith(repr(one))), missing[0])
                yield f"{_inside(path, str(name))} is missing"
            case "additionalProperties" if isinstance(error.schema, dict):
                known = _properties(error.schema)
                for name in instance:
                    if name not in known:
                        words = "is not a field there" if path else stranger(str(name), self.names)
                        yield f"{_inside(path, str(name))} {words}"
            case "type":
                kinds = cast("list[str]", expected if isinstance(expected, list) else [expected])
                yield f"{path or 'they'} should be of type {' or '.join(kinds)}{it_was(path, instance)}"
            case "enum":
                some = ", ".join(repr(one) for one in expected[:10])
                yield f"{path} should be one of {cut(some, 120)}{it_was(path, instance)}"
            case "anyOf" | "oneOf":
                kinds = [one.get("type") for one in expected if isinstance(one, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                words = f"should be of type {' or '.join(map(str, kinds))}" if all(kinds) else "fits none of its forms"  # pyright: ignore[reportUnknownArgumentType]
                yield f"{path or 'they'} {words}{it_was(path, instance)}"
            case str() as rule if rule in _BOUNDS:
                yield f"{path or 'they'} {_BOUNDS[rule].format(expected)}{it_was(path, instance)}"
            case rule:
                yield f"{path or 'they'} do not fit the rule {rule!r} of the schema{it_was(path, instance)}"


def problem_of(schema: dict[str, Any]) -> str | None:
    """Why this is no JSON schema."""
    return _looked_at(json.dumps(schema))[1]


@lru_cache(maxsize=2000)
def _looked_at(text: str) -> tuple[Validator | None, str | None]:
    """What checks values against a schema, or why it is none. Nothing is fetched from elsewhere.

    It is kept, because it takes milliseconds, and every run lists the same ones.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return None, cut(error.message, 200)
    return kind(schema, registry=Registry()), None


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def _path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path = f"{path}[{part}]" if isinstance(part, int) else _inside(path, str(part))
    return cut(path, _LONGEST_PATH)


def _inside(path: str, name: str) -> str:
    return f"{path}.{cut(name, 60)}" if path else cut(name, 60)
