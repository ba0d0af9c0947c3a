"""How large a recorded value may be."""

from __future__ import annotations

from holdfast.errors import ValueTooLarge

LARGEST = 64 * 1024 * 1024
"""In bytes, unless a runtime or client is told otherwise: every replay reads every value of its run."""


class SizeLimit(int):
    """A limit that knows what is to be done about values beyond it, where that is not to raise ``max_value=``."""

    way_out: str

    def __new__(cls, most: int, way_out: str) -> SizeLimit:
        """``way_out`` is a sentence."""
        self = super().__new__(cls, most)
        self.way_out = way_out
        return self


def check_size(data: bytes, what: str, most: int) -> bytes:
    """The same bytes, if they may be recorded. ``what`` is a phrase such as ``"the output of step 'extract'"``."""
    if len(data) <= most:
        return data
    if isinstance(most, SizeLimit):
        raise ValueTooLarge(f"{what} takes {_in_words(len(data))}, and at most {_in_words(most)} fit. {most.way_out}")
    raise ValueTooLarge(
        f"{what} takes {_in_words(len(data))}, and at most {_in_words(most)} are recorded: every takeover reads all "
        f"values of a run. Write it to a file or an object store and return its name, or raise the limit with "
        f"`max_value=` of the Runtime (and of the Client that sends it)."
    )


def _in_words(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
