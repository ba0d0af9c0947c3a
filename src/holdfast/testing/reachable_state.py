"""The state that a workflow's code can reach and that outlives a run: module variables, closures, and caches."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from holdfast.authoring.classes.graph import get_conditions
from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow

MAX_SHOWN_CHARS = 80
_CACHED_FUNCTION_TYPE: type[Any] = type(functools.lru_cache(lambda: None))


class ReachableState:
    """The functions that a workflow may call, judging by names, and the variables that they use.

    Steps are excluded, because they may keep state. In a class workflow, only the ``when=`` functions count: they
    decide what it does, and the rest is steps or library code. Workflows that it calls are included.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.functions: list[FunctionType] = []
        self.locations: dict[str, str] = {}
        """Where each variable is used."""
        self._variables: dict[str, Callable[[], Any]] = {}
        self.add_function(function)

    def add_function(self, function: Callable[..., Any]) -> None:
        """Add this function and the functions it calls."""
        todo: deque[Any] = deque(_get_workflow_functions(function))
        while todo:
            found = inspect.unwrap(todo.popleft())
            if isinstance(found, FunctionType) and found not in self.functions:
                self.functions.append(found)
                todo.extend(self._scan_function(found))

    def list_filled_caches(self) -> Iterator[tuple[str, str]]:
        """Caches that hold earlier results: a description and where the cache is used."""
        for name, read in self._variables.items():
            value = read()
            if isinstance(value, _CACHED_FUNCTION_TYPE) and value.cache_info().currsize:
                yield f"{name} caches earlier results", self.locations[name]

    def snapshot(self) -> dict[str, str]:
        """The current values of the variables, as text that can be compared and shown."""
        return {name: shown for name, read in self._variables.items() if (shown := _format_value(read())) is not None}

    def _scan_function(self, function: FunctionType) -> Iterator[Any]:
        """Add the variables that this function uses, and yield the functions among them."""
        location = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno} in {function.__name__}"
        for name in _list_global_names(function):
            if name in function.__globals__:
                yield from self._scan_global(f"`{name}`", function.__globals__, name, location, function.__module__)
        for name, value in _list_mutable_defaults(function):
            self._add_variable(f"the default of `{name}`", lambda value=value: value, location)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
            if isinstance(value, Workflow):
                yield from _get_workflow_functions(cast("Workflow[..., Any]", value).definition.function)
                continue
            self._add_variable(f"`{name}`", lambda cell=cell: cell.cell_contents, location)
            if _is_user_function(value, function.__module__):
                yield value

    def _scan_global(
        self, label: str, namespace: dict[str, Any], name: str, location: str, module: str
    ) -> Iterator[Any]:
        value = namespace[name]
        if isinstance(value, Workflow):
            yield from _get_workflow_functions(cast("Workflow[..., Any]", value).definition.function)
            return
        if isinstance(value, Step | ModuleType):
            return
        self._add_variable(label, lambda: namespace.get(name), location)
        if _is_user_function(value, module):
            yield value
        elif inspect.isclass(value) and value.__module__.partition(".")[0] == module.partition(".")[0]:
            yield from self._scan_class(value, location)

    def _scan_class(self, cls: type[Any], location: str) -> Iterator[Any]:
        for name, attribute in vars(cls).items():
            if isinstance(attribute, classmethod | staticmethod):
                attribute = cast(Any, attribute).__func__
            if isinstance(attribute, FunctionType):
                yield attribute
            elif not name.startswith("__"):
                self._add_variable(f"`{cls.__name__}.{name}`", lambda name=name: vars(cls).get(name), location)

    def _add_variable(self, label: str, read: Callable[[], Any], location: str) -> None:
        if label not in self._variables:
            self._variables[label] = read
            self.locations[label] = location


def _get_workflow_functions(function: Callable[..., Any]) -> list[Any]:
    """The functions that are a workflow's own code."""
    conditions = get_conditions(function)
    return [function] if conditions is None else list(map(_unwrap_callable, conditions))


def _unwrap_callable(function: Any) -> Any:
    """The function behind a callable."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    function = getattr(function, "__func__", function)  # of a bound method
    return function if inspect.isroutine(function) else type(function).__call__


def _list_global_names(function: FunctionType) -> list[str]:
    """The global names in a function and in the functions inside it."""
    names: list[str] = []
    codes = [function.__code__]
    for code in codes:
        names += code.co_names
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return list(dict.fromkeys(names))


def _list_mutable_defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for parameter in inspect.signature(function).parameters.values():
        default: Any = parameter.default
        if type(default) in (list, dict, set):
            yield parameter.name, default


def _is_user_function(value: Any, module: str) -> bool:
    """Whether this is a function of the same package: libraries are not inspected."""
    if isinstance(value, _CACHED_FUNCTION_TYPE):
        value = value.__wrapped__
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == module.partition(".")[0]


def _format_value(value: Any) -> str | None:
    """A value as text; ``None`` if its text does not show whether it changed."""
    if isinstance(value, FunctionType | type | ModuleType | _CACHED_FUNCTION_TYPE):
        return None
    shown: Any = value
    if type(value).__repr__ is object.__repr__:
        try:
            shown = cast("dict[str, Any]", vars(value))
        except TypeError:
            return None
    try:
        text = repr(shown)
    except Exception:
        return None
    return None if " at 0x" in text else text


def shorten(text: str) -> str:
    """A value of a snapshot, short enough for a message."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 20]}... ({len(text)} characters)"
