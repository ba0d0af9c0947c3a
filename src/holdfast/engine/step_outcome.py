"""The outcome of a command, as its executor reports it to the driver, which records it."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.admission.usage import Usage
from holdfast.core.commands import UNDECODED
from holdfast.core.records import make_constructor
from holdfast.stores.memories import MemoryChange


class StepOutcome(NamedTuple):
    """How a step, or another command, ended."""

    ok: bool
    payload: bytes | None
    """The encoded output when ``ok``, the encoded error when not."""
    started_at: float
    """When the attempt that decided the outcome began."""
    attempts: int
    preview: str
    """The arguments, shortened, for people to read."""
    value: Any = UNDECODED
    """The value in ``payload``, if it is decoded already."""
    has_attempt_row: bool = False
    usage: Usage | None = None
    model: str = ""
    memory_change: MemoryChange | None = None


make_step_outcome = make_constructor(StepOutcome)
