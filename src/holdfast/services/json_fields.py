"""How runs, records and the like are written as JSON, and read again: exactly, with errors that name the place.

``journal_files`` tells how the files look.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from holdfast.codec.tags import TAGGED
from holdfast.core.records import Kind, Rewind, read_once
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.operations import Cancel

HOW = "`holdfast export RUN` writes such files."
_KINDS = {kind.label: kind for kind in Kind}


def _write_bytes(data: bytes) -> Any:
    tagged = data[:1] == TAGGED
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
        return TAGGED + _read_text(text).encode()
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
        _read_once(given["once"]),
        _read_wholes(given.get("given_up", [])),
    )


def _read_once(value: Any) -> tuple[int, ...]:
    return read_once(value if isinstance(value, bool) else _read_wholes(value))


def _read_wholes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_read_whole(one) for one in cast("list[Any]", value))


def _write_rewind(rewind: Rewind) -> dict[str, Any]:
    lists = {"failed": list(rewind.failed), "once": list(rewind.once) or False, "given_up": list(rewind.given_up)}
    written = {**rewind._asdict(), **lists}
    if not rewind.given_up:
        del written["given_up"]  # most have none
    return written


def _read_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_read_text(name) for name in cast("list[Any]", value))


# The fields


class Form(NamedTuple):
    """How values of one type are written and read."""

    what: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    is_left_out: Callable[[Any, Any], bool] | None = None
    """Whether this value of that object is not written; then it need not be there to be read."""

    def unless(self, is_left_out: Callable[[Any, Any], bool]) -> Form:
        """The same, left out of some objects."""
        return self._replace(is_left_out=is_left_out)

    def or_none(self) -> Form:
        """The same, or nothing."""

        def read(value: Any) -> Any:
            return None if value is None else self.read(value)

        def write(value: Any) -> Any:
            return None if value is None else self.write(value)

        return Form(f"{self.what} or null", read, write)


TEXT = Form("a string", _read_text)
FLAG = Form("true or false", _read_flag)
WHOLE = Form("a whole number", _read_whole)
SECONDS = Form("a number of seconds", _read_number)
NAMES = Form("a list of strings", _read_names, list)
WHOLES = Form("a list of whole numbers", _read_wholes, list)
HEX = Form("hexadecimal", _read_hex, bytes.hex)
BYTES = Form('a string, {"tagged": ...} or {"base64": ...}', _read_bytes, _write_bytes)
STATE = Form(f"one of {', '.join(RunState)}", RunState, str)
KIND = Form(f"one of {', '.join(_KINDS)}", _read_kind, _write_kind)
CANCEL = Form("asked or recorded", Cancel, str)
REWIND = Form("an object that tells what a retry takes back", _read_rewind, _write_rewind)


def is_nothing(value: Any, _: Any = None) -> bool:
    """Whether there is nothing to tell."""
    return value is None or value is False or value == "" or value == ()


def _is_creation(value: Any, run: Any) -> bool:
    return value == run.created_at


Fields = dict[str, Form]
RUN_FIELDS: Fields = {
    "id": TEXT,
    "workflow": TEXT,
    "state": STATE,
    "queue": TEXT,
    "priority": WHOLE,
    "tags": NAMES,
    "python": TEXT,
    "created_at": SECONDS,
    "finished_at": SECONDS.or_none(),
    "deadline": SECONDS.or_none(),
    "wake_at": SECONDS.or_none(),
    "waits_for": TEXT,
    "epoch": WHOLE,
    "deliveries": WHOLE,
    "max_deliveries": WHOLE,
    "seed": HEX,
    "digest": HEX,
    "inputs": BYTES,
    "output": BYTES.or_none(),
    "error": BYTES.or_none(),
    # Left out of a run that has none of it; a file of a release that knew nothing of it reads the same.
    "began_at": SECONDS.unless(_is_creation),
    "cancel": CANCEL.unless(is_nothing),
    "paused_at": SECONDS.unless(is_nothing),
    "rewind": REWIND.unless(is_nothing),
    "parent": TEXT.unless(is_nothing),
    "forked_from": TEXT.unless(is_nothing),
    "version": TEXT.unless(is_nothing),
    "rewound": WHOLES.unless(is_nothing),
    "session": TEXT.unless(is_nothing),
    "previous": TEXT.unless(is_nothing),
    "has_budget": FLAG.unless(is_nothing),
    "queue_key": TEXT.unless(is_nothing),
    "by_delivery": FLAG.unless(is_nothing),
}
RECORD_FIELDS: Fields = {
    "seq": WHOLE,
    "kind": KIND,
    "position": WHOLE,
    "name": TEXT,
    "ok": FLAG,
    "payload": BYTES.or_none(),
    "at": SECONDS,
    "started_at": SECONDS,
    "attempts": WHOLE,
    "worker": WHOLE,
    "epoch": WHOLE,
    "preview": TEXT,
}
ATTEMPT_FIELDS: Fields = {
    "position": WHOLE,
    "name": TEXT,
    "attempt": WHOLE,
    "intent": FLAG,
    "progress": BYTES.or_none(),
    "error": TEXT,
    "at": SECONDS,
    "outcome": BYTES.unless(is_nothing),
    "retry_at": SECONDS.unless(is_nothing),
    "failing_since": SECONDS.unless(is_nothing),
}
SIGNAL_FIELDS: Fields = {
    "id": WHOLE,
    "name": TEXT,
    "payload": BYTES,
    "sent_at": SECONDS,
    "position": WHOLE.unless(is_nothing),
}


def write_fields(fields: Fields, item: Any) -> dict[str, Any]:
    """An object as JSON can say it."""
    return {
        name: form.write(value)
        for name, form in fields.items()
        for value in (getattr(item, name),)
        if form.is_left_out is None or not form.is_left_out(value, item)
    }


def read_fields(fields: Fields, item: Any, source: str, place: str) -> dict[str, Any]:
    """The values of an object's fields. Raises ``UsageError``, which calls the file ``source``."""
    if not isinstance(item, dict):
        raise UsageError(f"{source} is no whole journal: {place!r} is missing, or no object. {HOW}")
    given = cast("dict[str, Any]", item)
    read: dict[str, Any] = {}
    for name, form in fields.items():
        if name not in given:
            if form.is_left_out is not None:
                continue
            raise UsageError(f"{source} is no whole journal: {place!r} has no {name!r}. {HOW}")
        try:
            read[name] = form.read(given[name])
        except (TypeError, ValueError, KeyError):
            raise UsageError(f"{source} cannot be read: {name!r} of {place!r} must be {form.what}.") from None
    return read


def read_all(fields: Fields, content: dict[str, Any], source: str, name: str) -> list[dict[str, Any]]:
    """The same for a list of objects."""
    items = content.get(name)
    if not isinstance(items, list):
        raise UsageError(f"{source} is no whole journal: {name!r} is missing, or no list. {HOW}")
    entries = cast("Sequence[Any]", items)
    return [read_fields(fields, item, source, f"{name}[{at}]") for at, item in enumerate(entries)]
