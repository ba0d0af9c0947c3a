"""Capabilities: the optional parts of the store contract, such as queues with limits, schedules, or archives.

Each is an abstract class of its own, next to its values, and an attribute of ``Store``. A store assigns the
capabilities that it has when it is created. Using one that it lacks raises ``UsageError``, which says what to do
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from holdfast.stores.contract import Store

T = TypeVar("T")


class Capability(Generic[T]):
    """An attribute of a store for an optional part of the contract: see ``Store.supports``."""

    name: str

    def __set_name__(self, owner: type[Store], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, store: None, owner: type[Store]) -> Self: ...
    @overload
    def __get__(self, store: Store, owner: type[Store]) -> T: ...
    def __get__(self, store: Store | None, owner: type[Store]) -> Self | T:
        if store is None:
            return self
        raise store.make_unsupported_error(self.name)

    if TYPE_CHECKING:
        # At run time, an assigned capability is an ordinary attribute, which Python finds before this descriptor.
        def __set__(self, store: Store, value: T) -> None: ...
