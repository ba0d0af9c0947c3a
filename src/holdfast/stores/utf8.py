"""Text that a store can keep: all but halves of characters (lone surrogates, say from bad JSON), which have no UTF-8.

Whoever keeps such a text replaces them, or refuses it. Nothing that is kept has one in its name, so whatever is looked
for under such a name is not there.
"""

from __future__ import annotations

from holdfast.errors import UsageError

_AROUND = 30


def is_proper(text: str) -> bool:
    """Whether this can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def proper(text: str) -> str:
    """The text with question marks for what is no character."""
    return text.encode(errors="replace").decode()


def check_proper(text: str, what: str) -> None:
    """Raises ``UsageError`` if this cannot be written as UTF-8; ``what`` it is begins the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise improper(error, what) from None


def improper(error: UnicodeEncodeError, what: str = "the text") -> UsageError:
    """What to raise for such a text."""
    text, at = error.object, error.start
    begin, end = max(0, at - _AROUND), at + _AROUND
    shown = f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
    return UsageError(
        f"{what} {shown!r} contains half of a character (a lone surrogate, at position {at}), which cannot be written "
        f"as UTF-8, and so cannot be kept. Leave it out, or replace it."
    )
