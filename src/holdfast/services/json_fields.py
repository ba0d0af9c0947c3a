"""How runs, records and the like are written as JSON, and read again: exactly, with errors that name the place.

``journal_files`` tells how the files look.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, NotRequired, cast

from pydantic import AfterValidator, StrictBool, StrictFloat, StrictInt, StrictStr, TypeAdapter
from typing_extensions import TypedDict

from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.core.records import RecordKind, Rewind, RewindPoint
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.operations import CancelState

EXPORT_HINT = "`holdfast export RUN` writes such files."
_KINDS_BY_LABEL = {kind.label: kind for kind in RecordKind}


def _write_bytes(data: bytes) -> Any:
    tagged = data[:1] == TAGGED_PREFIX
    try:
        text = (data[1:] if tagged else data).decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
    return {"tagged": text} if tagged else text


def _read_bytes(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case {"tagged": str(text)} if len(value) == 1:
            return TAGGED_PREFIX + text.encode()
        case {"base64": str(text)} if len(value) == 1:
            return b64decode(text, validate=True)
        case _:
            raise TypeError


class _RewindForm(TypedDict):
    failed_seqs: tuple[StrictInt, ...]
    command_count: StrictInt
    timer_count: StrictInt
    is_compensated: StrictBool
    once_seqs: tuple[StrictInt, ...]
    abandoned_positions: NotRequired[tuple[StrictInt, ...]]


_RewindPoint = Annotated[tuple[StrictInt, StrictInt], AfterValidator(RewindPoint._make)]
_rewind_adapter: TypeAdapter[_RewindForm] = TypeAdapter(_RewindForm)


def _read_rewind(value: Any) -> Rewind:
    return Rewind(**_rewind_adapter.validate_python(value))


def _write_rewind(rewind: Rewind) -> dict[str, Any]:
    written = _rewind_adapter.dump_python(cast("_RewindForm", rewind._asdict()), mode="json")
    if not rewind.abandoned_positions:
        del written["abandoned_positions"]  # most have none
    return written


# The fields


class FieldCodec(NamedTuple):
    """How values of one type are written and read."""

    expected: str
    read: Callable[[Any], Any]
    """Raises ``TypeError``, ``ValueError`` (as pydantic does) or ``KeyError`` when the value is not what it must be."""
    write: Callable[[Any], Any] = lambda value: value
    is_omitted: Callable[[Any, Any], bool] | None = None
    """Whether this value of that object is not written; then it need not be there to be read."""

    @classmethod
    def for_type(cls, expected: str, type: Any) -> FieldCodec:
        """As pydantic writes and reads this type."""
        adapter: TypeAdapter[Any] = TypeAdapter(type)
        return cls(expected, adapter.validate_python, partial(adapter.dump_python, mode="json"))

    def omit_if(self, is_omitted: Callable[[Any, Any], bool]) -> FieldCodec:
        """The same, left out of some objects."""
        return self._replace(is_omitted=is_omitted)

    def nullable(self) -> FieldCodec:
        """The same, or nothing."""

        def read(value: Any) -> Any:
            return None if value is None else self.read(value)

        def write(value: Any) -> Any:
            return None if value is None else self.write(value)

        return FieldCodec(f"{self.expected} or null", read, write)


STRING = FieldCodec.for_type("a string", StrictStr)
BOOL = FieldCodec.for_type("true or false", StrictBool)
INT = FieldCodec.for_type("a whole number", StrictInt)
SECONDS = FieldCodec.for_type("a number of seconds", StrictFloat)
STRINGS = FieldCodec.for_type("a list of strings", tuple[StrictStr, ...])
INTS = FieldCodec.for_type("a list of whole numbers", tuple[StrictInt, ...])
HEX = FieldCodec("hexadecimal", bytes.fromhex, bytes.hex)
BYTES = FieldCodec('a string, {"tagged": ...} or {"base64": ...}', _read_bytes, _write_bytes)
STATE = FieldCodec(f"one of {', '.join(RunState)}", RunState, str)
KIND = FieldCodec(f"one of {', '.join(_KINDS_BY_LABEL)}", _KINDS_BY_LABEL.__getitem__, attrgetter("label"))
CANCEL = FieldCodec("asked or recorded", CancelState, str)
REWIND_POINTS = FieldCodec.for_type("a list of pairs of whole numbers", tuple[_RewindPoint, ...])
REWIND = FieldCodec("an object that tells what a retry takes back", _read_rewind, _write_rewind)


def is_empty(value: Any, _: Any = None) -> bool:
    """Whether there is nothing to tell."""
    return value is None or value is False or value == "" or value == ()


def _is_created_at(value: Any, run: Any) -> bool:
    return value == run.created_at


FieldCodecs = dict[str, FieldCodec]
RUN_FIELDS: FieldCodecs = {
    "id": STRING,
    "workflow": STRING,
    "state": STATE,
    "queue": STRING,
    "priority": INT,
    "tags": STRINGS,
    "python_version": STRING,
    "created_at": SECONDS,
    "finished_at": SECONDS.nullable(),
    "deadline": SECONDS.nullable(),
    "wake_at": SECONDS.nullable(),
    "waits_for": STRING,
    "epoch": INT,
    "delivery_count": INT,
    "max_deliveries": INT,
    "seed": HEX,
    "digest": HEX,
    "inputs": BYTES,
    "output": BYTES.nullable(),
    "error": BYTES.nullable(),
    # Left out of a run that has none of it; a file of a release that knew nothing of it reads the same.
    "clock_started_at": SECONDS.omit_if(_is_created_at),
    "cancel_state": CANCEL.omit_if(is_empty),
    "paused_at": SECONDS.omit_if(is_empty),
    "rewind": REWIND.omit_if(is_empty),
    "parent": STRING.omit_if(is_empty),
    "forked_from": STRING.omit_if(is_empty),
    "version": STRING.omit_if(is_empty),
    "rewind_points": REWIND_POINTS.omit_if(is_empty),
    "session": STRING.omit_if(is_empty),
    "previous_run": STRING.omit_if(is_empty),
    "has_budget": BOOL.omit_if(is_empty),
    "queue_key": STRING.omit_if(is_empty),
    "is_delivery": BOOL.omit_if(is_empty),
}
RECORD_FIELDS: FieldCodecs = {
    "seq": INT,
    "kind": KIND,
    "position": INT,
    "name": STRING,
    "ok": BOOL,
    "payload": BYTES.nullable(),
    "at": SECONDS,
    "started_at": SECONDS,
    "attempts": INT,
    "worker": INT,
    "epoch": INT,
    "preview": STRING,
}
ATTEMPT_FIELDS: FieldCodecs = {
    "position": INT,
    "name": STRING,
    "attempt": INT,
    "intent": BOOL,
    "progress": BYTES.nullable(),
    "error": STRING,
    "at": SECONDS,
    "outcome": BYTES.omit_if(is_empty),
    "retry_at": SECONDS.omit_if(is_empty),
    "failing_since": SECONDS.omit_if(is_empty),
}
SIGNAL_FIELDS: FieldCodecs = {
    "id": INT,
    "name": STRING,
    "payload": BYTES,
    "sent_at": SECONDS,
    "position": INT.omit_if(is_empty),
}


def write_fields(fields: FieldCodecs, item: Any) -> dict[str, Any]:
    """An object as JSON can say it."""
    return {
        name: form.write(value)
        for name, form in fields.items()
        for value in (getattr(item, name),)
        if form.is_omitted is None or not form.is_omitted(value, item)
    }


def read_fields(fields: FieldCodecs, item: Any, source: str, location: str) -> dict[str, Any]:
    """The values of an object's fields. Raises ``UsageError``, which calls the file ``source``."""
    if not isinstance(item, dict):
        raise UsageError(f"{source} is no whole journal: {location!r} is missing, or no object. {EXPORT_HINT}")
    given = cast("dict[str, Any]", item)
    read: dict[str, Any] = {}
    for name, form in fields.items():
        if name not in given:
            if form.is_omitted is not None:
                continue
            raise UsageError(f"{source} is no whole journal: {location!r} has no {name!r}. {EXPORT_HINT}")
        try:
            read[name] = form.read(given[name])
        except (TypeError, ValueError, KeyError):
            raise UsageError(f"{source} cannot be read: {name!r} of {location!r} must be {form.expected}.") from None
    return read


def read_list(fields: FieldCodecs, content: dict[str, Any], source: str, name: str) -> list[dict[str, Any]]:
    """The same for a list of objects."""
    items = content.get(name)
    if not isinstance(items, list):
        raise UsageError(f"{source} is no whole journal: {name!r} is missing, or no list. {EXPORT_HINT}")
    entries = cast("Sequence[Any]", items)
    return [read_fields(fields, item, source, f"{name}[{at}]") for at, item in enumerate(entries)]
