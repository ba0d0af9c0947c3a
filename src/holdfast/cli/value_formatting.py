"""Recorded values and tracebacks in words, for a terminal."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.codec import preview_arguments
from holdfast.reports.formatting import value_to_json
from holdfast.services.json_form import UnreadableValue

_INTERNAL_FRAME = re.compile(r"[/\\](holdfast[/\\](core|engine|authoring|agents|codec)|concurrent[/\\]futures)[/\\]")
"""What stands between the user's lines in a traceback: this package, and the pool that plain steps run in."""


def list_user_frames(traceback: str) -> list[str]:
    """The places in a recorded traceback, with their lines of code, without those in Holdfast itself."""
    kept: list[str] = []
    keeping = False
    for line in traceback.splitlines():
        if line.startswith('  File "'):
            keeping = _INTERNAL_FRAME.search(line) is None
        elif not line.startswith("    ") or not line.strip(" ^~"):
            continue
        if keeping:
            kept.append(line[2:])
    return kept


def format_brief(value: Any) -> str:
    """A recorded value in a few words."""
    return value if isinstance(value, UnreadableValue) else preview_arguments((), (value,), {})


def format_inputs(inputs: Any) -> str:
    """A run's inputs as ``customer='acme', n=3``; what looks like a credential is not shown."""
    return (
        preview_arguments((), (), cast("dict[str, Any]", inputs)) if isinstance(inputs, dict) else format_brief(inputs)
    )


def format_pretty(value: Any, *, is_agent: bool = False) -> str:
    """A recorded value as indented JSON; the answer of an agent that is a text, as it is."""
    if isinstance(value, str) and is_agent:
        return value
    return json.dumps(value_to_json(value), indent=2, ensure_ascii=False)
