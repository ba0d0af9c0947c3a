"""Checks the names of tools in the settings of a durable agent.

A misspelled name would take the effect ``once`` from a tool without a word. Some tools are known only when the agent
runs, such as those of an MCP server. If an agent has such tools, an unknown name is not refused; a name that is nearly
that of a known tool causes a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from difflib import get_close_matches

from holdfast.errors import DefinitionError

_FIRST_CALLER = 3
_MIN_SIMILARITY = 0.75


def check_tool_names(
    given: Collection[str],
    known: Collection[str],
    subject: str,
    *,
    option: str = "effects=",
    noun: str = "tool",
    is_complete: bool,
) -> None:
    """Raise ``DefinitionError`` for a name that is not one of a tool.

    Args:
        given: the names in the settings.
        known: the names of the tools.
        subject: whose tools these are, for messages.
        option: the argument with the settings.
        noun: what has a name.
        is_complete: whether there are no other tools than the known ones.
    """
    missing = sorted(set(given) - set(known))
    if not missing:
        return
    if is_complete:
        names = ", ".join(sorted(known)) or "none"
        raise DefinitionError(
            f"{subject} has no {noun} {', '.join(map(repr, missing))}, which {option} names. It has: {names}"
        )
    for name in missing:
        if similar := get_close_matches(name, known, 1, _MIN_SIMILARITY):
            warnings.warn(
                f"{subject} has no {noun} {name!r} so far, which {option} names. Did you mean {similar[0]!r}?",
                stacklevel=_FIRST_CALLER,
            )
