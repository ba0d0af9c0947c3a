"""What scripted models answer, and what they were sent."""

from __future__ import annotations

from typing import Any

from holdfast.testing import call


def get_sent_contents(model: Any, turn: int = -1) -> list[Any]:
    """The contents of the newest message that the model was sent in a turn."""
    return [part.content for part in model.calls[turn].last_message.parts]


def write_plan(**statuses: str) -> Any:
    """The model writes a plan: a status for each task."""
    return call("write_plan", items=[{"task": task, "status": status} for task, status in statuses.items()])
