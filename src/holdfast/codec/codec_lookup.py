"""Which codec an annotation asks for."""

from __future__ import annotations

import inspect
from collections import abc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Never, NoReturn, TypeVar, Union, cast, get_args, get_origin

from holdfast.codec.tagged_codec import TaggedCodec
from holdfast.codec.tags import TAGGED_TYPES
from holdfast.codec.typed_codec import ScalarCodec, TypedCodec
from holdfast.codec.value_codec import ValueCodec

_ANYTHING: tuple[object, ...] = (Any, object, inspect.Parameter.empty, inspect.Signature.empty)
_SCALARS: tuple[object, ...] = (str, int, bool, float, None, NoneType)
_CONTAINERS: tuple[object, ...] = (
    *(list, dict, tuple, set, frozenset),
    *(abc.Sequence, abc.MutableSequence, abc.Mapping, abc.MutableMapping, abc.Collection, abc.Iterable),
    *(abc.Set, abc.MutableSet),
)

_codecs: dict[object, ValueCodec] = {}


def codec_for(annotation: object) -> ValueCodec:
    """The codec for values declared as ``annotation``; the same object for the same annotation.

    Raises ``DefinitionError`` for a type that can never be recorded.
    """
    try:
        return _codecs[annotation]
    except KeyError:
        codec = _codecs[annotation] = _choose(annotation)
        return codec
    except TypeError:  # ``Annotated`` with something unhashable
        return _choose(annotation)


def _choose(annotation: object) -> ValueCodec:
    if annotation in _ANYTHING:
        return TaggedCodec(annotation, shaped=False)
    if annotation in _SCALARS:
        return ScalarCodec(annotation)
    if annotation is NoReturn or annotation is Never:
        return ScalarCodec(None)  # there is never a value
    leaves = _leaves(annotation)
    # A tree with a gap in it (``dict[str, Any]``) is recorded by what the values are, unless it also names classes
    # (``tuple[Report, dict[str, Any]]``), which only their declared type can bring back.
    if _Gap in leaves and all(leaf is _Gap or leaf in TAGGED_TYPES for leaf in leaves):
        return TaggedCodec(annotation, shaped=True)
    return TypedCodec(annotation)


class _Gap:
    """Stands for what an annotation leaves open."""


def _leaves(annotation: object, depth: int = 0) -> list[Any]:
    """The types at the ends of an annotation's tree, with ``_Gap`` for whatever it leaves open."""
    if annotation is None:
        return [NoneType]
    if annotation in _ANYTHING or isinstance(annotation, TypeVar) or annotation in _CONTAINERS:
        return [_Gap]
    if hasattr(annotation, "__value__") and depth < 20:  # ``type Name = ...``
        return _leaves(cast(Any, annotation).__value__, depth + 1)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _leaves(arguments[0], depth + 1)
    if origin is Literal:
        return [type(argument) for argument in arguments]
    if origin is Union or origin is UnionType or origin in _CONTAINERS:
        if not arguments and origin is not tuple:
            return [_Gap]  # ``typing.List``
        return [leaf for argument in arguments if argument is not ... for leaf in _leaves(argument, depth + 1)]
    return [annotation]
