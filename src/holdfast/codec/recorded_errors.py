"""Exceptions as data: what a step or workflow raised, recorded so that replay raises the same.

An exception is rebuilt by its class, which must be found in the code that is already loaded: reading a record never
imports a module and never calls an ``__init__``. Whether that will work is decided when the exception is recorded, by
trying it. If it does not work, ``StepFailed`` is recorded in its place, so that the workflow sees the same thing live
and on replay.

An exception is the user's code: its ``__str__`` and its attributes may raise anything, even ``SystemExit``, which would
end the worker, and its message may contain a whole response. So everything is caught here, and the size of the record
is limited, far below the limit of a value: both people and every replay read errors.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from holdfast import errors
from holdfast.codec.encrypted_values import ERASED
from holdfast.codec.formatting import capitalize_first
from holdfast.codec.tags import pack, unpack_record
from holdfast.errors import CodecError, UnreadableRecord, ValueErased

MAX_MESSAGE_LENGTH = 32_768
"""Maximum length of a recorded message. A longer one loses its middle, with a note that says so. Larger arguments are
replaced by the message."""
MAX_ATTRIBUTE_BYTES = 131_072
"""Maximum size of an exception's recorded attributes."""
_MAX_TRACEBACK_BYTES = 4096
_MAX_TRACEBACK_MESSAGE_LENGTH = 1000
_MAX_CAUSE_LENGTH = 500

_BUILTIN_ATTRIBUTES: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (OSError, ("filename", "filename2")),
    (ImportError, ("name", "path")),
    (AttributeError, ("name",)),
    (NameError, ("name",)),
)
"""Attributes that built-in exceptions keep neither in ``args`` nor in ``__dict__``."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A recorded error for people and for clients without the code."""

    type: str
    """``module.ClassName``"""
    message: str
    traceback: str
    """The end of the traceback, or nothing."""


def encode_error(exc: BaseException) -> bytes:
    """The exception as bytes. Always succeeds: what cannot be rebuilt is recorded as ``StepFailed``."""
    message = get_error_message(exc)
    common: dict[str, object] = {"traceback": _format_traceback(exc), "cause": _format_cause(exc)}
    if isinstance(exc, Exception) and _resolve_class(type(exc).__module__, type(exc).__qualname__, ()) is type(exc):
        try:
            data = _pack_exception(exc, message, common)
            str(decode_error(data, ()))
        except BaseException:
            pass  # the same would fail on replay
        else:
            return data
    replacement = f"{type(exc).__qualname__}: {message}"
    return pack(
        {
            "type": "holdfast.errors.StepFailed",
            "qualname": "StepFailed",
            "message": replacement,
            "args": [replacement],
            "attributes": {"step": ""},
            **common,
        },
        "an error",
    )


def decode_error(
    data: bytes, namespaces: Sequence[Mapping[str, object]], subject: str = "the recorded error"
) -> Exception:
    """The exception, rebuilt without calling its ``__init__``; ``subject`` names it in messages if that fails.

    Its class is looked up among the built-ins, in the modules that are loaded, then by name in ``namespaces`` (the
    globals of the workflow's and the step's modules: ``__main__.Oops`` of yesterday may be ``app.Oops`` today).
    """
    record = _read_error_record(data)
    name, message = str(record["type"]), str(record["message"])
    qualname = str(record["qualname"])
    cls = _resolve_class(name.removesuffix(f".{qualname}"), qualname, namespaces)
    if cls is None:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} is a `{name}`, and no class of that name is loaded here. Import it in the "
            f"module that defines the workflow. Its message was: {message}"
        )
    args = record.get("args")
    try:
        return _rebuild(cls, tuple(args) if args is not None else (message,), record)
    except Exception as error:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} is a `{name}`, which cannot be rebuilt ({error}): {message}"
        ) from error


def read_error_info(data: bytes) -> ErrorInfo:
    """The recorded error as text. This needs none of the code that raised it."""
    if data == ERASED:
        return ErrorInfo(f"{ValueErased.__module__}.{ValueErased.__qualname__}", "the error was erased", "")
    record = _read_error_record(data)
    return ErrorInfo(str(record["type"]), str(record["message"]), str(record.get("traceback") or ""))


def get_error_message(exc: BaseException) -> str:
    """The exception's message, with little more than ``MAX_MESSAGE_LENGTH`` characters. Never raises."""
    try:
        text = str(exc)
    except BaseException as error:
        return f"<its message could not be made: {type(error).__name__}>"
    text = _shorten(text, MAX_MESSAGE_LENGTH)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _pack_exception(exc: Exception, message: str, common: Mapping[str, object]) -> bytes:
    args = exc.args if _can_record_args(exc.args) else None
    attributes: dict[str, object] = {}
    omitted: list[str] = []
    room = MAX_ATTRIBUTE_BYTES
    for name, value in _collect_attributes(exc).items():
        size = _measure_size(value)
        # Attributes of Holdfast's own errors are data that the run needs, such as the arguments of a call to approve.
        if size is None or (size > room and not type(exc).__module__.startswith("holdfast.")):
            omitted.append(name)
        else:
            attributes[name] = value
            room -= size
    record = {
        "type": f"{type(exc).__module__}.{type(exc).__qualname__}",
        "qualname": type(exc).__qualname__,
        "message": message,
        "args": None if args is None else list(args),
        "attributes": attributes,
        "omitted": omitted,
    }
    return pack({**record, **common}, "an error")


