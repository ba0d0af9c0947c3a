"""The key that a run has in its queue, from a template over its inputs: ``{customer}``.

Keys are like ids (see ``run_ids``): whoever starts a run gives it the same one, with the code of its workflow or not.
But an input may be ``None``, or left out: then it is nobody's in particular, and has no key. So that a client knows
what is meant by an input that was left out, a template is announced with the defaults of its workflow in it, where a
format has its place: ``{customer:acme}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any, cast
from urllib.parse import quote, unquote

from holdfast.codec.canonical import decode_plain
from holdfast.codec.run_ids import NOT_GIVEN, format_scalar, get_input
from holdfast.errors import InputError

MAX_KEY_LENGTH = 200


def prepare_key_template(
    template: str, parameters: Collection[str], defaults: Mapping[str, object], *, accepts_any: bool = False
) -> str:
    """A template as it is announced. Raises ``InputError`` if it is none, or names what is no input of the workflow."""
    announced: list[str] = []
    for literal, field, spec in _parse_template(template):
        announced.append(literal.replace("{", "{{").replace("}", "}}"))
        if field is None:
            continue
        if not field.isidentifier() or spec:
            raise InputError(
                f"key={template!r} may hold only the names of inputs, as in '{{customer}}': no attributes, indexes, "
                f"conversions or formats. Make what you need an input of its own."
            )
        if field not in parameters and not accepts_any:
            inputs = ", ".join(parameters) or "none"
            raise InputError(f"key={template!r} names {field!r}, which is no input of the workflow (inputs: {inputs})")
        default = defaults.get(field)
        text = None if default is None else format_scalar(default)
        announced.append(f"{{{field}}}" if text is None else f"{{{field}:{quote(text, safe='')}}}")
    return "".join(announced)


def render_key(template: str, data: bytes, workflow: str) -> str:
    """The key that an announced template gives for encoded inputs; ``""``: none of the inputs in it was given."""
    inputs = cast("dict[str, Any]", decode_plain(data))
    rendered: list[str] = []
    is_given = False
    for literal, field, spec in _parse_template(template):
        rendered.append(literal)
        if field is None:
            continue
        value = get_input(field, inputs, unquote(spec) if spec else NOT_GIVEN)
        if value is None or value is NOT_GIVEN:
            continue
        text = format_scalar(value)
        if text is None:
            raise InputError(
                f"The input {field!r} of workflow {workflow!r} is the key of its runs in their queue ({template!r}), "
                f"so it must be a single value such as text or a number."
            )
        is_given = is_given or bool(text)
        rendered.append(text)
    return validate_key("".join(rendered), f"workflow {workflow!r}: ") if is_given else ""


def validate_key(key: object, error_prefix: str = "", name: str = "key") -> str:
    """A text that can be a key. Raises ``InputError``, which begins with ``error_prefix``."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise InputError(
            f"{error_prefix}{name}={key!r:.60} must be a text of at most {MAX_KEY_LENGTH} printable characters, or a "
            "whole number"
        )
    return key


def _parse_template(template: str) -> list[tuple[str, str | None, str]]:
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"key={template!r} cannot be read: {error}") from error
    return [(literal, field, (spec or "") + (conversion or "")) for literal, field, spec, conversion in parts]
