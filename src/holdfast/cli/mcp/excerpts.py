"""Recorded texts and values in a size that suits a model's context, without what looks like a credential.

What is cut says how to read the rest. Credentials are removed before a text is cut, so that no half of one is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from holdfast.codec.argument_preview import is_secret_name
from holdfast.codec.redaction import redact_secrets
from holdfast.reports.formatting import format_count, value_to_json

T = TypeVar("T", bound=BaseModel)

MAX_PAGE_CHARS = 24_000
"""Maximum length of a list in a result, as JSON."""


def excerpt_text(text: str, max_chars: int, rest: str = "") -> str:
    """The beginning of a text; ``rest`` is the call that reads all of it."""
    text = redact_secrets(text)
    if len(text) <= max_chars:
        return text
    how = f"; all of it: {rest}" if rest else ""
    return f"{text[:max_chars]}… [cut, {len(text) - max_chars:,} more characters{how}]"


def excerpt_value(value: Any, max_chars: int, rest: str = "") -> Any:
    """A recorded value as JSON data; a large one as the beginning of its text."""
    text = format_value(value)
    if len(text) > max_chars:
        return excerpt_text(text, max_chars, rest)
    return text if isinstance(value, str) else json.loads(text)


def format_value(value: Any) -> str:
    """A text as it is, and any other recorded value as JSON, in full."""
    if isinstance(value, str):
        return redact_secrets(value)
    return json.dumps(_redact(value_to_json(value)), ensure_ascii=False)


def _redact(value: Any, *, is_secret: bool = False) -> Any:
    if isinstance(value, str):
        return "***" if is_secret else redact_secrets(value)
    if isinstance(value, list):
        return [_redact(item, is_secret=is_secret) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {key: _redact(item, is_secret=is_secret or is_secret_name(key)) for key, item in entries}
    return value


def fit_page(items: Sequence[T], *, keep_last: bool = False) -> list[T]:
    """The first items that fit into a result, or the last ones; at least one."""
    kept: list[T] = []
    room = MAX_PAGE_CHARS
    for item in reversed(items) if keep_last else items:
        room -= len(item.model_dump_json(exclude_defaults=True))
        if room < 0 and kept:
            break
        kept.append(item)
    return kept[::-1] if keep_last else kept


def excerpt_items(items: Sequence[Any], max_count: int, format_item: Callable[[Any], str], noun: str) -> list[str]:
    """A line for each of the first items, and one for the number of the others."""
    lines = [format_item(item) for item in items[:max_count]]
    return [*lines, f"… {format_count(len(items) - max_count, f'more {noun}')}"] if len(items) > max_count else lines
