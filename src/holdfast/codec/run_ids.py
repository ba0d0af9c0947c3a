"""Run ids from templates: ``etl-{customer}``.

The id must be the same whichever process starts the run, so a field is rendered from the canonical form of the input
(``5.0`` and ``5`` give one id), and templates contain only names: an attribute, an index, a conversion, or a format
would need the value's class, which a client does not have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from string import Formatter
from typing import Any, cast

from pydantic_core import to_jsonable_python

from holdfast.codec.canonical import canonicalize, decode_plain
from holdfast.codec.tags import TAGGED_TYPES
from holdfast.errors import InputError

MAX_ID_LENGTH = 200
NOT_GIVEN: Any = object()
"""The default where ``None`` is a possible value."""
_LABEL, _EXAMPLE = "The id template ", "etl-{customer}"
_COLLECTION_TYPES = (dict, list, tuple, set, frozenset)


def parse_template_fields(template: str) -> tuple[str, ...]:
    """The names in a template, in order. Raises ``InputError`` for a template with more than names."""
    return tuple(field for _, field, _ in parse_template(template, _LABEL, _EXAMPLE) if field is not None)


def render_run_id(template: str, data: bytes, workflow: str, defaults: Mapping[str, object] | None = None) -> str:
    """The run id for encoded inputs; ``defaults`` replace inputs that were left out."""
    inputs = cast("dict[str, Any]", decode_plain(data))
    rendered: list[str] = []
    for literal, field, _ in parse_template(template, _LABEL, _EXAMPLE):
        rendered.append(literal)
        if field is not None:
            rendered.append(_render_field(field, inputs, defaults or {}, template, workflow))
    return _validate_run_id("".join(rendered), template, workflow)


def parse_template(
    template: str, label: str, example: str, *, allow_formats: bool = False
) -> list[tuple[str, str | None, str]]:
    """The parts of a template: each a literal text, the name of an input after it, and the format of that input.

    Raises ``InputError``, with ``label`` and ``example`` in the message, for more than names.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"{label}{template!r} cannot be read: {error}.") from error
    fields = [(literal, field, (spec or "") + (conversion or "")) for literal, field, spec, conversion in parts]
    for _, field, spec in fields:
        if field is not None and not (field.isidentifier() and (allow_formats or not spec)):
            raise InputError(
                f"{label}{template!r} may hold only the names of inputs, as in {example!r}: no attributes, indexes, "
                "conversions or formats. Make what you need an input of its own."
            )
    return fields


def _render_field(
    field: str, inputs: Mapping[str, Any], defaults: Mapping[str, object], template: str, workflow: str
) -> str:
    value = get_input(field, inputs, defaults.get(field, NOT_GIVEN))
    if value is NOT_GIVEN:
        names = ", ".join(inputs) or "none"
        raise InputError(
            f"The id template {template!r} of workflow {workflow!r} needs the input {field!r}, which was not given "
            f"(given: {names})."
        )
    text = format_scalar(value)
    if text is None:
        raise InputError(
            f"The input {field!r} of workflow {workflow!r} is part of its id template {template!r}, so it must be a "
            "single value such as text, a number or a date."
        )
    return text


def get_input(field: str, inputs: Mapping[str, Any], default: object) -> Any:
    """The value of a template's field among the inputs of a run, including those in ``**kwargs``."""
    others = next((value for name, value in inputs.items() if name.startswith("**")), None)
    if field in inputs:
        return inputs[field]
    if isinstance(others, dict) and field in others:
        return cast("dict[str, Any]", others)[field]
    return default


def format_scalar(value: Any) -> str | None:
    """The text of a single value in a template, however it was encoded; ``None``: it is not a single value."""
    if type(value) not in TAGGED_TYPES:
        value = to_jsonable_python(value, by_alias=False)
    return None if isinstance(value, _COLLECTION_TYPES) else str(canonicalize(value))


def _validate_run_id(run_id: str, template: str, workflow: str) -> str:
    if not 1 <= len(run_id) <= MAX_ID_LENGTH:
        raise InputError(
            f"The id template {template!r} of workflow {workflow!r} gives an id of {len(run_id)} characters; it must "
            f"have 1 to {MAX_ID_LENGTH}."
        )
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in run_id):
        raise InputError(
            f"The id template {template!r} of workflow {workflow!r} gives {run_id!r}: an id may not hold line breaks "
            "or other control characters."
        )
    return run_id
