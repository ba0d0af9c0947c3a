"""The parameters of an MCP tool: known by a JSON schema alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from holdfast.agents.argument_errors import (
    describe_unknown_parameter,
    describe_unreadable,
    describe_value,
    format_argument_errors,
)
from holdfast.agents.tool_parameters import RawArguments
from holdfast.codec.formatting import truncate
from holdfast.errors import InvalidToolArguments, UsageError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

_MAX_VIOLATIONS = 8
_MAX_PATH_CHARS = 120

_BOUND_MESSAGES = {
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
        self._schema = schema
        self.names = tuple(_get_properties(schema))
        self.has_var_keyword = schema.get("additionalProperties") is not False

    def build_schema(self, descriptions: Mapping[str, str], /) -> dict[str, Any]:
        """The schema as it was given."""
        return self._schema

    def validate(self, raw_arguments: RawArguments, reserved: str | None, /) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, as one dict; or ``InvalidToolArguments``, which says what is wrong with them."""
        from referencing.exceptions import Unresolvable

        arguments = self._parse_arguments(raw_arguments)
        validator, problem = _compile_schema(json.dumps(self._schema))
        if validator is None:
            raise UsageError(
                f"the arguments of the tool {self._tool!r} cannot be checked: its schema is none: {problem}"
            )
        try:
            errors = list(itertools.islice(validator.iter_errors(arguments), _MAX_VIOLATIONS + 1))
        except Unresolvable:
            errors = []  # it refers to what is elsewhere, where nobody looks: the server checks for itself
        if errors:
            faults = [fault for error in errors for fault in self._describe_violations(error)]
            raise InvalidToolArguments(format_argument_errors(self._tool, faults, self.names))
        return [arguments], {}

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> dict[str, Any]:
        """The arguments that were checked, by name."""
        [arguments] = args
        return arguments

    def _parse_arguments(self, given: RawArguments) -> dict[str, Any]:
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
        raise InvalidToolArguments(format_argument_errors(self._tool, [describe_unreadable(problem)], self.names))

    def _describe_violations(self, error: ValidationError) -> Iterator[str]:
        """What one error of the schema's check means, in words for a model."""
        path = _format_path(error)
        expected: Any = error.validator_value
        instance: Any = error.instance
        match error.validator:
            case "required":
                missing = [name for name in expected if name not in instance]
                # The check tells of each name that is missing; its message is the only place that says of which.
                name = next((one for one in missing if error.message.startswith(repr(one))), missing[0])
                yield f"{_join_path(path, str(name))} is missing"
            case "additionalProperties" if isinstance(error.schema, dict):
                known = _get_properties(error.schema)
                for name in instance:
                    if name not in known:
                        words = "is not a field there" if path else describe_unknown_parameter(str(name), self.names)
                        yield f"{_join_path(path, str(name))} {words}"
            case "type":
                kinds = cast("list[str]", expected if isinstance(expected, list) else [expected])
                yield f"{path or 'they'} should be of type {' or '.join(kinds)}{describe_value(path, instance)}"
            case "enum":
                some = ", ".join(repr(one) for one in expected[:10])
                yield f"{path} should be one of {truncate(some, 120)}{describe_value(path, instance)}"
            case "anyOf" | "oneOf":
                kinds = [one.get("type") for one in expected if isinstance(one, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                words = f"should be of type {' or '.join(map(str, kinds))}" if all(kinds) else "fits none of its forms"  # pyright: ignore[reportUnknownArgumentType]
                yield f"{path or 'they'} {words}{describe_value(path, instance)}"
            case str() as rule if rule in _BOUND_MESSAGES:
                yield f"{path or 'they'} {_BOUND_MESSAGES[rule].format(expected)}{describe_value(path, instance)}"
            case rule:
                yield f"{path or 'they'} do not fit the rule {rule!r} of the schema{describe_value(path, instance)}"


def find_schema_problem(schema: dict[str, Any]) -> str | None:
    """Why this is no JSON schema."""
    return _compile_schema(json.dumps(schema))[1]


@lru_cache(maxsize=2000)
def _compile_schema(schema_json: str) -> tuple[Validator | None, str | None]:
    """What checks values against a schema, or why it is none. Nothing is fetched from elsewhere.

    It is kept, because it takes milliseconds, and every run lists the same ones.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(schema_json)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return None, truncate(error.message, 200)
    return kind(schema, registry=Registry()), None


def _get_properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def _format_path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path = f"{path}[{part}]" if isinstance(part, int) else _join_path(path, str(part))
    return truncate(path, _MAX_PATH_CHARS)


def _join_path(path: str, name: str) -> str:
    return f"{path}.{truncate(name, 60)}" if path else truncate(name, 60)
