"""Recorded values and tracebacks in words, for a terminal."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.codec import preview
from holdfast.reports.formatting import jsonable
from holdfast.reports.types import Unreadable

_INTERNAL = re.compile(r"[/\\](holdfast[/\\](core|engine|authoring|agents|codec)|concurrent[/\\]futures)[/\\]")
"""What stands between the user's lines in a traceback: this package, and the pool that plain steps run in."""


def own_frames(traceback: str) -> list[str]:
    """The places in a recorded traceback, with their lines of code, without those in Holdfast itself."""
    kept: list[str] = []
    keeping = False
    for line in traceback.splitlines():
        if line.startswith('  File "'):
            keeping = _INTERNAL.search(line) is None
        elif not line.startswith("    ") or not line.strip(" ^~"):
            continue
        if keeping:
            kept.append(line[2:])
    return kept


def brief(value: Any) -> str:
    """A recorded value in a few words."""
    return value if isinstance(value, Unreadable) else preview((), (value,), {})


def brief_inputs(inputs: Any) -> str:
    """A run's inputs as ``customer='acme', n=3``; what looks like a credential is not shown."""
    return preview((), (), cast("dict[str, Any]", inputs)) if isinstance(inputs, dict) else brief(inputs)


def pretty(value: Any, *, of_agent: bool = False) -> str:
    """A recorded value as indented JSON; the answer of an agent that is a text, as it is."""
    if isinstance(value, str) and of_agent:
        return value
    return json.dumps(jsonable(value), indent=2, ensure_ascii=False)
