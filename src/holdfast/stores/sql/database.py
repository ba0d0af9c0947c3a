"""What a database has to bring along: one connection, as the code that all SQL stores share uses it.

A ``Database`` is used by one thread at a time. There are three ways to use a statement (``statements`` says which is
meant for which):

- ``write`` hands rows to a statement that changes something, and asks for nothing. A row is one change; a thousand of
  them cost one round trip, or none of their own: whoever needs no answer need not wait for one before the commit.
- ``lookup`` asks one of a kind of question that a transaction asks many times, such as "which epoch wrote this record".
  ``prefetch`` tells which of them will come, so that a database that is far away can answer all of them at once.
- ``query`` is for everything else.

**What is foreseen is answered as of then**, and not asked again. So whoever foresees must know himself what the
transaction has changed of it since. Locks come first: a database in which others write at the same time locks the rows
of all runs that are touched when their fences are read, and what is read after that stays as it is until the commit.
What is foreseen, or to be locked, before that, is asked behind it, in the same round trip.
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
    """A row holds text that is none: the row is damaged, and not the database."""


class WriteConflict(Exception):
    """Somebody else has written in the meantime what this transaction wanted to write.

    It is to be rolled back and begun again; it will find what is there now.
    """


class Database(ABC):
    """One connection."""

    sql: Statements

    # Transactions

    @abstractmethod
    def begin(self) -> None:
        """Begin to write."""

    @abstractmethod
    def begin_snapshot(self) -> None:
        """Begin to read, all of it as of one moment."""

    @abstractmethod
    def commit(self) -> None:
        """End either, durably."""

    @abstractmethod
    def roll_back(self) -> None:
        """Leave whatever transaction is open, so that the connection can be used again."""

    # Statements

    @abstractmethod
    def query(self, statement: str, values: Values = ()) -> list[Row]:
        """The rows of a question, or those that a change returns."""

    def query_one(self, statement: str, *values: Any) -> Row | None:
        """The first row of a question."""
        rows = self.query(statement, values)
        return rows[0] if rows else None

    @abstractmethod
    def execute(self, statement: str, values: Values = ()) -> int:
        """Change something, and return how many rows that were."""

    @abstractmethod
    def write(self, statement: str, rows: Sequence[Row]) -> None:
        """Make changes, one for each row, in any order. Raises ``WriteConflict``, here or at the commit."""

    @abstractmethod
    def lookup(self, statement: str, *parameters: Any) -> list[Row]:
        """The answer to a question that may have been foreseen."""

    @abstractmethod
    def prefetch(self, lookups: Mapping[str, Collection[Row]]) -> None:
        """These questions, by their statement, will be looked up. What is answered already is not asked again."""

    @abstractmethod
    def discard_prefetched(self, statement: str, *parameters: Any) -> None:
        """What was foreseen is no longer so: the answer to this question, or to all of them."""

    @abstractmethod
    def to_list_parameter(self, values: Iterable[Any]) -> Any:
        """A list, as ``query`` and ``execute`` take it for one value."""

    # What databases do in their own way

    @abstractmethod
    def read_fences(
        self, keys: Collection[int], ids: Collection[str] = (), ending_keys: Collection[int] = ()
    ) -> Iterable[Row]:
        """``(key, id, epoch, state, cancel_state, is paused, awaited, has_budget, is limited, is_delivery)`` of runs.

        They stay so until the commit, as far as others are concerned. Also locked, and perhaps returned, are those that
        wait for ``ending_keys``, which are likely to end.
        """

    @abstractmethod
    def append_fenced(self, rows: Sequence[Row]) -> bool:
        """Append records (rows of ``APPEND_RECORD``) of runs without a budget, in a transaction of its own.

        False: nothing was appended, because some of them are fenced or there already.
        """

    @abstractmethod
    def prefetch_keys(self, count: int) -> None:
        """So many new ones will be asked for."""

    @abstractmethod
    def allocate_keys(self, count: int) -> Sequence[int]:
        """Keys for runs that are created in this transaction: rising, and higher than all that could be seen."""

    @abstractmethod
    def to_served_parameters(self, workflows: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Workflows and versions, as the statements about claims take them."""

    @abstractmethod
    def lock_due_runs(
        self, workflows: Sequence[tuple[str, str]], queues: Collection[str] | None, limit: int, now: float
    ) -> list[tuple[int, int]]:
        """Priority and key of up to ``limit`` runs of these workflows and versions that are due, in claiming order.

        They are locked. Those of limited queues become due, but are not among them. Runs of workflows that are switched
        off are among them, if asked for.
        """

    @abstractmethod
    def lock_sessions(self, sessions: Collection[tuple[str, str]]) -> None:
        """Keep others from creating runs of these workflows and sessions until the commit."""

    @abstractmethod
    def lock_turns(self, turn_keys: Collection[tuple[str, int, str]]) -> None:
        """Keep others from giving turns until the commit: to runs of these limited queues, priorities and keys.

        They are foreseen by this.
        """

    @abstractmethod
    def lock_accounts(self, keys: Collection[int]) -> None:
        """Keep others from changing the accounts of these runs, and of all above them, until the commit.

        They are foreseen by this.
        """

    # Memories

    @abstractmethod
    def change_memory(self, change: MemoryChange) -> None:
        """Keep or forget a value, with the words that it is found by."""

    @abstractmethod
    def search_memories(self, namespace: str, words: Sequence[str], limit: int) -> list[Memory]:
        """Memories that have one of these words, ranked as the contract says."""

    # Searching

    @abstractmethod
    def make_text_condition(self, text: str) -> tuple[str, list[Any]]:
        """A condition on rows of ``runs`` that their texts contain this one (see ``RunFilter.text``), and its values.

        It begins with `` AND``.
        """
