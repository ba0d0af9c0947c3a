"""A run's inputs: one JSON object with an entry for each given argument.

It has two writers. The workflow's own process has the signature and the types (``InputsCodec``); a client elsewhere has
only the parameters' names (``encode_inputs_by_name``). In both cases the worker reads it by the declared types.
Arguments with default values are left out: the defaults belong to the code, and the worker has the code.

Every error here is an ``InputError``: the caller made the mistake, and is still there to see it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json, to_jsonable_python

from holdfast.codec.codec_lookup import codec_for
from holdfast.codec.encrypted_values import check_readable
from holdfast.codec.formatting import format_type, is_secret
from holdfast.codec.round_trip import get_data_fields
from holdfast.codec.tags import TAGGED_PREFIX, pack, unpack, untag
from holdfast.codec.value_codec import ValueCodec
from holdfast.errors import CodecError, InputError

_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY


MAX_SCHEMA_LENGTH = 32 * 1024
"""Maximum size of a JSON schema of inputs. A larger one is not announced, and a start checks only the names."""


class _Input(NamedTuple):
    """One input: what the codec of each run needs of a parameter, whose own properties are slow."""

    name: str
    """The name under which it is stored."""
    parameter_name: str
    kind: Any
    codec: ValueCodec
    subject: str
    """What error messages call it."""


class InputsCodec:
    """Turns the arguments of one workflow into bytes and back, each by its declared type."""

    def __init__(self, workflow: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self._signature = signature
        self._parameters_by_name = {
            _get_stored_name(parameter): parameter for parameter in signature.parameters.values()
        }
        self._codecs = {
            name: codec_for(hints.get(parameter.name, parameter.annotation))
            for name, parameter in self._parameters_by_name.items()
        }
        self._required = frozenset(self._list_required())
        is_simple = all(one.kind is _POSITIONAL_OR_KEYWORD for one in signature.parameters.values())
        self._positional_names = tuple(signature.parameters) if is_simple else ()
        """The parameters, if a call may pass all of them by position."""
        self._inputs = [
            _Input(name, parameter.name, parameter.kind, self._codecs[name], self._format_subject(name))
            for name, parameter in self._parameters_by_name.items()
        ]
        self._has_var_positional = any(one.kind is _VAR_POSITIONAL for one in self._inputs)
        self.parameters: tuple[str, ...] = tuple(self._parameters_by_name)
        """The names under which inputs are stored; ``*args`` and ``**kwargs`` keep their stars."""

    @cached_property
    def schema(self) -> str:
        """A JSON schema of the stored inputs, as text, for clients that start runs without the code."""
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, parameter in self._parameters_by_name.items():
            found = self._codecs[name].build_json_schema(f"{parameter.name}.")
            inner = cast("dict[str, Any]", found.pop("$defs", {}))
            definitions |= {f"{parameter.name}.{key}": definition for key, definition in inner.items()}
            if parameter.kind is _VAR_POSITIONAL:
                found = {"type": "array", "items": found}
            elif parameter.kind is _VAR_KEYWORD:
                found = {"type": "object", "additionalProperties": found}
            properties[name] = found
        text = _dump_schema(properties, self._list_required(), definitions)
        if len(text) > MAX_SCHEMA_LENGTH:
            text = _dump_schema(dict.fromkeys(properties, cast(Any, {})), self._list_required(), {})
        return text

    def _list_required(self) -> list[str]:
        return [
            name
            for name, parameter in self._parameters_by_name.items()
            if parameter.default is inspect.Parameter.empty and not name.startswith("*")
        ]

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """The inputs of a call, as one JSON object."""
        names = self._positional_names
        is_bound = not kwargs and names and len(args) == len(names)  # `bind` takes longer than all the rest
        given = dict(zip(names, args, strict=True)) if is_bound else self._bind(args, kwargs).arguments
        entries: list[tuple[str, bytes]] = []
        for one in self._inputs:
            if one.parameter_name in given:
                entries.append((one.name, self._encode_input(one, given[one.parameter_name])))
        return _join_object(entries)

    def _encode_input(self, one: _Input, value: Any) -> bytes:
        name, _, kind, codec, subject = one
        try:
            if kind is _VAR_POSITIONAL:
                return _join_list(
                    [codec.encode(item, self._format_subject(f"{name}[{i}]")) for i, item in enumerate(value)]
                )
            if kind is _VAR_KEYWORD:
                return _join_object(
                    [(key, codec.encode(item, self._format_subject(key))) for key, item in value.items()]
                )
            return codec.encode(value, subject)
        except CodecError as error:
            raise InputError(str(error)) from error

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the workflow with."""
        entries, tagged = self._parse_inputs(data)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        positional = self._has_var_positional
        for one in self._inputs:
            name, kind = one.name, one.kind
            if name not in entries:
                positional = False
                continue
            value = self._decode_input(one, entries[name], tagged)
            if kind is _VAR_POSITIONAL:
                args.extend(value)
            elif kind is _VAR_KEYWORD:
                kwargs.update(value)
            elif kind is _POSITIONAL_ONLY or (positional and kind is _POSITIONAL_OR_KEYWORD):
                args.append(value)
            else:
                kwargs[name] = value
        if not self._required <= entries.keys():
            self._bind(args, kwargs)  # which says what is missing
        return tuple(args), kwargs

    def _decode_input(self, one: _Input, entry: Any, tagged: bool) -> Any:
        name, _, kind, codec, subject = one
        try:
            if kind is _VAR_POSITIONAL:
                items = enumerate(cast("list[Any]", entry))
                return [_decode_entry(codec, item, tagged, self._format_subject(f"{name}[{i}]")) for i, item in items]
            if kind is _VAR_KEYWORD:
                named = _parse_object(entry, tagged)
                return {key: _decode_entry(codec, item, tagged, self._format_subject(key)) for key, item in named}
            return _decode_entry(codec, entry, tagged, subject)
        except (CodecError, TypeError, ValueError) as error:
            raise InputError(f"{error} Its signature is {self._format_signature()}.") from error

    def _parse_inputs(self, data: bytes) -> tuple[dict[str, Any], bool]:
        tagged = data[:1] == TAGGED_PREFIX
        try:
            entries = from_json(data[1:] if tagged else data)
        except ValueError as error:
            check_readable(data, f"what the run of workflow {self._workflow!r} was given")
            raise InputError(f"The inputs of workflow {self._workflow!r} are not JSON: {error}.") from error
        if not isinstance(entries, dict):
            check_readable(data, f"what the run of workflow {self._workflow!r} was given")
            raise InputError(
                f"The inputs of workflow {self._workflow!r} must be a JSON object: {self._format_signature()}."
            )
        entries = cast("dict[str, Any]", entries)
        if unknown := [name for name in entries if name not in self._parameters_by_name]:
            names = ", ".join(map(repr, unknown))
            raise InputError(f"Workflow {self._workflow!r} has no input {names}: {self._format_signature()}.")
        return entries, tagged

    def _bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(
                f"Workflow {self._workflow!r}: {error}. Its signature is {self._format_signature()}."
            ) from None

    def _format_subject(self, name: str) -> str:
        return f"input {name!r} of workflow {self._workflow!r}"

    def _format_signature(self) -> str:
        return f"{self._workflow}{self._signature.replace(return_annotation=inspect.Signature.empty)}"


