"""Where in the user's code something happens: in a suspended coroutine, or on a running stack.

People know their own files. A frame is the user's if it belongs neither to Holdfast nor to the standard library nor to
an installed package. An application may itself be installed as a package. If no frame is the user's by this rule, the
package of the outermost frame counts as the application: it called into all the others.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import Any

_HOLDFAST_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INTERNAL_PREFIXES = (_HOLDFAST_DIR, os.path.dirname(asyncio.__file__) + os.sep, "<frozen ")
_LOOP_FILE = os.path.join(_HOLDFAST_DIR, "core", "loop.py")
_STDLIB_DIRS = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")})
_PACKAGE_DIR_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def locate_await(coro: Any) -> str:
    """``file:line in function`` of the user's code at the end of a chain of awaits, or an empty string."""
    return _format_frame(_find_user_frame(reversed(list(_iter_await_chain(coro)))))


def locate_user_code(frame: FrameType | None, origin: str = "") -> str:
    """``file:line in function`` of the user's code on a running stack; ``frame`` is the innermost frame.

    ``origin`` is the ``locate_task_origin`` of the running task: the answer if the stack has only code of libraries.
    """
    found = _find_user_frame(_iter_stack(frame))
    return origin if origin and (found is None or _get_frame_package(found)) else _format_frame(found)


def is_library_code(coro: Any) -> bool:
    """Whether a coroutine belongs to an installed package or the standard library, and not to Holdfast."""
    file = _get_source_file(coro)
    return not file.startswith(_HOLDFAST_DIR) and bool(_get_package(file))


def locate_task_origin(coro: Any, frame: FrameType | None, origin: str = "") -> str:
    """Where the user's code creates a task of a library's coroutine: the task's own stack will not show that.

    ``frame`` is the innermost frame of the caller, ``origin`` the origin of the task that creates this one.
    """
    found = _find_user_frame(_iter_stack(frame))
    if found is None or _get_frame_package(found) == _get_package(_get_source_file(coro)):
        return origin
    return origin if origin and _get_frame_package(found) else _format_frame(found)


def format_user_stack(frame: FrameType | None, max_frames: int = 5) -> str:
    """The innermost frames of user code on a running stack, a line each, the innermost last."""
    lines: list[str] = []
    while frame is not None and len(lines) < max_frames:
        if not frame.f_code.co_filename.startswith(_INTERNAL_PREFIXES):
            lines.append(f"  {_format_frame(frame)}")
        frame = frame.f_back
    return "\n".join(reversed(lines))


def _iter_await_chain(coro: Any) -> Iterator[FrameType]:
    """The frames of a chain of awaits, the outermost first."""
    for _ in range(1000):
        frame: FrameType | None = (
            getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None) or getattr(coro, "gi_frame", None)
        )
        if frame is not None:
            yield frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None) or getattr(coro, "gi_yieldfrom", None)
        if coro is None:
            return


def _iter_stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a stack, the innermost first, up to the turn of a run's loop: the rest is not code of the run."""
    while frame is not None and not (frame.f_code.co_filename == _LOOP_FILE and frame.f_code.co_name == "drain"):
        yield frame
        frame = frame.f_back


def _find_user_frame(frames: Iterable[FrameType]) -> FrameType | None:
    """The innermost frame of the user's code; ``frames`` begin with the innermost."""
    installed: list[FrameType] = []
    for frame in frames:
        if frame.f_code.co_filename.startswith(_INTERNAL_PREFIXES):
            continue
        if not _get_frame_package(frame):
            return frame
        installed.append(frame)
    return next((frame for frame in installed if _get_frame_package(frame) == _get_frame_package(installed[-1])), None)


def _format_frame(frame: FrameType | None) -> str:
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _get_source_file(coro: Any) -> str:
    code = getattr(coro, "cr_code", None) or getattr(coro, "gi_code", None)
    return "" if code is None else code.co_filename


def _get_frame_package(frame: FrameType) -> str:
    return _get_package(frame.f_code.co_filename)


@cache
def _get_package(file: str) -> str:
    """The path of the installed package or standard library that a file belongs to, or an empty string."""
    for part in _PACKAGE_DIR_PARTS:
        if part in file:
            before, _, inside = file.rpartition(part)
            return before + part + inside.split(os.sep)[0]
    return next((library for library in _STDLIB_DIRS if file.startswith(library)), "")
