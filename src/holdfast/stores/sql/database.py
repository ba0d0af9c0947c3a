"""What a database must provide: one connection, as the code that all SQL stores share uses it.

One thread at a time uses a ``Database``. There are three ways to use a statement (its template in ``statements`` says
which):

- ``write`` passes rows to a statement that changes something, and returns nothing. A row is one change. A thousand rows
  cost one round trip, or none of their own: nothing has to wait for their result before the commit.
- ``lookup`` makes a query that a transaction makes many times, such as "which epoch wrote this record". ``prefetch``
  announces lookups, so that a remote database can answer all of them in one round trip.
- ``query`` is for everything else.

**A prefetched lookup returns what was read then**, and does not query again. So the caller must keep track of what the
transaction has changed since. Locks come first: a database with concurrent writers locks the rows of all runs that are
touched when their fences are read, and what is read after that stays the same until the commit. Lookups that are
prefetched before the fences are read, and locks that are requested before, follow them in the same round trip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.stores.memories import Memory, MemoryChange
from holdfast.stores.sql.statements import Statements

Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]


class InvalidText(Exception):
    """A row holds bytes that are not valid text: the row is damaged, not the database."""


class WriteConflict(Exception):
    """Another transaction has written the same row in the meantime.

    The caller rolls back and begins again; then it finds the other's row.
    """


class Database(ABC):
    """One connection."""

    sql: Statements

    # Transactions

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction that reads a snapshot."""

    @abstractmethod
    def commit(self) -> None:
        """End the transaction; what it wrote is durable."""

    def query_and_commit(self, statement: str, values: Values = ()) -> list[Row]:
        """The rows of a query that is the last one of the transaction.

        A remote database sends it together with the lookups that were prefetched before, whose rows can be looked up
        once after the commit, and with the commit.
        """
        rows = self.query(statement, values)
        self.commit()
        return rows

    @abstractmethod
    def roll_back(self) -> None:
        """Leave an open transaction, so that the connection can be used again."""

    # Statements

    @abstractmethod
    def query(self, statement: str, values: Values = ()) -> list[Row]:
        """The rows of a query, or those that a change returns."""

    def query_one(self, statement: str, *values: Any) -> Row | None:
        """The first row of a query, if any."""
        rows = self.query(statement, values)
        return rows[0] if rows else None

    @abstractmethod
    def execute(self, statement: str, values: Values = ()) -> int:
        """Make a change, and return the number of changed rows."""

    @abstractmethod
    def write(self, statement: str, rows: Sequence[Row]) -> None:
        """Make changes, one for each row, in any order. Raises ``WriteConflict``, here or at the commit."""

    @abstractmethod
    def lookup(self, statement: str, *parameters: Any) -> list[Row]:
        """The rows of a query that may have been prefetched."""

    @abstractmethod
    def prefetch(self, lookups: Mapping[str, Collection[Row]]) -> None:
        """Announce lookups, by statement. Known ones are not read again."""

    @abstractmethod
    def discard_prefetched(self, statement: str, *parameters: Any) -> None:
        """Forget a prefetched lookup, or all lookups of the statement, because the rows have changed."""

    @abstractmethod
    def to_list_parameter(self, values: Iterable[Any]) -> Any:
        """A list as one value of ``query`` and ``execute``."""

    # Lost commits

    def must_check_claim(self, key: int) -> bool:
        """Whether the database may lack the claim of a held run, or some of its records."""
        return False

    def is_own_claim(self, key: int, run_id: str, owner: int | None) -> bool:
        """Whether a row with this id and owner is the run that is held."""
        return True

    def must_replay(self, key: int) -> bool:
        """Whether the database may lack what a held run waits for, such as a child."""
        return False

    def note_intact_journal(self, key: int) -> None:  # noqa: B027 - only for databases that fail over
        """The database lacks no record of this run."""

    # What databases do differently

    def list_begun_runs(self, keys: Sequence[int]) -> Sequence[int]:
        """The runs that may have a history. All of them, if asking costs as much as reading."""
        return keys

    @abstractmethod
    def read_fences(
        self, keys: Collection[int], ids: Collection[str] = (), ending_keys: Collection[int] = ()
    ) -> Iterable[Row]:
        """``(key, id, epoch, state, cancel_state, is paused, awaited, has_budget, is limited, is_delivery)`` of runs.

        No other transaction changes these runs before the commit. The runs that wait for ``ending_keys``, which are
        likely to end, are locked as well, and perhaps returned.
        """

    @abstractmethod
    def append_fenced(self, rows: Sequence[Row], usages: Sequence[Row] = ()) -> bool:
        """Append records (rows of ``APPEND_RECORD``) of runs without a budget, in a separate transaction.

        With usages (see ``batch.get_usage_rows``), the runs must also have no parent, whose account would change as
        well, and be in no limited queue. False: nothing was written, because some records are fenced or exist already,
        or the database appends records of such runs otherwise.
        """

    @abstractmethod
    def prefetch_keys(self, count: int) -> None:
        """Announce ``allocate_keys``."""

    @abstractmethod
    def allocate_keys(self, count: int) -> Sequence[int]:
        """Keys for new runs, in ascending order and higher than every visible key."""

    @abstractmethod
    def to_served_parameters(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Workflows and versions, as values for the statements about claims."""

    @abstractmethod
    def lock_due_runs(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        """Lock up to ``limit`` due runs of these workflows and versions; returns priority and key, in claiming order.

        Timers of limited queues become due, but are not returned. Disabled workflows are not excluded.
        """

    @abstractmethod
    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        """Keep other transactions from creating runs of these workflows and sessions until the commit."""

    @abstractmethod
    def lock_turns(self, turn_keys: Collection[tuple[str, int, str]]) -> None:
        """Keep other transactions from assigning turns to these queues, priorities, and queue keys until the commit.

        This prefetches the turns.
        """

    @abstractmethod
    def lock_accounts(self, keys: Collection[int]) -> None:
        """Keep other transactions from changing the accounts of these runs and their ancestors until the commit.

        This prefetches the accounts.
        """

    # Memories

    @abstractmethod
    def change_memory(self, change: MemoryChange) -> None:
        """Write or delete a memory, with the words by which it is found."""

    @abstractmethod
    def search_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        """Memories that have one of these words, ranked as the contract says."""

    # Searching

    @abstractmethod
    def make_text_condition(self, text: str) -> tuple[str, list[Any]]:
        """The condition that a row of ``runs`` contains a text (see ``RunFilter.text``), and its values.

        The condition begins with `` AND``.
        """
