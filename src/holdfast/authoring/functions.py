"""Reading the functions that users decorate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from holdfast.errors import DefinitionError


def place_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, for messages."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{function.__name__!r} ({place_of(function)}): an annotation cannot be resolved ({error}). Holdfast "
            f"needs it to "
            f"record values by their type: import it at the top of the module, outside `if TYPE_CHECKING:`."
        ) from None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine (also for callable objects and partials)."""
    while hasattr(function, "func"):
        function = function.func  # type: ignore[attr-defined]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
