"""How the parts of a SQL store do work on its database.

A store brings along three ways. ``write`` and ``read`` are the engine's; the work of ``read_for_client`` is done for
people, and a slow list must not hold up the engine. Work that takes its time (hashing, compressing, finding words) is
never done on the event loop: it is ``is_slow``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import RowReader

T = TypeVar("T")
DatabaseWork = Callable[[Database], T]


class DatabaseAccess(ABC):
    """A database, and which connection to it does what."""

    reader: RowReader

    @abstractmethod
    async def write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        """Do work that may commit ``op_count`` operations."""

    @abstractmethod
    async def read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        """Do work that only reads."""

    @abstractmethod
    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        """Do work that only reads, and that somebody is waiting for who is no engine."""

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""

    def resolve_time(self, server_time: float | None) -> float:
        """What time it is, if this is what the database has just said."""
        return self.now()

    def notify_work(self) -> None:  # noqa: B027 - nothing is done where other processes poll for changes
        """Let other processes know that there may be something to do."""

    def notify_all(self) -> None:  # noqa: B027
        """The same, and that runs may have ended."""


class SqlCapability:
    """A capability of a SQL store."""

    def __init__(self, database: DatabaseAccess) -> None:
        self._database = database
