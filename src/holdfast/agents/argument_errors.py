"""Why a call was refused, in words from which a model can correct itself.

One line for each fault, with the path to it. The words are bounded, whatever was sent: they are recorded, and the model
reads them in every turn that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from holdfast.codec import preview
from holdfast.codec.formatting import cut

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MOST_FAULTS = 8
_LONGEST_FAULTS = 650
_LONGEST_FAULT = 200
_LONGEST_NAME = 60
_LONGEST_LIST = 200


def refusal(tool: str, faults: Sequence[str], parameters: Sequence[str], more: int = 0) -> str:
    """The arguments of a call do not fit: all that is told of it, in at most about 1,000 characters."""
    lines: list[str] = []
    room = _LONGEST_FAULTS
    for fault in faults:
        line = f"- {cut(fault, _LONGEST_FAULT)}"
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
    more += len(faults) - len(lines)
    if more:
        lines.append(f"- and {more} more")
    known = f"Its parameters are: {listed(parameters)}." if parameters else "It has no parameters: pass {}."
    told = f"The arguments do not fit the tool {tool!r}, which was not called:"
    return "\n".join((told, *lines, f"{known} Correct the arguments."))


def faults_of(error: ValidationError, sent: Any, parameters: Sequence[str]) -> tuple[list[str], int]:
    """What pydantic finds wrong with what was ``sent``, a line for each place, and how much more there is."""
    found: dict[str, tuple[list[str], str]] = {}
    all_faults = error.errors(include_url=False)
    for index, fault in enumerate(all_faults):
        if fault["type"] == "json_invalid":
            return [unreadable(fault["msg"].removeprefix("Invalid JSON: "))], 0
        if not fault["loc"]:
            return [unreadable("they are no JSON object")], 0
        path = _path(fault, sent)
        if path not in found and len(found) == _MOST_FAULTS:
            more = len(all_faults) - index
            break
        words, shown = _words(fault, path, parameters)
        found.setdefault(path, ([], shown))[0].append(words)
    else:
        more = 0
    return [f"{path} {' or '.join(dict.fromkeys(words))}{shown}" for path, (words, shown) in found.items()], more


def unreadable(problem: str) -> str:
    """What is told of arguments that are not even JSON, or no object."""
    return f"they cannot be read: {problem}. Send one JSON object that has the parameters by name."


def stranger(name: str, parameters: Sequence[str]) -> str:
    """What is told of a name that is no parameter."""
    close = get_close_matches(name[:_LONGEST_NAME], parameters, n=1)
    return f"is not a parameter{f'; did you mean {close[0]!r}?' if close else ''}"


def listed(names: Sequence[str]) -> str:
    """Names, as many as there is room for."""
    shown: list[str] = []
    room = _LONGEST_LIST
    for name in names:
        room -= len(name) + 2
        if room < 0 and shown:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def _path(fault: ErrorDetails, sent: Any) -> str:
    """Where the fault is: ``filters[2].name``.

    Pydantic also names the member of a union that it tried; the way through what was sent leaves those out.
    """
    path = ""
    place = fault["loc"]
    for index, part in enumerate(place):
        is_missing = fault["type"] in ("missing", "missing_argument") and index == len(place) - 1
        if isinstance(part, int) and isinstance(sent, list) and 0 <= part < len(cast("list[Any]", sent)):
            sent = cast("list[Any]", sent)[part]
            path += f"[{part}]"
        elif is_missing or (isinstance(sent, dict) and part in sent):
            sent = None if is_missing else cast("dict[Any, Any]", sent)[part]
            name = cut(str(part), _LONGEST_NAME)
            path += f".{name}" if path else name
    return cut(path, 2 * _LONGEST_NAME)


def _words(fault: ErrorDetails, path: str, parameters: Sequence[str]) -> tuple[str, str]:
    """What is wrong there, and what was there instead."""
    kind = fault["type"]
    if kind in ("missing", "missing_argument"):
        return "is missing", ""
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"):
        is_argument = len(fault["loc"]) == 1
        return stranger(str(fault["loc"][0]), parameters) if is_argument else "is not a field there", ""
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    should = message.removeprefix("Input ")
    words = should if should.startswith("should ") else f"is refused: {message}"
    return cut(words, _LONGEST_FAULT - 60), it_was(path, fault["input"])


def it_was(path: str, value: Any) -> str:
    """What was there instead, told behind what is wrong; not of what its path calls a secret."""
    shown = preview((), (), {path: value}, limit=len(path.encode()) + 80).removeprefix(f"{path}=")
    return "" if shown == "***" else f"; it was {shown}"