def _can_record_args(args: tuple[object, ...]) -> bool:
    """Whether these arguments can be recorded as they are; otherwise the message replaces them."""
    sizes = [_measure_size(value) for value in args]
    return all(size is not None for size in sizes) and sum(size or 0 for size in sizes) <= MAX_MESSAGE_LENGTH


def _measure_size(value: object) -> int | None:
    """The size of a value in a record, roughly if it is too large; ``None``: it cannot be recorded."""
    if isinstance(value, str | bytes) and len(value) > MAX_ATTRIBUTE_BYTES:
        return len(value)
    try:
        return len(pack(value, "an error's argument"))
    except CodecError:
        return None


def _collect_attributes(exc: BaseException) -> dict[str, object]:
    found: dict[str, object] = {key: value for key, value in vars(exc).items() if key.isidentifier()}
    for base, names in _BUILTIN_ATTRIBUTES:
        if isinstance(exc, base):
            found.update({name: value for name in names if (value := getattr(exc, name, None)) is not None})
    return found


def _rebuild(cls: type[Exception], args: tuple[Any, ...], record: Mapping[str, Any]) -> Exception:
    try:
        exc = cls.__new__(cls, *args)
    except TypeError:
        exc = cls.__new__(cls)
    # The built-in base keeps some of its state in C (``UnicodeDecodeError.reason``), set from ``args`` by its own
    # ``__init__``. That one is Python's, not the user's.
    base = next(parent for parent in cls.__mro__ if parent.__module__ == "builtins")
    try:
        cast(Any, base).__init__(exc, *args)
    except TypeError:
        pass
    exc.args = args
    slots = {name for parent, names in _BUILTIN_ATTRIBUTES if issubclass(cls, parent) for name in names}
    for name, value in record["attributes"].items():
        if name in slots:
            setattr(exc, name, value)
        else:
            exc.__dict__[name] = value
    if record.get("omitted"):
        note = f"[holdfast] rebuilt from its record, without {', '.join(record['omitted'])}: they could not be recorded"
        if note not in getattr(exc, "__notes__", ()):
            exc.add_note(note)
    return exc


def _resolve_class(module: str, qualname: str, namespaces: Sequence[Mapping[str, object]]) -> type[Exception] | None:
    """The class of that name, without importing anything or calling a module's ``__getattr__``."""
    loaded = builtins if module == "builtins" else errors if module == errors.__name__ else sys.modules.get(module)
    searched = [*([vars(loaded)] if loaded is not None else []), *namespaces]
    return next((found for one in searched if (found := _find_in_namespace(one, qualname)) is not None), None)


def _find_in_namespace(namespace: Mapping[str, object], qualname: str) -> type[Exception] | None:
    found: object = None
    for part in qualname.split("."):
        found = namespace.get(part)
        if not isinstance(found, type):
            return None
        namespace = vars(found)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _read_error_record(data: bytes) -> dict[str, Any]:
    record = unpack_record(data, "a recorded error")
    if not isinstance(record, dict) or not {"type", "qualname", "message", "attributes"} <= record.keys():
        raise UnreadableRecord("A recorded error cannot be read: it has no type and message.")
    return cast("dict[str, Any]", record)


def _shorten(text: str, max_length: int) -> str:
    """The text without its middle if it is too long."""
    if len(text) <= max_length:
        return text
    tail = max_length // 4
    cut = len(text) - max_length
    return f"{text[: max_length - tail]}… [{cut:,} of {len(text):,} characters cut] …{text[-tail:]}"


def _format_traceback(exc: BaseException) -> str:
    try:
        found = traceback.TracebackException.from_exception(exc, limit=-20)
        _shorten_messages(found)
        text = "".join(found.format())
    except BaseException:
        return ""  # the exception's own attributes or source lines cannot be read; the message must do
    return text.encode("utf-8", "backslashreplace")[-_MAX_TRACEBACK_BYTES:].decode("utf-8", "ignore")


def _shorten_messages(found: traceback.TracebackException | None) -> None:
    """Cut long messages, which would leave no room for the lines of code."""
    if found is None:
        return
    message: Any = getattr(found, "_str", None)  # Python has no other access to it
    if isinstance(message, str):
        setattr(found, "_str", _shorten(message, _MAX_TRACEBACK_MESSAGE_LENGTH))  # noqa: B010
    notes: Any = getattr(found, "__notes__", None)
    if isinstance(notes, list):
        found.__notes__ = [_shorten(str(note), _MAX_TRACEBACK_MESSAGE_LENGTH) for note in cast("list[Any]", notes)]
    for other in (found.__cause__, found.__context__, *(getattr(found, "exceptions", None) or ())):
        _shorten_messages(other)


def _format_cause(exc: BaseException) -> str | None:
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return None if cause is None else f"{type(cause).__qualname__}: {get_error_message(cause)}"[:_MAX_CAUSE_LENGTH]
