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
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.core.records import Attempt, Kind, Record, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, UsageError
from holdfast.stores.contract import Store
from holdfast.stores.operations import Cancel, Run

FORMAT = "holdfast-journal"
VERSION = 1
"""Rises when an older Holdfast would misread the file. A field more is no reason: those unknown are passed over."""

_HOW = "`holdfast export RUN` writes such files."
_TAGGED = b"\x01"
_KINDS = {kind.label: kind for kind in Kind}


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
        return "".join(
            [
                "{\n",
                f'  "format": {_json(FORMAT)},\n',
                f'  "version": {VERSION},\n',
                '  "run": {\n',
                ",\n".join(f"    {_json(name)}: {_json(value)}" for name, value in _write(_RUN, self.run).items()),
                "\n  },\n",
                f'  "records": {_lines(_write(_RECORD, record) for record in self.records)},\n',
                f'  "attempts": {_lines(_write(_ATTEMPT, attempt) for attempt in self.attempts)},\n',
                f'  "signals": {_lines(_write(_SIGNAL, signal) for signal in self.signals)}\n',
                "}\n",
            ]
        )

    @classmethod
    def loads(cls, text: str | bytes, source: str = "this") -> Journal:
        """The journal in a file's text. Raises ``UsageError``, which calls the file ``source``."""
        content = _opened(text, source)
        run = _read(_RUN, content.get("run"), source, "run")
        began_at = run.pop("began_at", None)
        return cls(
            Run(
                key=0,
                owner=None,
                starter=None,
                began_at=run["created_at"] if began_at is None else began_at,
                **run,
            ),
            tuple(Record(**fields) for fields in _read_all(_RECORD, content, source, "records")),
            tuple(Attempt(**fields) for fields in _read_all(_ATTEMPT, content, source, "attempts")),
            tuple(Signal(**fields) for fields in _read_all(_SIGNAL, content, source, "signals")),
        )

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Journal:
        """The journal in a file. Raises ``UsageError``."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}. {_HOW}") from error
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
        run = await store.get(run_id)
        if run is None:
            raise RunNotFound(f"there is no run {run_id!r} in {store.url}", run_id)
        [history] = await store.histories([run.key])
        # A run that was taken over, ended or reopened between the two readings would get another one's journal.
        after = await store.get(run_id)
        if after is not None and (after.epoch, after.state) == (run.epoch, run.state):
            break
    return Journal(
        replace(run, key=0, owner=None, starter=None),
        tuple(history.records),
        tuple(attempt for _, attempt in sorted(history.attempts.items())),
        tuple(history.signals),
    )


# Writing


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)  # half a surrogate pair can be written only as an escape
    return text


def _lines(objects: Iterable[dict[str, Any]]) -> str:
    lines = [f"    {_json(one)}" for one in objects]
    return "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"


def _write_bytes(data: bytes) -> Any:
    tagged = data[:1] == _TAGGED
    try:
        text = (data[1:] if tagged else data).decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
    return {"tagged": text} if tagged else text


# Reading: each of these raises ``TypeError``, ``ValueError`` or ``KeyError`` when the value is not what it must be


def _read_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    (form, text), *more = cast("dict[str, Any]", value).items() if isinstance(value, dict) else [("", None)]
    if not more and form == "tagged":
        return _TAGGED + _read_text(text).encode()
    if not more and form == "base64":
        return b64decode(_read_text(text), validate=True)
    raise TypeError


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _read_hex(value: Any) -> bytes:
    return bytes.fromhex(_read_text(value))


def _read_kind(value: Any) -> Kind:
    if value not in _KINDS:
        raise ValueError
    return _KINDS[value]


def _write_kind(kind: Kind) -> str:
    return kind.label


def _read_rewind(value: Any) -> Rewind:
    if not isinstance(value, dict):
        raise TypeError
    given = cast("dict[str, Any]", value)
    return Rewind(
        _read_wholes(given["failed"]),
        _read_whole(given["positions"]),
        _read_whole(given["timers"]),
        _read_flag(given["undone"]),
        _read_flag(given["once"]),
        _read_wholes(given.get("given_up", [])),
    )


def _read_wholes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_read_whole(one) for one in cast("list[Any]", value))


def _write_rewind(rewind: Rewind) -> dict[str, Any]:
    written = {**rewind._asdict(), "failed": list(rewind.failed), "given_up": list(rewind.given_up)}
    if not rewind.given_up:
        del written["given_up"]  # most have none
    return written


def _read_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_read_text(name) for name in cast("list[Any]", value))


# The fields


class _Form(NamedTuple):
    """How values of one type are written and read."""

    what: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    is_left_out: Callable[[Any, Any], bool] | None = None
    """Whether this value of that object is not written; then it need not be there to be read."""

    def unless(self, is_left_out: Callable[[Any, Any], bool]) -> _Form:
        return self._replace(is_left_out=is_left_out)

    def or_none(self) -> _Form:
        def read(value: Any) -> Any:
            return None if value is None else self.read(value)

        def write(value: Any) -> Any:
            return None if value is None else self.write(value)

        return _Form(f"{self.what} or null", read, write)


_text = _Form("a string", _read_text)
_flag = _Form("true or false", _read_flag)
_whole = _Form("a whole number", _read_whole)
_time = _Form("a number of seconds", _read_number)
_names = _Form("a list of strings", _read_names, list)
_hex = _Form("hexadecimal", _read_hex, bytes.hex)
_bytes = _Form('a string, {"tagged": ...} or {"base64": ...}', _read_bytes, _write_bytes)
_state = _Form(f"one of {', '.join(RunState)}", RunState, str)
_kind = _Form(f"one of {', '.join(_KINDS)}", _read_kind, _write_kind)
_cancel = _Form("asked or recorded", Cancel, str)
_rewind = _Form("an object that tells what a retry takes back", _read_rewind, _write_rewind)


def _is_nothing(value: Any, _: Any) -> bool:
    return value is None or value == ""


def _is_creation(value: Any, run: Any) -> bool:
    return value == run.created_at


_Fields = dict[str, _Form]
_RUN: _Fields = {
    "id": _text,
    "workflow": _text,
    "state": _state,
    "queue": _text,
    "priority": _whole,
    "tags": _names,
    "python": _text,
    "created_at": _time,
    "finished_at": _time.or_none(),
    "deadline": _time.or_none(),
    "wake_at": _time.or_none(),
    "waits_for": _text,
    "epoch": _whole,
    "deliveries": _whole,
    "max_deliveries": _whole,
    "seed": _hex,
    "digest": _hex,
    "inputs": _bytes,
    "output": _bytes.or_none(),
    "error": _bytes.or_none(),
    # Since children, control and forks there are these; files without them are older, or the run has none of it.
    "began_at": _time.unless(_is_creation),
    "cancel": _cancel.unless(_is_nothing),
    "paused_at": _time.unless(_is_nothing),
    "rewind": _rewind.unless(_is_nothing),
    "parent": _text.unless(_is_nothing),
    "forked_from": _text.unless(_is_nothing),
}
_RECORD: _Fields = {
    "seq": _whole,
    "kind": _kind,
    "position": _whole,
    "name": _text,
    "ok": _flag,
    "payload": _bytes.or_none(),
    "at": _time,
    "started_at": _time,
    "attempts": _whole,
    "worker": _whole,
    "epoch": _whole,
    "preview": _text,
}
_ATTEMPT: _Fields = {
    "position": _whole,
    "name": _text,
    "attempt": _whole,
    "intent": _flag,
    "progress": _bytes.or_none(),
    "error": _text,
    "at": _time,
}
_SIGNAL: _Fields = {
    "id": _whole,
    "name": _text,
    "payload": _bytes,
    "sent_at": _time,
    "position": _whole.unless(_is_nothing),
}


def _write(fields: _Fields, item: Any) -> dict[str, Any]:
    return {
        name: form.write(value)
        for name, form in fields.items()
        for value in (getattr(item, name),)
        if form.is_left_out is None or not form.is_left_out(value, item)
    }


def _read(fields: _Fields, item: Any, source: str, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise UsageError(f"{source} is no whole journal: {place!r} is missing, or no object. {_HOW}")
    given = cast("dict[str, Any]", item)
    read: dict[str, Any] = {}
    for name, form in fields.items():
        if name not in given:
            if form.is_left_out is not None:
                continue
            raise UsageError(f"{source} is no whole journal: {place!r} has no {name!r}. {_HOW}")
        try:
            read[name] = form.read(given[name])
        except (TypeError, ValueError, KeyError):
            raise UsageError(f"{source} cannot be read: {name!r} of {place!r} must be {form.what}.") from None
    return read


def _read_all(fields: _Fields, content: dict[str, Any], source: str, name: str) -> list[dict[str, Any]]:
    items = content.get(name)
    if not isinstance(items, list):
        raise UsageError(f"{source} is no whole journal: {name!r} is missing, or no list. {_HOW}")
    entries = cast("Sequence[Any]", items)
    return [_read(fields, item, source, f"{name}[{at}]") for at, item in enumerate(entries)]


def _opened(text: str | bytes, source: str) -> dict[str, Any]:
    """The file's object, if it is one of ours that this version can read."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not a journal: it is not JSON ({error}). {_HOW}") from None
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("format") != FORMAT:
        raise UsageError(f'{source} is not a journal: it has no "format": "{FORMAT}". {_HOW}')
    given = cast("dict[str, Any]", content)
    version = given.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f"{source} is no whole journal: 'version' must be a whole number, 1 or more. {_HOW}")
    if version > VERSION:
        raise UsageError(
            f"{source} was written by a newer Holdfast (journal version {version}; this one reads up to {VERSION}). "
            f"Read it with that one."
        )
    return given
