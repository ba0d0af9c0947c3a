"""Texts of the codec's errors: what happened, to which type, where inside the value, and what to do.

Messages contain types and paths, never the values themselves: an error ends up in logs and in the journal, and the
value that could not be recorded may be a secret or a gigabyte.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdfast.errors import UnreadableRecord, UnrecordableValue

get_type: Callable[[object], type[Any]] = type
"""``type(value)``, typed for values of unknown type."""


def format_type(annotation: object) -> str:
    """A type or annotation as people write it: ``Customer``, ``list[Row]``, ``int | None``."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return re.sub(r"(?:[A-Za-z_]\w*\.|<locals>\.)+(?=[A-Za-z_])", "", repr(annotation))


def capitalize_first(subject: str) -> str:
    """The subject as the beginning of a sentence: ``The output of step 'extract'``."""
    return f"{subject[:1].upper()}{subject[1:]}"


def format_path(path: Sequence[str]) -> str:
    """``'at [3].price '``, or nothing for the value itself."""
    return f"at {''.join(path)} " if path else ""


def location_to_path(location: Sequence[int | str]) -> list[str]:
    """Pydantic's error location as a path."""
    return [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]


def format_key(key: object) -> str:
    """A dict's key as a path shows it; long and unusual keys are cut."""
    text = repr(key) if type(key) in (str, int, bool, float, type(None)) else f"<{format_type(type(key))}>"
    return text if len(text) <= 60 else f"{text[:60]}…"


def make_unrecordable_error(subject: str, problem: str, hint: str) -> UnrecordableValue:
    """The error for a value that would not survive being recorded."""
    return UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {problem}. {hint}")


def make_unreadable_error(subject: str, annotation: object, error: ValidationError) -> UnreadableRecord:
    """The error for recorded bytes that do not fit the declared type."""
    first = error.errors(include_url=False, include_input=False)[0]
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return UnreadableRecord(
        f"{capitalize_first(subject)} cannot be read as `{format_type(annotation)}`: "
        f"{format_path(location_to_path(first['loc']))}{describe_validation_error(first)}{others}. If the type has "
        "changed since this was recorded, make it accept the older form too, for example by giving new fields a "
        "default."
    )


def describe_validation_error(error: ErrorDetails) -> str:
    """pydantic's message. A user's validator may quote the value, so its message is not passed on."""
    return "a validator refuses it" if error["type"] in ("value_error", "assertion_error") else error["msg"]


def suggest_fix(value: object, *, is_annotated: bool = False) -> str:
    """What a person can do about a value of this type."""
    kind = type(value)
    name = format_type(kind)
    if is_secret(value):
        return "Secrets are never recorded: let the step read it where it is used, from the environment or a vault."
    if inspect.isawaitable(value):
        return "It has not been awaited: is an `await` missing?"
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, (map, filter, zip, range)):
        return "It can be read only once, or is lazy: return a list of its items."
    if is_declarable(value):
        if is_annotated:
            return f"Name `{name}` in the annotation, on its own or as one of a union, so that it is recorded whole."
        return f"Annotate it with its type (a step: `-> {name}`), so that it is recorded as a `{name}`."
    for plain in (str, int, float, dict, list, tuple, set, bytes):
        if isinstance(value, plain):
            return f"Convert it to a plain `{plain.__name__}` first."
    return "Return plain data, a dataclass or a pydantic model instead, and keep objects like this one inside the step."


def is_secret(value: object) -> bool:
    """Whether this is a pydantic secret, which prints itself as stars, and would be recorded as stars."""
    return callable(getattr(cast("type[Any]", type(value)), "get_secret_value", None))


def is_declarable(value: object) -> bool:
    """Whether the value's own class tells pydantic how to record it."""
    kind = cast("type[Any]", type(value))
    return (
        isinstance(value, Enum)
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "__pydantic_core_schema__")
        or hasattr(kind, "__get_pydantic_core_schema__")
        or (isinstance(value, tuple) and hasattr(kind, "_fields"))
        or kind.__module__ in ("pathlib", "ipaddress", "fractions", "collections", "re")
    )


def truncate(text: str, max_length: int) -> str:
    """The text, with at most ``max_length`` characters."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
