"""How large a recorded value may be."""

from __future__ import annotations

from holdfast.errors import ValueTooLarge

DEFAULT_MAX_VALUE_BYTES = 64 * 1024 * 1024
"""In bytes, unless a runtime or client is told otherwise: every replay reads every value of its run."""


class SizeLimit(int):
    """A limit that knows what is to be done about values beyond it, where that is not to raise ``max_value=``."""

    hint: str

    def __new__(cls, max_bytes: int, hint: str) -> SizeLimit:
        """``hint`` is a sentence."""
        self = super().__new__(cls, max_bytes)
        self.hint = hint
        return self


def validate_size(data: bytes, subject: str, max_bytes: int) -> bytes:
    """The same bytes, if they may be recorded. ``subject`` is a phrase such as ``"the output of step 'extract'"``."""
    if len(data) <= max_bytes:
        return data
    if isinstance(max_bytes, SizeLimit):
        raise ValueTooLarge(
            f"{subject} takes {_format_size(len(data))}, and at most {_format_size(max_bytes)} fit. {max_bytes.hint}"
        )
    raise ValueTooLarge(
        f"{subject} takes {_format_size(len(data))}, and at most {_format_size(max_bytes)} are recorded: every "
        "takeover reads all "
        f"values of a run. Write it to a file or an object store and return its name, or raise the limit with "
        f"`max_value=` of the Runtime (and of the Client that sends it)."
    )


def _format_size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
