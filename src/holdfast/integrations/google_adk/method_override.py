"""One method of one object replaced, for objects whose class must stay a class of the framework.

The framework checks what a model is (``isinstance``), and a pydantic model takes no new attributes. So the object gets
a subclass of its class that overrides the method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

MakeMethod = Callable[[type[Any]], Callable[..., Any]]
"""Makes the new method for a class; it calls that of the class."""

_subclasses: dict[tuple[type[Any], MakeMethod], type[Any]] = {}
_made: set[type[Any]] = set()


def override_method(target: object, name: str, make: MakeMethod) -> None:
    """Replace this method of an object, unless that has happened already."""
    cls = cast("type[Any]", type(target))
    if cls in _made:
        return
    subclass = _subclasses.get((cls, make))
    if subclass is None:
        metaclass: Any = type(cls)
        described = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        subclass = cast("type[Any]", metaclass(cls.__name__, (cls,), {name: make(cls), **described}))
        _subclasses[cls, make] = subclass
        _made.add(subclass)
    object.__setattr__(target, "__class__", subclass)
