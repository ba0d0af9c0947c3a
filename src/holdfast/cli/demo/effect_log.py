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

FOLDER_VARIABLE = "HOLDFAST_DEMO_FOLDER"
"""The environment variable that tells a worker of the demo where the file is."""
THINK_TIME_VARIABLE = "HOLDFAST_DEMO_PACE"
"""And how many seconds the scripted model thinks."""
MODEL_VARIABLE = "HOLDFAST_DEMO_MODEL"
"""And which real model to ask in place of the scripted one."""
FILE_NAME = "effects.log"


class CallEvent(NamedTuple):
    """One line of the file."""

    at: float
    pid: int
    status: str
    """``started``, ``finished`` or ``failed``"""
    turn: int = 0
    """Which turn of the conversation the model was asked for; 0 for a tool call."""
    tool: str = ""
    call_id: str = ""
    """The model's own name for a tool call."""
    input_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = -1
    """What the answer costs, in billionths of a dollar; -1: not known."""
    requested_tools: tuple[str, ...] = ()
    """The tools that the answer calls."""

    @property
    def usage(self) -> Usage:
        """What the answer has used."""
        unpriced = self.nano_usd < 0
        return Usage(1, self.input_tokens, self.output_tokens, 0, max(0, self.nano_usd), int(unpriced))


def append_event(status: str, **fields: Any) -> None:
    """Append a line, and be sure that it is on disk."""
    line = json.dumps({"at": time.time(), "pid": os.getpid(), "status": status, **fields}) + "\n"
    descriptor = os.open(Path(os.environ[FOLDER_VARIABLE]) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_events(folder: Path) -> list[CallEvent]:
    """All that has happened so far."""
    try:
        text = (folder / FILE_NAME).read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [_parse_event(json.loads(line)) for line in whole.splitlines()]


def _parse_event(data: dict[str, Any]) -> CallEvent:
    data["requested_tools"] = tuple(data.get("requested_tools", ()))
    return CallEvent(**data)
