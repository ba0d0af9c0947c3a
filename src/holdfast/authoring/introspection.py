"""Reading the functions and classes that users decorate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_type_hints

from holdfast.errors import DefinitionError


class SourceLocation(NamedTuple):
    """Where something was defined."""

    file: str
    line: int
    qualname: str


def find_source_location(function: Callable[..., Any]) -> SourceLocation | None:
    """Where a function was defined; for the function that runs a class workflow, where the class was defined."""
    known: SourceLocation | None = getattr(function, "holdfast_defined_at", None)
    if known is not None:
        return known
    code = getattr(function, "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno, code.co_qualname)


def find_class_location(cls: type[Any]) -> SourceLocation:
    """Where a class that is being decorated was defined."""
    # Before Python 3.13 a class does not know its line, but the decorator's caller is there.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            line: int = getattr(cls, "__firstlineno__", frame.f_lineno)
            return SourceLocation(frame.f_code.co_filename, line, cls.__qualname__)
        frame = frame.f_back
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or f"<{cls.__module__}>"
    return SourceLocation(file, getattr(cls, "__firstlineno__", 1), cls.__qualname__)


def attribute_to_caller(function: Any, name: str, *skip_paths: str) -> dict[str, Any]:
    """Give the function of an agent the agent's name, and the source location that defines the agent.

    That is the innermost caller with a file that begins with none of ``skip_paths``. Returns the globals there.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skip_paths):
        frame = frame.f_back
    line = frame.f_lineno
    function.__name__ = function.__qualname__ = name
    function.__module__ = frame.f_globals.get("__name__", function.__module__)
    function.holdfast_defined_at = SourceLocation(frame.f_code.co_filename, line, f"agent {name} at line {line}")
    return frame.f_globals


def format_location(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, for messages."""
    found = find_source_location(function)
    return repr(function) if found is None else f"{found.file}:{found.line}"


def resolve_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{function.__name__!r} ({format_location(function)}): an annotation cannot be resolved ({error}). "
            "Holdfast needs it to record values by their type: import it at the top of the module, outside `if "
            "TYPE_CHECKING:`."
        ) from None


def is_function(value: object) -> bool:
    """Whether it is a function or a method, and not another callable."""
    return not isinstance(value, partial) and inspect.isroutine(value)  # since Python 3.14, a partial is a routine, too


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine (also for callable objects and partials)."""
    while hasattr(function, "func"):
        function = function.func  # type: ignore[attr-defined]
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
