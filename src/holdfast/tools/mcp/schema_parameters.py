"""The parameters of an MCP tool, which has only a JSON schema."""

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
    """The parameters of a tool with a JSON schema. Implements ``agents.tool_approvals.ToolParameters``."""

    def __init__(self, tool: str, schema: dict[str, Any]) -> None:
        self._tool = tool
        self._schema = schema
        self.names = tuple(_get_properties(schema))
        self.has_var_keyword = schema.get("additionalProperties") is not False

    def build_schema(self, descriptions: Mapping[str, str], /) -> dict[str, Any]:
        """The server's schema."""
        return self._schema

    def validate(self, raw_arguments: RawArguments, reserved: str | None, /) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as one dict. Raises ``InvalidToolArguments``, which says what is wrong with them."""
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
            errors = []  # it refers to another document, which is not fetched: the server validates by itself
        if errors:
            problems = [problem for error in errors for problem in self._describe_violations(error)]
            raise InvalidToolArguments(format_argument_errors(self._tool, problems, self.names))
        return [arguments], {}

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> dict[str, Any]:
        """Validated arguments by name."""
        [arguments] = args
        return arguments

    def _parse_arguments(self, raw_arguments: RawArguments) -> dict[str, Any]:
        if isinstance(raw_arguments, dict):
            return raw_arguments
        if raw_arguments is None or raw_arguments.strip() in ("", "null"):
            return {}
        try:
            parsed = from_json(raw_arguments.encode("utf-8", "surrogatepass"))
            problem = "they are no JSON object"
        except ValueError as error:
            parsed, problem = None, str(error)
        if isinstance(parsed, dict):
            return cast("dict[str, Any]", parsed)
        raise InvalidToolArguments(format_argument_errors(self._tool, [describe_unreadable(problem)], self.names))

    def _describe_violations(self, error: ValidationError) -> Iterator[str]:
        """The lines for one validation error, in words for a model."""
        path = _format_path(error)
        expected: Any = error.validator_value
        instance: Any = error.instance
        match error.validator:
            case "required":
                missing = [name for name in expected if name not in instance]
                # There is one error for each missing name, and only its message says which.
                name = next((name for name in missing if error.message.startswith(repr(name))), missing[0])
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
                options = ", ".join(repr(option) for option in expected[:10])
                yield f"{path} should be one of {truncate(options, 120)}{describe_value(path, instance)}"
            case "anyOf" | "oneOf":
                kinds = [option.get("type") for option in expected if isinstance(option, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                words = f"should be of type {' or '.join(map(str, kinds))}" if all(kinds) else "fits none of its forms"  # pyright: ignore[reportUnknownArgumentType]
                yield f"{path or 'they'} {words}{describe_value(path, instance)}"
            case str() as rule if rule in _BOUND_MESSAGES:
                yield f"{path or 'they'} {_BOUND_MESSAGES[rule].format(expected)}{describe_value(path, instance)}"
            case rule:
                yield f"{path or 'they'} do not fit the rule {rule!r} of the schema{describe_value(path, instance)}"


def find_schema_problem(schema: dict[str, Any]) -> str | None:
    """Why this is not a valid JSON schema; ``None`` if it is."""
    return _compile_schema(json.dumps(schema))[1]


@lru_cache(maxsize=2000)
def _compile_schema(schema_json: str) -> tuple[Validator | None, str | None]:
    """The validator of a schema, or why the schema is invalid. References to other documents are not fetched.

    Cached, because it takes milliseconds, and every run lists the same schemas.
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
