"""Choosing the codec for an annotation."""

from __future__ import annotations

import inspect
from collections import abc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Never, NoReturn, TypeVar, Union, cast, get_args, get_origin

from holdfast.codec.tagged_codec import TaggedCodec
from holdfast.codec.tags import TAGGED_TYPES
from holdfast.codec.typed_codec import ScalarCodec, TypedCodec
from holdfast.codec.value_codec import ValueCodec

_UNTYPED: tuple[object, ...] = (Any, object, inspect.Parameter.empty)
_SCALAR_TYPES: tuple[object, ...] = (str, int, bool, float, None, NoneType)
_CONTAINER_TYPES: tuple[object, ...] = (
    *(list, dict, tuple, set, frozenset),
    *(abc.Sequence, abc.MutableSequence, abc.Mapping, abc.MutableMapping, abc.Collection, abc.Iterable),
    *(abc.Set, abc.MutableSet),
)

_codec_cache: dict[object, ValueCodec] = {}


def codec_for(annotation: object) -> ValueCodec:
    """The codec for values declared as ``annotation``; the same object for the same annotation.

    Raises ``DefinitionError`` for a type that can never be recorded.
    """
    try:
        return _codec_cache[annotation]
    except KeyError:
        codec = _codec_cache[annotation] = _choose_codec(annotation)
        return codec
    except TypeError:  # ``Annotated`` with something unhashable
        return _choose_codec(annotation)


def _choose_codec(annotation: object) -> ValueCodec:
    if annotation in _UNTYPED:
        return TaggedCodec(annotation, has_shape=False)
    if annotation in _SCALAR_TYPES:
        return ScalarCodec(annotation)
    if annotation is NoReturn or annotation is Never:
        return ScalarCodec(None)  # it never returns a value
    leaves = _collect_leaf_types(annotation)
    # Values of an annotation with a gap (``dict[str, Any]``) are recorded by their own types, unless it also names
    # classes (``tuple[Report, dict[str, Any]]``), which only their declared type can restore.
    if _Unspecified in leaves and all(leaf is _Unspecified or leaf in TAGGED_TYPES for leaf in leaves):
        return TaggedCodec(annotation, has_shape=True)
    return TypedCodec(annotation)


class _Unspecified:
    """Represents what an annotation leaves open."""


def _collect_leaf_types(annotation: object, depth: int = 0) -> list[Any]:
    """The types at the ends of an annotation's tree, with ``_Unspecified`` for whatever it leaves open."""
    if annotation is None:
        return [NoneType]
    if annotation in _UNTYPED or isinstance(annotation, TypeVar) or annotation in _CONTAINER_TYPES:
        return [_Unspecified]
    if hasattr(annotation, "__value__") and depth < 20:  # ``type Name = ...``
        return _collect_leaf_types(cast(Any, annotation).__value__, depth + 1)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _collect_leaf_types(arguments[0], depth + 1)
    if origin is Literal:
        return [type(argument) for argument in arguments]
    if origin is Union or origin is UnionType or origin in _CONTAINER_TYPES:
        if not arguments and origin is not tuple:
            return [_Unspecified]  # ``typing.List``
        return [
            leaf for argument in arguments if argument is not ... for leaf in _collect_leaf_types(argument, depth + 1)
        ]
    return [annotation]
