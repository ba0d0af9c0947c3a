"""One run in a file: its row, its journal, its open attempts and its mailbox, as JSON that people can read and compare.

The file is exact: what is read from it is what was in the store, byte for byte. Recorded bytes stand in it as text
where they are text, which JSON values are; those in the codec's tagged form (the byte 0x01, then JSON) as ``{"tagged":
...}`` without that byte; anything else as ``{"base64": ...}``. The seed and the digest are hexadecimal. There is one
record to a line, so that two journals can be compared with ``diff``.

What is left out are the numbers of rows that mean nothing outside their store: the run's key, its owner and its
starter; and what most runs do not have (a parent, a pause, a start before their creation), where they do not have it.
**Recorded values are in the file as they are**: whoever may read it may read what the run was given, and what
its steps returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

from holdfast.core.records import Attempt, Record, Signal
from holdfast.errors import UsageError
from holdfast.services.json_fields import (
    ATTEMPT_FIELDS,
    EXPORT_HINT,
    RECORD_FIELDS,
    RUN_FIELDS,
    SIGNAL_FIELDS,
    read_fields,
    read_list,
    write_fields,
)
from holdfast.services.lookup import find_run
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

FORMAT_NAME = "holdfast-journal"
FORMAT_VERSION = 1
"""Rises when an older Holdfast would misread the file. A field more is no reason: those unknown are passed over."""


@dataclass(frozen=True, slots=True)
class Journal:
    """A run, outside its store."""

    run: Run
    """The run's row; ``key`` is 0, and it has neither owner nor starter."""
    records: tuple[Record, ...]
    attempts: tuple[Attempt, ...] = ()
    """What was known of steps that had no outcome, by position."""
    signals: tuple[Signal, ...] = ()
    """What was in the run's mailbox, in order."""

    def dumps(self) -> str:
        """The file's text."""
        told = self.to_json()
        run = ",\n".join(f"    {to_json_line(name)}: {to_json_line(value)}" for name, value in told["run"].items())
        lists = ",\n".join(f'  "{name}": {_format_array(told[name])}' for name in ("records", "attempts", "signals"))
        head = f'  "format": {to_json_line(FORMAT_NAME)},\n  "version": {FORMAT_VERSION},\n'
        return f'{{\n{head}  "run": {{\n{run}\n  }},\n{lists}\n}}\n'

    def to_json(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "run": write_fields(RUN_FIELDS, self.run),
            "records": [write_fields(RECORD_FIELDS, record) for record in self.records],
            "attempts": [write_fields(ATTEMPT_FIELDS, attempt) for attempt in self.attempts],
            "signals": [write_fields(SIGNAL_FIELDS, signal) for signal in self.signals],
        }

    @classmethod
    def loads(cls, text: str | bytes, source: str = "this") -> Journal:
        """The journal in a file's text. Raises ``UsageError``, which calls the file ``source``."""
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{source} is not a journal: it is not JSON ({error}). {EXPORT_HINT}") from None
        return cls.from_json(content, source)

    @classmethod
    def from_json(cls, data: Any, source: str = "this") -> Journal:
        """The journal that ``to_json`` tells. Raises ``UsageError``."""
        content = _validate_header(data, source)
        run = read_fields(RUN_FIELDS, content.get("run"), source, "run")
        clock_started_at = run.pop("clock_started_at", None)
        return cls(
            Run(
                key=0,
                owner=None,
                starter=None,
                clock_started_at=run["created_at"] if clock_started_at is None else clock_started_at,
                **run,
            ),
            tuple(Record(**fields) for fields in read_list(RECORD_FIELDS, content, source, "records")),
            tuple(Attempt(**fields) for fields in read_list(ATTEMPT_FIELDS, content, source, "attempts")),
            tuple(Signal(**fields) for fields in read_list(SIGNAL_FIELDS, content, source, "signals")),
        )

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Journal:
        """The journal in a file. Raises ``UsageError``."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}. {EXPORT_HINT}") from error
        return cls.loads(data, str(path))

    def write(self, path: str | PathLike[str]) -> None:
        """Make it a file, or replace the one that is there. Raises ``UsageError``."""
        try:
            Path(path).write_bytes(self.dumps().encode())
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error


async def export_run(store: Store, run_id: str) -> Journal:
    """The journal of a run, as it is now. Raises ``RunNotFound``."""
    while True:
        run = await find_run(store, run_id)
        [history] = await store.get_histories([run.key])
        # A run that was taken over, ended or reopened between the two readings would get another one's journal.
        after = await store.get_run(run_id)
        if after is not None and (after.epoch, after.state) == (run.epoch, run.state):
            break
    return Journal(
        replace(run, key=0, owner=None, starter=None),
        tuple(history.records),
        tuple(attempt for _, attempt in sorted(history.attempts.items())),
        tuple(history.signals),
    )


# Writing


def to_json_line(value: Any) -> str:
    """JSON on one line."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)  # half a surrogate pair can be written only as an escape
    return text


def _format_array(objects: Iterable[dict[str, Any]]) -> str:
    lines = [f"    {to_json_line(one)}" for one in objects]
    return "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"


# Reading


def _validate_header(content: Any, source: str) -> dict[str, Any]:
    """The file's object, if it is one of ours that this version can read."""
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("format") != FORMAT_NAME:
        raise UsageError(f'{source} is not a journal: it has no "format": "{FORMAT_NAME}". {EXPORT_HINT}')
    given = cast("dict[str, Any]", content)
    version = given.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f"{source} is no whole journal: 'version' must be a whole number, 1 or more. {EXPORT_HINT}")
    if version > FORMAT_VERSION:
        raise UsageError(
            f"{source} was written by a newer Holdfast (journal version {version}; this one reads up to "
            f"{FORMAT_VERSION}). "
            f"Read it with that one."
        )
    return given
