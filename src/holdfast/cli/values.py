"""Values and steps as people type them."""

from __future__ import annotations

import json
from typing import Any

import click


def parse_json_or_text(text: str) -> Any:
    """What is no JSON is taken for a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_json_option(option: str, text: str) -> Any:
    """For what becomes an answer, or the output of a step: a mistyped object must not become a string there."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(
            f"{option} is no JSON ({error}): {text}\nA string needs its quotation marks, as in {option} '\"yes\"'."
        ) from None


def parse_step(text: str) -> int | str:
    """Numbers are what ``show`` tells; anything else is a name."""
    return int(text) if text.isdecimal() else text