def encode_inputs_by_name(
    workflow: str, parameters: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> bytes:
    """Encode the inputs of a call by a client that knows only the workflow's parameter names."""
    call = f"{workflow}({', '.join(parameters)})"
    named = [name for name in parameters if not name.startswith("*")]
    positional = list(takewhile(lambda name: not name.startswith("*"), parameters))
    var_positional = next((name for name in parameters if name.startswith("*") and not name.startswith("**")), None)
    var_keyword = next((name for name in parameters if name.startswith("**")), None)

    given: dict[str, object] = dict(zip(positional, args, strict=False))
    if surplus := list(args[len(positional) :]):
        if var_positional is None:
            raise InputError(f"Workflow {workflow!r} was given {len(args)} positional arguments: {call}.")
        given[var_positional] = surplus
    unnamed: dict[str, object] = {}
    for name, value in kwargs.items():
        if name in given:
            raise InputError(f"Workflow {workflow!r} was given {name!r} twice: {call}.")
        if name in named:
            given[name] = value
        elif var_keyword is not None:
            unnamed[name] = value
        else:
            raise InputError(f"Workflow {workflow!r} has no input {name!r}: {call}.")
    if var_keyword is not None and unnamed:
        given[var_keyword] = unnamed
    return _join_object([(name, _pack_input(workflow, name, given[name])) for name in parameters if name in given])


def _pack_input(workflow: str, name: str, value: Any) -> bytes:
    if name.startswith("**"):
        return _join_object([(key, _pack_input(workflow, key, item)) for key, item in value.items()])
    if name.startswith("*"):
        return _join_list([_pack_input(workflow, f"{name[1:]}[{i}]", item) for i, item in enumerate(value)])
    try:
        return pack(value, f"input {name!r} of workflow {workflow!r}", _to_data)
    except CodecError as error:
        raise InputError(str(error)) from error


def _to_data(value: object) -> object:
    """A model, dataclass, or enum as the data that the workflow's own types will read."""
    if is_secret(value):
        raise TypeError("secrets are not recorded")
    if get_data_fields(type(value)) is not None:
        return unpack(codec_for(type(value)).encode(value, f"the {format_type(type(value))} among the inputs"))
    return to_jsonable_python(value, by_alias=False, round_trip=True)


def _dump_schema(properties: dict[str, Any], required: list[str], definitions: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return json.dumps({**schema, "$defs": definitions} if definitions else schema, separators=(",", ":"))


def _get_stored_name(parameter: inspect.Parameter) -> str:
    return {_VAR_POSITIONAL: "*", _VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name


def _join_object(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """One JSON object of encoded values. If one value is tagged, the object is, and plain values are marked."""
    if not any(data[:1] == TAGGED_PREFIX for _, data in entries):
        return b"{" + b",".join(to_json(name) + b":" + data for name, data in entries) + b"}"
    if any(name[:1] == "$" for name, _ in entries):
        pairs = (b"[" + to_json(name) + b"," + _embed_in_tagged(data) + b"]" for name, data in entries)
        return TAGGED_PREFIX + b'{"$dict":[' + b",".join(pairs) + b"]}"
    return (
        TAGGED_PREFIX + b"{" + b",".join(to_json(name) + b":" + _embed_in_tagged(data) for name, data in entries) + b"}"
    )


def _join_list(items: Sequence[bytes]) -> bytes:
    if not any(data[:1] == TAGGED_PREFIX for data in items):
        return b"[" + b",".join(items) + b"]"
    return TAGGED_PREFIX + b"[" + b",".join(map(_embed_in_tagged, items)) + b"]"


def _embed_in_tagged(data: bytes) -> bytes:
    return data[1:] if data[:1] == TAGGED_PREFIX else b'{"$json":' + data + b"}"


def _parse_object(entry: Any, tagged: bool) -> list[tuple[str, Any]]:
    """The names and still encoded values of ``**kwargs``."""
    if tagged and list(entry) == ["$json"]:
        return [(name, {"$json": item}) for name, item in entry["$json"].items()]
    if tagged and list(entry) == ["$dict"]:
        return [(cast(str, untag(name)), item) for name, item in entry["$dict"]]
    return list(entry.items())


def _decode_entry(codec: ValueCodec, entry: Any, tagged: bool, subject: str) -> Any:
    if not tagged:
        return codec.decode(to_json(entry), subject)
    if isinstance(entry, dict) and list(cast("dict[str, Any]", entry)) == ["$json"]:
        return codec.decode(to_json(entry["$json"]), subject)
    return codec.decode(TAGGED_PREFIX + to_json(entry), subject)
