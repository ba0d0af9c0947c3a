"""How the parts of a SQL store use its database.

The engine uses ``write`` and ``read``, and ``query`` for what a single statement finds. ``read_for_client`` is for
clients, because a slow list must not hold up the engine. Slow work (hashing, compressing, finding words) is never done
on the event loop: callers mark it with ``is_slow``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.sql.database import Database, Row, Values
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

    async def query(self, bind: DatabaseWork[tuple[str, Values]]) -> list[Row]:
        """The rows of one quick statement. ``bind`` returns it with its values, and may be called twice."""
        return await self.read(lambda db: db.query(*bind(db)), is_slow=False)

    @abstractmethod
    async def read_for_client(self, work: DatabaseWork[T]) -> T:
        """Do work that only reads, for a client."""

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""

    def resolve_time(self, server_time: float | None) -> float:
        """The current time, from the time that the database has just reported."""
        return self.now()

    def notify_work(self) -> None:  # noqa: B027 - nothing to do where other processes poll for changes
        """Notify other processes that there may be something to do."""

    def notify_all(self) -> None:  # noqa: B027
        """Notify other processes of that, and that runs may have ended."""


class SqlCapability:
    """A capability of a SQL store."""

    def __init__(self, database: DatabaseAccess) -> None:
        self._database = database

    async def _write_and_notify(self, work: DatabaseWork[T]) -> T:
        result = await self._database.write(work)
        self._database.notify_work()
        return result
