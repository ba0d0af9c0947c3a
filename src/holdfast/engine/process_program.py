"""The program that all code of this process belongs to, if there is one (``holdfast run``).

A module of its own, which imports nothing: a process whose code records nothing does not import the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.program_run import ProgramRun

find_process_program: Callable[[], ProgramRun] | None = None
"""Returns the program's run; called when code makes its first call."""


def set_process_program(find: Callable[[], ProgramRun] | None) -> None:
    """Let all code of this process belong to one program."""
    global find_process_program
    find_process_program = find


if hasattr(os, "register_at_fork"):  # a forked child is another process, whose calls are not recorded
    os.register_at_fork(after_in_child=lambda: set_process_program(None))
