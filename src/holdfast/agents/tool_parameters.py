"""The parameters of a tool: the schema for the model, and the validation of its arguments.

Both come from one pydantic model that is made from the function's signature. Its fields have generated names, and the
parameters' names as aliases, because a parameter may have any name (``schema``, ``model_config``, ``_id``), and a field
of pydantic may not.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import from_json, to_json

from holdfast.agents.argument_errors import describe_unknown_parameter, format_argument_errors, list_argument_errors
from holdfast.errors import DefinitionError, InvalidToolArguments

RawArguments = str | dict[str, Any] | None
"""The arguments that a model sends: JSON text, or data that a provider has parsed."""

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_EMPTY = inspect.Parameter.empty

_NO_SCHEMA_ERRORS = (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema)
"""The type has no JSON schema, so no model can send it."""


class FunctionParameters:
    """The parameters of a tool that is a Python function."""

    def __init__(self, tool: str, subject: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> None:
        self._tool = tool
        self._subject = subject
        self._parameters = {f"p{index}": item for index, item in enumerate(parameters) if item.kind is not _VAR_KEYWORD}
        self._hints = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
        self._var_keyword = next((item.name for item in parameters if item.kind is _VAR_KEYWORD), None)
        for parameter in parameters:
            self._check_parameter(parameter)
        self.names = tuple(parameter.name for parameter in self._parameters.values())
        self._model = self._build_model()
        self._schema: dict[str, Any] | None = None
        if self._model.__pydantic_complete__:  # otherwise it names a class that is not defined yet
            self._schema = self._build_type_schema()

    def _check_parameter(self, parameter: inspect.Parameter) -> None:
        name, hint = parameter.name, self._hints[parameter.name]
        if parameter.kind is _VAR_POSITIONAL:
            raise DefinitionError(
                f"{self._subject} takes *{name}, and a model passes arguments by name: take a list, "
                f"`{name}: list[...]`, instead"
            )
        # By name, because `typing` and `typing_extensions` each have one.
        if parameter.kind is _VAR_KEYWORD and getattr(get_origin(hint), "_name", "") == "Unpack":
            raise DefinitionError(
                f"{self._subject} takes **{name} of an unpacked TypedDict: write its keys as parameters, or take it as "
                f"one parameter without the stars"
            )
        if isinstance(parameter.default, FieldInfo):
            raise DefinitionError(
                f"{self._subject}: the default of {name!r} is a pydantic Field, which a plain call is handed as it is: "
                f"write `{name}: Annotated[..., Field(...)]`, and its default behind it"
            )

    def _build_model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {
            key: (self._hints[parameter.name], _make_field(parameter.name, parameter.default))
            for key, parameter in self._parameters.items()
        }
        config = ConfigDict(extra="forbid" if self._var_keyword is None else "allow", protected_namespaces=())
        try:
            if self._var_keyword is None:
                return create_model(self._tool, __config__=config, __module__=__name__, **fields)
            extra = {"__pydantic_extra__": dict[str, self._hints[self._var_keyword]]}
            base = type(self._tool, (BaseModel,), {"__annotations__": extra, "__module__": __name__})
            base.model_config = config
            return create_model(self._tool, __base__=base, __module__=__name__, **fields)
        except PydanticUserError as error:
            raise self._make_schema_error(error) from error

    def build_schema(self, descriptions: Mapping[str, str]) -> dict[str, Any]:
        """The JSON schema of the arguments, with descriptions from the docstring unless a ``Field`` has its own."""
        schema = self._schema = self._schema or self._build_type_schema()
        properties: dict[str, Any] = {
            name: {**item, "description": item.get("description", descriptions[name])} if name in descriptions else item
            for name, item in schema["properties"].items()
        }
        return {**schema, "properties": properties}

    def _build_type_schema(self) -> dict[str, Any]:
        try:
            schema = _remove_titles(self._model.model_json_schema(schema_generator=_SchemaGenerator))
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise self._make_schema_error(error) from error
        return {"properties": {}, **schema}

    def _make_schema_error(self, error: Exception) -> DefinitionError:
        """The error that names the parameter without a JSON schema."""
        for name, hint in self._hints.items():
            try:
                TypeAdapter(hint).json_schema()
            except _NO_SCHEMA_ERRORS:
                return DefinitionError(
                    f"{self._subject}: parameter {name!r} is a {getattr(hint, '__name__', hint)}, which a model cannot "
                    f"send as JSON. What is the program's own (clients, connections) goes into the agent's deps: "
                    f"take `ctx: RunContext[...]` as the first parameter, and use `ctx.deps`."
                )
            except (PydanticUserError, PydanticUndefinedAnnotation) as fault:
                return DefinitionError(f"{self._subject}: parameter {name!r} has no JSON schema: {fault.message}")
        return DefinitionError(f"{self._subject}: its parameters have no JSON schema: {error}")

    def validate(self, raw_arguments: RawArguments, reserved: str | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function. Raises ``InvalidToolArguments``, which says what is wrong with them.

        ``reserved`` is a parameter that the model may not set.
        """
        text = _to_json_bytes(raw_arguments)
        try:
            values = self._model.__pydantic_validator__.validate_json(text)
        except ValidationError as error:
            problems, more_count = list_argument_errors(error, _parse_json(text), self.names)
        else:
            extra = cast("dict[str, Any]", values.__pydantic_extra__ or {})
            if reserved is None or reserved not in extra:
                return self._split_arguments(values, extra)
            problems, more_count = [f"{reserved} {describe_unknown_parameter(reserved, self.names)}"], 0
        raise InvalidToolArguments(format_argument_errors(self._tool, problems, self.names, more_count))

    @property
    def has_var_keyword(self) -> bool:
        """Whether it takes arguments with other names, too."""
        return self._var_keyword is not None

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Validated arguments by name, with the defaults of missing ones."""
        positional = iter(args)
        named: dict[str, Any] = {}
        for parameter in self._parameters.values():
            if parameter.kind is _POSITIONAL_ONLY:
                named[parameter.name] = next(positional)
            elif parameter.name in kwargs or parameter.default is not _EMPTY:
                named[parameter.name] = kwargs.get(parameter.name, parameter.default)
        return {**named, **kwargs}

    def _split_arguments(self, values: BaseModel, extra: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = dict(extra)
        set_keys, value_by_key = values.__pydantic_fields_set__, values.__dict__
        for key, parameter in self._parameters.items():
            if parameter.kind is _POSITIONAL_ONLY:
                is_default = key not in set_keys and parameter.default is not _EMPTY
                args.append(parameter.default if is_default else value_by_key[key])
            elif key in set_keys or parameter.default is _EMPTY:
                kwargs[parameter.name] = value_by_key[key]
        return args, kwargs


def parse_arguments(raw_arguments: RawArguments) -> dict[str, Any]:
    """The raw arguments by name, for a preview, even if they are invalid."""
    if isinstance(raw_arguments, dict):
        return raw_arguments
    parsed = _parse_json(_to_json_bytes(raw_arguments))
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return {"arguments": f"({len(raw_arguments or '')} characters that are no JSON object)"}


def _make_field(name: str, default: Any) -> Any:
    if default is _EMPTY:
        return Field(alias=name, validation_alias=name)
    return Field(default, alias=name, validation_alias=name)


def _to_json_bytes(raw_arguments: RawArguments) -> bytes:
    if raw_arguments is None:
        return b"{}"
    if isinstance(raw_arguments, str):
        # For a tool without parameters, some providers send nothing at all. The parser gets half of a surrogate pair as
        # it is, and can say where it is.
        return b"{}" if raw_arguments.strip() in ("", "null") else raw_arguments.encode("utf-8", "surrogatepass")
    try:
        return to_json(raw_arguments)
    except ValueError:
        return json.dumps(raw_arguments).encode()


def _parse_json(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return None


class _SchemaGenerator(GenerateJsonSchema):
    """Does not warn of a default that JSON cannot represent: the schema is valid without it."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Ignore it."""


_SCHEMA_MAP_KEYS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_DATA_KEYS = ("default", "const", "enum", "examples", "required")


def _remove_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes from names: each costs tokens, and adds nothing."""
    if isinstance(schema, list):
        return [_remove_titles(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _SCHEMA_MAP_KEYS:
            result[key] = {name: _remove_titles(item) for name, item in value.items()}
        elif key in _DATA_KEYS:
            result[key] = value
        elif key != "title":
            result[key] = _remove_titles(value)
    return result
