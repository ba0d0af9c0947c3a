"""Text that a store can write: all but half characters (lone surrogates, for example from bad JSON), which have no
UTF-8.

Code that stores a text replaces them or refuses the text. No stored name contains one, so a lookup of such a name finds
nothing.
"""

from __future__ import annotations

from holdfast.errors import UsageError

_CONTEXT_CHARS = 30


def is_encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """The text with question marks for half characters."""
    return text.encode(errors="replace").decode()


def check_encodable(text: str, label: str) -> None:
    """Raise ``UsageError`` if a text cannot be written as UTF-8; ``label`` begins the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise make_surrogate_error(error, label) from None


def make_surrogate_error(error: UnicodeEncodeError, label: str = "the text") -> UsageError:
    """The error for such a text."""
    text, at = error.object, error.start
    start, end = max(0, at - _CONTEXT_CHARS), at + _CONTEXT_CHARS
    excerpt = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return UsageError(
        f"{label} {excerpt!r} contains half of a character (a lone surrogate, at position {at}), which cannot be "
        f"written as UTF-8, and so cannot be kept. Leave it out, or replace it."
    )
