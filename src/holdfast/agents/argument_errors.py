"""Error messages for invalid tool arguments, from which a model can correct itself.

One line for each error, with its path. The length is bounded, whatever the arguments are: the message is recorded, and
the model reads it in every turn that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from holdfast.codec import preview_arguments
from holdfast.codec.formatting import truncate

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MAX_ERRORS = 8
_MAX_ERRORS_CHARS = 650
_MAX_ERROR_CHARS = 200
_MAX_NAME_CHARS = 60
_MAX_LIST_CHARS = 200


def format_argument_errors(tool: str, errors: Sequence[str], parameters: Sequence[str], more_count: int = 0) -> str:
    """The whole message for invalid arguments, of at most about 1,000 characters."""
    lines: list[str] = []
    room = _MAX_ERRORS_CHARS
    for error in errors:
        line = f"- {truncate(error, _MAX_ERROR_CHARS)}"
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
    more_count += len(errors) - len(lines)
    if more_count:
        lines.append(f"- and {more_count} more")
    known = f"Its parameters are: {format_names(parameters)}." if parameters else "It has no parameters: pass {}."
    heading = f"The arguments do not fit the tool {tool!r}, which was not called:"
    return "\n".join((heading, *lines, f"{known} Correct the arguments."))


def list_argument_errors(error: ValidationError, sent: Any, parameters: Sequence[str]) -> tuple[list[str], int]:
    """A line for each path with validation errors in the ``sent`` arguments, and the number of further errors."""
    found: dict[str, tuple[list[str], str]] = {}
    details = error.errors(include_url=False)
    more_count = 0
    for index, detail in enumerate(details):
        if detail["type"] == "json_invalid":
            return [describe_unreadable(detail["msg"].removeprefix("Invalid JSON: "))], 0
        if not detail["loc"]:
            return [describe_unreadable("they are no JSON object")], 0
        path = _format_path(detail, sent)
        if path not in found and len(found) == _MAX_ERRORS:
            more_count = len(details) - index
            break
        words, shown = _describe_error(detail, path, parameters)
        found.setdefault(path, ([], shown))[0].append(words)
    return [f"{path} {' or '.join(dict.fromkeys(words))}{shown}" for path, (words, shown) in found.items()], more_count


def describe_unreadable(problem: str) -> str:
    """The error for arguments that are not a JSON object."""
    return f"they cannot be read: {problem}. Send one JSON object that has the parameters by name."


def describe_unknown_parameter(name: str, parameters: Sequence[str]) -> str:
    """The error for a name that is not a parameter."""
    close = get_close_matches(name[:_MAX_NAME_CHARS], parameters, n=1)
    return f"is not a parameter{f'; did you mean {close[0]!r}?' if close else ''}"


def format_names(names: Sequence[str]) -> str:
    """A list of names, cut to a bounded length."""
    shown: list[str] = []
    room = _MAX_LIST_CHARS
    for name in names:
        room -= len(name) + 2
        if room < 0 and shown:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def _format_path(error: ErrorDetails, sent: Any) -> str:
    """The path of an error: ``filters[2].name``.

    Pydantic's location also names the member of a union that it tried. Following the ``sent`` data leaves these out.
    """
    path = ""
    location = error["loc"]
    for index, part in enumerate(location):
        is_missing = error["type"] in ("missing", "missing_argument") and index == len(location) - 1
        if isinstance(part, int) and isinstance(sent, list) and 0 <= part < len(cast("list[Any]", sent)):
            sent = cast("list[Any]", sent)[part]
            path += f"[{part}]"
        elif is_missing or (isinstance(sent, dict) and part in sent):
            sent = None if is_missing else cast("dict[Any, Any]", sent)[part]
            name = truncate(str(part), _MAX_NAME_CHARS)
            path += f".{name}" if path else name
    return truncate(path, 2 * _MAX_NAME_CHARS)


def _describe_error(error: ErrorDetails, path: str, parameters: Sequence[str]) -> tuple[str, str]:
    kind = error["type"]
    if kind in ("missing", "missing_argument"):
        return "is missing", ""
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"):
        if len(error["loc"]) == 1:
            return describe_unknown_parameter(str(error["loc"][0]), parameters), ""
        return "is not a field there", ""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    rule = message.removeprefix("Input ")
    words = rule if rule.startswith("should ") else f"is refused: {message}"
    return truncate(words, _MAX_ERROR_CHARS - 60), describe_value(path, error["input"])


def describe_value(path: str, value: Any) -> str:
    """The end of an error line: the value that was sent, unless the name in its path means a secret."""
    shown = preview_arguments((), (), {path: value}, max_bytes=len(path.encode()) + 80).removeprefix(f"{path}=")
    return "" if shown == "***" else f"; it was {shown}"
