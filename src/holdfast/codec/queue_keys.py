"""The key of a run in its queue, from a template over its inputs: ``{customer}``.

Keys are like ids (see ``run_ids``): every process that starts a run gives it the same key, with the code of its
workflow or without. But an input may be ``None`` or left out: then the run has no key. A client must know the value of
an input that was left out, so a template is announced with the defaults of its workflow in place of formats:
``{customer:acme}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast
from urllib.parse import quote, unquote

from holdfast.codec.canonical import decode_plain
from holdfast.codec.run_ids import NOT_GIVEN, format_scalar, get_input, parse_template
from holdfast.errors import InputError

MAX_KEY_LENGTH = 200


def prepare_key_template(
    template: str, parameters: Collection[str], defaults: Mapping[str, object], *, accepts_any: bool = False
) -> str:
    """The announced form of a template. Raises ``InputError`` if it is invalid, or names an unknown input."""
    announced: list[str] = []
    for literal, field, _ in parse_template(template, "key=", "{customer}"):
        announced.append(literal.replace("{", "{{").replace("}", "}}"))
        if field is None:
            continue
        if field not in parameters and not accepts_any:
            inputs = ", ".join(parameters) or "none"
            raise InputError(f"key={template!r} names {field!r}, which is no input of the workflow (inputs: {inputs})")
        default = defaults.get(field)
        text = None if default is None else format_scalar(default)
        announced.append(f"{{{field}}}" if text is None else f"{{{field}:{quote(text, safe='')}}}")
    return "".join(announced)


def render_key(template: str, data: bytes, workflow: str) -> str:
    """The key for encoded inputs by an announced template; ``""``: none of its inputs was given."""
    inputs = cast("dict[str, Any]", decode_plain(data))
    rendered: list[str] = []
    is_given = False
    for literal, field, spec in parse_template(template, "key=", "{customer}", allow_formats=True):
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
    """Check a key, and return it as text. Raises ``InputError``, which begins with ``error_prefix``."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise InputError(
            f"{error_prefix}{name}={key!r:.60} must be a text of at most {MAX_KEY_LENGTH} printable characters, or a "
            "whole number"
        )
    return key
