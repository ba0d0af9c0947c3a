"""Where in the user's code a suspended coroutine stands."""

from __future__ import annotations

import asyncio
import os
from types import FrameType
from typing import Any

_OURS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(asyncio.__file__) + os.sep,
)


def waiting_at(coro: Any) -> str:
    """``file:line in function`` of the innermost frame of user code in a chain of awaits, or an empty string."""
    place = ""
    for _ in range(1000):
        frame: FrameType | None = (
            getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None) or getattr(coro, "gi_frame", None)
        )
        if frame is not None and not frame.f_code.co_filename.startswith(_OURS):
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None) or getattr(coro, "gi_yieldfrom", None)
        if coro is None:
            break
    return place


def user_frame(frame: FrameType | None) -> str:
    """``file:line in function`` of the innermost frame of user code on a running stack."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
