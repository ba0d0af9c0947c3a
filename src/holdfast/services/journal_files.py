"""Journal files: a run with its journal, open attempts, and mailbox, as JSON that people can read and compare.

``file_format`` has the form of the values. There is one record to a line, so that two journals can be compared with
``diff``. The file does not contain what means nothing outside the store: the run's key, its owner, and its starter.
**Recorded values are in the file as they are**: anyone who can read the file can read the run's inputs and what its
steps returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.core.records import Attempt, Record, Signal
from holdfast.errors import UsageError
from holdfast.services.file_format import FileFormat, encode, to_json_line
from holdfast.services.lookup import find_run
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

T = TypeVar("T")

JOURNAL_FORMAT = FileFormat("holdfast-journal", 1, "a journal", "`holdfast export RUN` writes such files.")


@dataclass(frozen=True, slots=True)
class Journal:
    """A run, outside its store."""

    run: Run
    """The run's row; ``key`` is 0, and it has neither owner nor starter."""
    records: tuple[Record, ...]
    attempts: tuple[Attempt, ...] = ()
    """The attempts of steps that had no outcome, by position."""
    signals: tuple[Signal, ...] = ()
    """The run's mailbox, in order."""

    def dumps(self) -> str:
        """The file's text."""
        entries = [f"  {to_json_line(name)}: {_format_block(value)}" for name, value in self.to_json().items()]
        return "{\n" + ",\n".join(entries) + "\n}\n"

    def to_json(self) -> dict[str, Any]:
        """The file's content as JSON data."""
        return JOURNAL_FORMAT.header | encode(self)

    @classmethod
    def loads(cls, text: str | bytes, source: str = "this") -> Journal:
        """The journal in a file's text. Raises ``UsageError``, which calls the file ``source``."""
        return cls.from_json(JOURNAL_FORMAT.parse_object(text, source), source)

    @classmethod
    def from_json(cls, data: Any, source: str = "this") -> Journal:
        """The journal in the data that ``to_json`` returned. Raises ``UsageError``."""
        JOURNAL_FORMAT.check_header(data, source)
        return JOURNAL_FORMAT.decode(cls, data, source)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Journal:
        """The journal in a file. Raises ``UsageError``."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}. {JOURNAL_FORMAT.hint}") from error
        return cls.loads(data, str(path))

    def write(self, path: str | PathLike[str]) -> None:
        """Create the file, or replace it. Raises ``UsageError``."""
        try:
            Path(path).write_bytes(self.dumps().encode())
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error


def _format_block(data: Any) -> str:
    """JSON with one line for each field or item."""
    if isinstance(data, dict) and data:
        fields = cast("dict[str, Any]", data).items()
        return (
            "{\n" + ",\n".join(f"    {to_json_line(name)}: {to_json_line(value)}" for name, value in fields) + "\n  }"
        )
    if isinstance(data, list) and data:
        return "[\n" + ",\n".join(f"    {to_json_line(item)}" for item in cast("list[Any]", data)) + "\n  ]"
    return to_json_line(data)


async def export_run(store: Store, run_id: str) -> Journal:
    """The journal of a run, as it is now. Raises ``RunNotFound``."""
    return await read_unchanged(store, run_id, lambda run: read_journal(store, run))


async def read_journal(store: Store, run: Run) -> Journal:
    """The journal of a run with this row."""
    [history] = await store.get_histories([run.key])
    return Journal(
        replace(run, key=0, owner=None, starter=None),
        tuple(history.records),
        tuple(attempt for _, attempt in sorted(history.attempts.items())),
        tuple(history.signals),
    )


async def read_unchanged(store: Store, run_id: str, read: Callable[[Run], Awaitable[T]]) -> T:
    """Read what belongs to a run, and read it again if a worker claimed or ended the run, or a retry reopened it."""
    while True:
        run = await find_run(store, run_id)
        result = await read(run)
        after = await store.get_run(run_id)
        if after is not None and (after.epoch, after.state) == (run.epoch, run.state):
            return result
