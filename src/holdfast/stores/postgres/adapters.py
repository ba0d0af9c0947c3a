"""How values travel between Python and PostgreSQL, on our connections and on nobody else's.

- **Text** in PostgreSQL cannot hold NUL, and SQLite's can. So NUL is written as ``\\x01\\x01`` and ``\\x01`` as
  ``\\x01\\x02``, and turned back when read: nothing is lost, and texts keep their order. Any other text is written as
  it is. Half of a character (a lone surrogate) cannot be written at all; those who may be given one have replaced it or
  refused it before (see ``stores.utf8``), and here it is refused in words.
- **Whole numbers** are always ``int8``. psycopg would choose the smallest type that fits, and every mixture of sizes
  would be another prepared statement.
- **Columns** (``Ints``, ``Floats``, ``Texts``, ``Blobs``) are lists for ``unnest``, with a type of their own: also when
  they are empty, or hold nothing but ``None``, it is the same, and so is the prepared statement. They are packed as a
  whole, in binary form, which takes a quarter of the time of psycopg's lists (see ``benchmarks.drivers``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from holdfast.stores.utf8 import improper

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

_INT8, _FLOAT8, _TEXT, _BYTEA = 20, 701, 25, 17
_ARRAYS = {_INT8: 1016, _FLOAT8: 1022, _TEXT: 1009, _BYTEA: 1001}
"""PostgreSQL's numbers for the types, and for arrays of them: they are the same in every database."""
_TEXT_TYPES = ("text", "varchar", "bpchar", "name")
_ESCAPED = re.compile("\x01([\x01\x02])")
_NO_VALUE = b"\xff\xff\xff\xff"
_length = struct.Struct("!i").pack


class Ints(list[int | None]):
    """A column of whole numbers."""


class Floats(list[float | None]):
    """A column of numbers."""


class Texts(list[str | None]):
    """A column of texts."""


class Blobs(list[bytes | None]):
    """A column of bytes."""


def escaped(text: str) -> str:
    """The text as a PostgreSQL column can hold it."""
    if "\x01" in text:
        text = text.replace("\x01", "\x01\x02")
    return text.replace("\x00", "\x01\x01") if "\x00" in text else text


def unescaped(text: str) -> str:
    """The text that was escaped."""
    return _ESCAPED.sub(lambda found: "\x00" if found[1] == "\x01" else "\x01", text)


def encoded(text: str) -> bytes:
    """The text as it is sent. Raises ``UsageError`` if it contains half of a character."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise improper(error) from None
    return escaped(text).encode() if b"\x00" in data or b"\x01" in data else data


def register(context: AdaptContext) -> None:
    """Let one connection use these adapters."""
    adapters = context.adapters
    adapters.register_dumper(str, _TextInBinary)
    adapters.register_dumper(str, _Text)  # the last one is that of %s
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    for column, dumper in ((Ints, _Ints), (Floats, _Floats), (Texts, _Texts), (Blobs, _Blobs)):
        adapters.register_dumper(column, dumper)
    for name in _TEXT_TYPES:
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _TextLoaderInBinary)


class _Text(Dumper):
    """Of no declared type: the server takes it for what the place asks for, as it does with ``None``."""

    def dump(self, obj: str) -> Buffer:
        return encoded(obj)


class _TextInBinary(Dumper):
    format = Format.BINARY
    oid = _TEXT

    def dump(self, obj: str) -> Buffer:
        return encoded(obj)


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return unescaped(text) if "\x01" in text else text


class _TextLoaderInBinary(_TextLoader):
    format = Format.BINARY


class _Column(Dumper):
    """An array of one dimension: a head, and for each value its length and its bytes."""

    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, obj: list[Any]) -> Buffer:
        if not obj:
            return struct.pack("!iii", 0, 0, self.element)
        missing = None in obj
        head = struct.pack("!iiiii", 1, missing, self.element, len(obj), 1)
        return head + (self.pack_sparse(obj) if missing else self.pack(obj))

    def pack(self, values: list[Any]) -> bytes:
        raise NotImplementedError

    def pack_sparse(self, values: list[Any]) -> bytes:
        return b"".join([_NO_VALUE if value is None else self.pack([value]) for value in values])


class _Ints(_Column):
    oid = _ARRAYS[_INT8]
    element = _INT8

    def pack(self, values: list[int]) -> bytes:
        return _pack_numbers("q", values)


class _Floats(_Column):
    oid = _ARRAYS[_FLOAT8]
    element = _FLOAT8

    def pack(self, values: list[float]) -> bytes:
        return _pack_numbers("d", values)


class _Blobs(_Column):
    oid = _ARRAYS[_BYTEA]
    element = _BYTEA

    def pack(self, values: list[bytes]) -> bytes:
        return _pack_bytes(values)


class _Texts(_Column):
    oid = _ARRAYS[_TEXT]
    element = _TEXT

    def pack(self, values: list[str]) -> bytes:
        everything = "".join(values)
        if "\x00" in everything or "\x01" in everything:
            return _pack_bytes([*map(encoded, values)])
        try:
            return _pack_bytes([*map(str.encode, values)])
        except UnicodeEncodeError:
            return _pack_bytes([*map(encoded, values)])  # which says what is wrong with which


def _pack_numbers(code: str, values: Sequence[float]) -> bytes:
    """Numbers of eight bytes, each with its length before it."""
    both: list[float] = [8] * (2 * len(values))
    both[1::2] = values
    return struct.pack(f"!{f'i{code}' * len(values)}", *both)


def _pack_bytes(values: list[bytes]) -> bytes:
    both = [b""] * (2 * len(values))
    both[::2] = map(_length, map(len, values))
    both[1::2] = values
    return b"".join(both)
