"""What a workflow's code can reach that outlives a run: variables of modules, of closures, and caches."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow

LONGEST = 80
_CACHED = type(functools.lru_cache(lambda: None))


class Reach:
    """The functions that a workflow may call, as far as names tell, and the variables that they use.

    Steps are left out: they may keep whatever they like.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.functions: list[FunctionType] = []
        self.places: dict[str, str] = {}
        """Where each variable is used."""
        self._variables: dict[str, Callable[[], Any]] = {}
        todo: deque[Any] = deque([function])
        while todo:
            found = inspect.unwrap(todo.popleft())
            if isinstance(found, FunctionType) and found not in self.functions:
                self.functions.append(found)
                todo.extend(self._look_into(found))

    def snapshot(self) -> dict[str, str]:
        """The values of the variables now, in a form that can be compared and shown."""
        return {name: shown for name, read in self._variables.items() if (shown := _shown(read())) is not None}

    def _look_into(self, function: FunctionType) -> Iterator[Any]:
        """Note the variables that this function uses; yields the functions among them."""
        place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno} in {function.__name__}"
        for name in _names(function):
            if name in function.__globals__:
                yield from self._note(f"`{name}`", function.__globals__, name, place, function.__module__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
            self._add(f"`{name}`", lambda cell=cell: cell.cell_contents, place)
            if _is_users(value, function.__module__):
                yield value

    def _note(self, label: str, home: dict[str, Any], name: str, place: str, module: str) -> Iterator[Any]:
        value = home[name]
        if isinstance(value, Step | Workflow | ModuleType):
            return
        self._add(label, lambda: home.get(name), place)
        if _is_users(value, module):
            yield value
        elif inspect.isclass(value) and value.__module__.partition(".")[0] == module.partition(".")[0]:
            for attribute in vars(value).values():
                if isinstance(attribute, FunctionType):
                    yield attribute

    def _add(self, label: str, read: Callable[[], Any], place: str) -> None:
        if label not in self._variables:
            self._variables[label] = read
            self.places[label] = place


def _names(function: FunctionType) -> list[str]:
    """The global names in a function and in the functions inside it."""
    names: list[str] = []
    codes = [function.__code__]
    for code in codes:
        names += code.co_names
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return list(dict.fromkeys(names))


def _is_users(value: Any, module: str) -> bool:
    """Whether this is a function of the same package: what a library does is not looked into."""
    if isinstance(value, _CACHED):
        value = value.__wrapped__  # type: ignore[attr-defined]
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == module.partition(".")[0]


def _shown(value: Any) -> str | None:
    """A value in short; ``None`` for what cannot be compared by what it shows."""
    if isinstance(value, _CACHED):
        return f"{cast(Any, value).cache_info().currsize} cached results"
    if isinstance(value, FunctionType | type | ModuleType):
        return None
    shown = cast(Any, value)
    if type(value).__repr__ is object.__repr__:
        try:
            shown = vars(value)
        except TypeError:
            return None
    try:
        text = repr(shown)
    except Exception:
        return None
    if " at 0x" in text:
        return None
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text)} characters)"
