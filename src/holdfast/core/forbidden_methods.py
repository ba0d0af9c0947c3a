"""Methods of an event loop that a run's loop refuses; the error says what to do instead."""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from holdfast.core.loop import RunLoop

_DEFAULT_ADVICE = "do network and process work in a step"
_ADVICE_BY_METHOD = {
    "run_in_executor": "run blocking code in a step (a plain `def` step runs in a thread)",
    "set_default_executor": "run blocking code in a step",
    "run_forever": "await instead",
    "run_until_complete": "await instead",
    "stop": "return from the workflow instead",
    "close": "return from the workflow instead",
    "set_task_factory": "tasks of a workflow are made by Holdfast",
    "set_exception_handler": "catch exceptions where they are raised",
    "shutdown_asyncgens": "generators are closed when the workflow ends",
    "shutdown_default_executor": "run blocking code in a step",
    "add_signal_handler": "handle process signals outside the workflow",
    "remove_signal_handler": "handle process signals outside the workflow",
}


def forbid_undefined_methods(loop: type[RunLoop]) -> None:
    """Give the class a refusal for every method of an event loop that it does not define itself."""
    for name in dir(asyncio.AbstractEventLoop):
        if not name.startswith("_") and name not in vars(loop):
            setattr(loop, name, _make_refusing_method(name, _ADVICE_BY_METHOD.get(name, _DEFAULT_ADVICE)))


def _make_refusing_method(name: str, advice: str) -> Callable[..., NoReturn]:
    def refused(self: RunLoop, *args: object, **kwargs: object) -> NoReturn:
        self.refuse(f"workflow code called `loop.{name}`", advice)

    refused.__name__ = name
    return refused


def find_unordered_caller() -> str | None:
    """The function of asyncio that calls ``create_task``, if it creates its tasks in an order that does not replay."""
    # The original `as_completed` makes tasks of a *set* of coroutines. `asyncio_overrides` replaces it, but a name that
    # was imported before still points to it, so the stack decides. Only calls by `ensure_future` are checked further.
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if frame.f_code.co_name not in ("_ensure_future", "ensure_future"):
        return None
    for _ in range(4):
        back = frame.f_back
        if back is None:
            return None
        frame = back
        if frame.f_code.co_filename == tasks.__file__ and "ascompleted" in frame.f_code.co_qualname.lower().replace(
            "_", ""
        ):
            return "as_completed"
    return None
