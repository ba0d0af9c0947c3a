"""The maximum size of a recorded value."""

from __future__ import annotations

from holdfast.errors import ValueTooLarge

DEFAULT_MAX_VALUE_BYTES = 64 * 1024 * 1024
"""The default, in bytes. Every replay reads every value of its run."""


class SizeLimit(int):
    """A limit with its own hint for larger values, where raising ``max_value=`` would not help."""

    hint: str

    def __new__(cls, max_bytes: int, hint: str) -> SizeLimit:
        """``hint`` is a sentence for the error message."""
        self = super().__new__(cls, max_bytes)
        self.hint = hint
        return self


def validate_size(data: bytes, subject: str, max_bytes: int) -> bytes:
    """Return the bytes if they may be recorded. ``subject`` names them, as in ``"the output of step 'extract'"``."""
    if len(data) <= max_bytes:
        return data
    if isinstance(max_bytes, SizeLimit):
        raise ValueTooLarge(
            f"{subject} takes {_format_size(len(data))}, and at most {_format_size(max_bytes)} fit. {max_bytes.hint}"
        )
    raise ValueTooLarge(
        f"{subject} takes {_format_size(len(data))}, and at most {_format_size(max_bytes)} are recorded: every "
        f"takeover reads all values of a run. Write it to a file or an object store and return its name, or raise the "
        f"limit with `max_value=` of the Runtime (and of the Client that sends it)."
    )


def _format_size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
