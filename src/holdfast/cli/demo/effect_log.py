"""The file that stands for the world outside the database: one line for each start and each end of a call.

The model writes to it when it is asked and when it answers, and so does every tool. It is only ever appended to, and
every line is on disk before the call goes on. So after a crash it tells what really happened, whatever the journal
says.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.admission.usage import Usage

FOLDER = "HOLDFAST_DEMO_FOLDER"
"""The environment variable that tells a worker of the demo where the file is."""
PACE = "HOLDFAST_DEMO_PACE"
"""And how many seconds the scripted model thinks."""
MODEL = "HOLDFAST_DEMO_MODEL"
"""And which real model to ask in place of the scripted one."""
FILE = "effects.log"


class Trace(NamedTuple):
    """One line of the file."""

    at: float
    pid: int
    what: str
    """``started``, ``finished`` or ``failed``"""
    turn: int = 0
    """Which turn of the conversation the model was asked for; 0 for a tool call."""
    tool: str = ""
    call: str = ""
    """The model's own name for a tool call."""
    input_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = -1
    """What the answer costs, in billionths of a dollar; -1: not known."""
    wants: tuple[str, ...] = ()
    """The tools that the answer calls."""

    @property
    def usage(self) -> Usage:
        """What the answer has used."""
        unpriced = self.nano_usd < 0
        return Usage(1, self.input_tokens, self.output_tokens, 0, max(0, self.nano_usd), int(unpriced))


def leave_trace(what: str, **told: Any) -> None:
    """Append a line, and be sure that it is on disk."""
    line = json.dumps({"at": time.time(), "pid": os.getpid(), "what": what, **told}) + "\n"
    descriptor = os.open(Path(os.environ[FOLDER]) / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_traces(folder: Path) -> list[Trace]:
    """All that has happened so far."""
    try:
        text = (folder / FILE).read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [_trace(json.loads(line)) for line in whole.splitlines()]


def _trace(told: dict[str, Any]) -> Trace:
    told["wants"] = tuple(told.get("wants", ()))
    return Trace(**told)
