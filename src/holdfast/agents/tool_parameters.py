"""The parameters of a tool: the schema that a model is shown, and the check of what it sends.

Both come from one pydantic model that is made of the function's signature. Its fields have names of our own and the
parameters' names as aliases, because a parameter may be named like anything (``schema``, ``model_config``,
``_id``), and pydantic's fields may not.
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
"""Arguments as a model sends them: JSON text, or what a provider has made of it."""

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_EMPTY = inspect.Parameter.empty

_NO_SCHEMA_ERRORS = (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema)
"""A type that no model can send, and no JSON schema can describe."""


class FunctionParameters:
    """What a model may pass to a tool."""

    def __init__(self, tool: str, subject: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> None:
        self._tool = tool
        self._subject = subject
        self._parameters = {f"p{index}": one for index, one in enumerate(parameters) if one.kind is not _VAR_KEYWORD}
        self._hints = {one.name: hints.get(one.name, Any) for one in parameters}
        self._var_keyword = next((one.name for one in parameters if one.kind is _VAR_KEYWORD), None)
        for one in parameters:
            self._check_parameter(one)
        self.names = tuple(one.name for one in self._parameters.values())
        self._model = self._build_model()
        self._schema: dict[str, Any] | None = None
        if self._model.__pydantic_complete__:  # else it names a class that is not there yet
            self._schema = self._build_type_schema()

    def _check_parameter(self, parameter: inspect.Parameter) -> None:
        name, hint = parameter.name, self._hints[parameter.name]
        if parameter.kind is _VAR_POSITIONAL:
            raise DefinitionError(
                f"{self._subject} takes *{name}, and a model passes arguments by name: take a list, "
                f"`{name}: list[...]`, instead"
            )
        # There are two of them: that of `typing`, and that of `typing_extensions` for older Pythons.
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
            key: (self._hints[one.name], _make_field(one.name, one.default)) for key, one in self._parameters.items()
        }
        config = ConfigDict(extra="forbid" if self._var_keyword is None else "allow", protected_namespaces=())
        try:
            if self._var_keyword is None:
                return create_model(self._tool, __config__=config, __module__=__name__, **fields)
            others = {"__pydantic_extra__": dict[str, self._hints[self._var_keyword]]}
            base = type(self._tool, (BaseModel,), {"__annotations__": others, "__module__": __name__})
            base.model_config = config
            return create_model(self._tool, __base__=base, __module__=__name__, **fields)
        except PydanticUserError as error:
            raise self._make_schema_error(error) from error

    def build_schema(self, descriptions: Mapping[str, str]) -> dict[str, Any]:
        """The JSON schema of the arguments, with what a docstring says of them; what a ``Field`` says wins."""
        schema = self._schema = self._schema or self._build_type_schema()
        properties: dict[str, Any] = {
            name: one
            if "description" in one or name not in descriptions
            else {**one, "description": descriptions[name]}
            for name, one in schema["properties"].items()
        }
        return {**schema, "properties": properties}

    def _build_type_schema(self) -> dict[str, Any]:
        try:
            schema = _remove_titles(self._model.model_json_schema(schema_generator=_SchemaGenerator))
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise self._make_schema_error(error) from error
        return {"properties": {}, **schema}

    def _make_schema_error(self, error: Exception) -> DefinitionError:
        """Says which parameter it is that no model can send."""
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
        """The arguments to call the function with, or ``InvalidToolArguments``, which says what is wrong with them.

        ``reserved`` is a parameter that is not the model's.
        """
        text = _to_json_bytes(raw_arguments)
        try:
            values = self._model.__pydantic_validator__.validate_json(text)
        except ValidationError as error:
            faults, more = list_argument_errors(error, _parse_json(text), self.names)
        else:
            others = cast("dict[str, Any]", values.__pydantic_extra__ or {})
            if reserved is None or reserved not in others:
                return self._split_arguments(values, others)
            faults, more = [f"{reserved} {describe_unknown_parameter(reserved, self.names)}"], 0
        raise InvalidToolArguments(format_argument_errors(self._tool, faults, self.names, more))

    @property
    def has_var_keyword(self) -> bool:
        """Whether it takes arguments of other names, too."""
        return self._var_keyword is not None

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that were checked, by name, with the defaults of those that were not given."""
        by_place = iter(args)
        found: dict[str, Any] = {}
        for parameter in self._parameters.values():
            if parameter.kind is _POSITIONAL_ONLY:
                found[parameter.name] = next(by_place)
            elif parameter.name in kwargs or parameter.default is not _EMPTY:
                found[parameter.name] = kwargs.get(parameter.name, parameter.default)
        return {**found, **kwargs}

    def _split_arguments(self, values: BaseModel, extra: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = dict(extra)
        given, found = values.__pydantic_fields_set__, values.__dict__
        for key, parameter in self._parameters.items():
            if parameter.kind is _POSITIONAL_ONLY:
                is_default = key not in given and parameter.default is not _EMPTY
                args.append(parameter.default if is_default else found[key])
            elif key in given or parameter.default is _EMPTY:
                kwargs[parameter.name] = found[key]
        return args, kwargs


def parse_arguments(raw_arguments: RawArguments) -> dict[str, Any]:
    """The arguments as they came, by name, for a preview; whatever is wrong with them."""
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
        # For a tool without parameters, some providers send nothing at all. Half of a surrogate pair is let through
        # to the parser, which can say where it is.
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
    """Does not warn of a default that JSON cannot show: the schema is right without it."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Nobody is told."""


_SCHEMA_MAP_KEYS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_DATA_KEYS = ("default", "const", "enum", "examples", "required")


def _remove_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names: each costs tokens, and says nothing new."""
    if isinstance(schema, list):
        return [_remove_titles(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _SCHEMA_MAP_KEYS:
            kept[key] = {name: _remove_titles(one) for name, one in value.items()}
        elif key in _DATA_KEYS:
            kept[key] = value
        elif key != "title":
            kept[key] = _remove_titles(value)
    return kept
