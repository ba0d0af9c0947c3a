"""Replaces methods of CrewAI's classes.

CrewAI has hooks before and after a model call and a tool call, but none around it: a hook can change or refuse a call,
and cannot answer it. So the methods that make these calls are replaced, once, when this package is imported. Outside of
programs, a replacement calls the original and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import Any, cast

Method = Callable[..., Any]
Wrap = Callable[[Method], Method]
"""Makes the replacement of a method from the original."""

_WRAPPED = "__holdfast_wrapped__"


def wrap_method(cls: type[Any], name: str, wrap: Wrap) -> None:
    """Replace one method of one class, unless it is replaced already or inherited."""
    attribute = cls.__dict__.get(name)
    if attribute is None:
        return
    original = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
    if hasattr(original, _WRAPPED) or getattr(original, "__isabstractmethod__", False):
        return
    replacement: Any = wrap(original)
    update_wrapper(replacement, original)
    setattr(replacement, _WRAPPED, original)
    setattr(cls, name, staticmethod(replacement) if isinstance(attribute, staticmethod) else replacement)


def wrap_in_subclasses(base: type[Any], wrappers: dict[str, Wrap]) -> None:
    """Replace methods in a class and all its subclasses, also those that are defined later.

    A subclass may call the method of its base class. Only the outermost of these replacements acts: see
    ``is_outermost``.
    """

    def wrap_all(cls: type[Any]) -> None:
        for name, wrap in wrappers.items():
            wrap_method(cls, name, wrap)

    for cls in _iterate_classes(base):
        wrap_all(cls)
    own_hook = base.__dict__.get("__init_subclass__")

    def wrap_new_subclass(cls: type[Any], **options: Any) -> None:
        if own_hook is None:
            super(base, cls).__init_subclass__(**options)
        else:
            own_hook.__func__(cls, **options)
        wrap_all(cls)

    base.__init_subclass__ = classmethod(wrap_new_subclass)  # type: ignore[assignment]


def is_outermost(instance: Any, name: str, original: Method) -> bool:
    """Whether the replacement of ``original`` is the method that callers of the instance reach."""
    cls: Any = cast(Any, type(instance))
    return getattr(getattr(cls, name), _WRAPPED, None) is original


def _iterate_classes(base: type[Any]) -> Iterator[type[Any]]:
    yield base
    for cls in base.__subclasses__():
        yield from _iterate_classes(cls)
