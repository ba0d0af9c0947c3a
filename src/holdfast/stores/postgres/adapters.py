"""How values travel between Python and PostgreSQL, on our connections and on nobody else's.

- **Text** in PostgreSQL cannot hold NUL, and SQLite's can. So NUL is written as ``\\x01\\x01`` and ``\\x01`` as
  ``\\x01\\x02``, and turned back when read: nothing is lost, and texts keep their order. Any other text is written as
  it is. Half of a character (a lone surrogate) cannot be written at all; those who may be given one have replaced it or
  refused it before (see ``stores.utf8``), and here it is refused in words.
- **Whole numbers** are always ``int8``. psycopg would choose the smallest type that fits, and every mixture of sizes
  would be another prepared statement.
- **Columns** (``IntArray``, ``FloatArray``, ``TextArray``, ``BytesArray``) are lists for ``unnest``, with a type of
  their own: also when
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

from holdfast.stores.utf8 import make_surrogate_error

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

_INT8_OID, _FLOAT8_OID, _TEXT_OID, _BYTEA_OID = 20, 701, 25, 17
_ARRAY_OIDS = {_INT8_OID: 1016, _FLOAT8_OID: 1022, _TEXT_OID: 1009, _BYTEA_OID: 1001}
"""PostgreSQL's numbers for the types, and for arrays of them: they are the same in every database."""
_TEXT_TYPES = ("text", "varchar", "bpchar", "name")
_ESCAPE_PATTERN = re.compile("\x01([\x01\x02])")
_NULL_LENGTH = b"\xff\xff\xff\xff"
_pack_length = struct.Struct("!i").pack


class IntArray(list[int | None]):
    """A column of whole numbers."""


class FloatArray(list[float | None]):
    """A column of numbers."""


class TextArray(list[str | None]):
    """A column of texts."""


class BytesArray(list[bytes | None]):
    """A column of bytes."""


def escape_text(text: str) -> str:
    """The text as a PostgreSQL column can hold it."""
    if "\x01" in text:
        text = text.replace("\x01", "\x01\x02")
    return text.replace("\x00", "\x01\x01") if "\x00" in text else text


def unescape_text(text: str) -> str:
    """The text that was escaped."""
    return _ESCAPE_PATTERN.sub(lambda found: "\x00" if found[1] == "\x01" else "\x01", text)


def encode_text(text: str) -> bytes:
    """The text as it is sent. Raises ``UsageError`` if it contains half of a character."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise make_surrogate_error(error) from None
    return escape_text(text).encode() if b"\x00" in data or b"\x01" in data else data


def register_adapters(context: AdaptContext) -> None:
    """Let one connection use these adapters."""
    adapters = context.adapters
    adapters.register_dumper(str, _BinaryTextDumper)
    adapters.register_dumper(str, _TextDumper)  # the last one is that of %s
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    for column, dumper in (
        (IntArray, _IntArrayDumper),
        (FloatArray, _FloatArrayDumper),
        (TextArray, _TextArrayDumper),
        (BytesArray, _BytesArrayDumper),
    ):
        adapters.register_dumper(column, dumper)
    for name in _TEXT_TYPES:
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _BinaryTextLoader)


class _TextDumper(Dumper):
    """Of no declared type: the server takes it for what the place asks for, as it does with ``None``."""

    def dump(self, obj: str) -> Buffer:
        return encode_text(obj)


class _BinaryTextDumper(Dumper):
    format = Format.BINARY
    oid = _TEXT_OID

    def dump(self, obj: str) -> Buffer:
        return encode_text(obj)


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return unescape_text(text) if "\x01" in text else text


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


class _ArrayDumper(Dumper):
    """An array of one dimension: a head, and for each value its length and its bytes."""

    format = Format.BINARY
    element_oid: ClassVar[int]

    def dump(self, obj: list[Any]) -> Buffer:
        if not obj:
            return struct.pack("!iii", 0, 0, self.element_oid)
        missing = None in obj
        head = struct.pack("!iiiii", 1, missing, self.element_oid, len(obj), 1)
        return head + (self.pack_with_nulls(obj) if missing else self.pack(obj))

    def pack(self, values: list[Any]) -> bytes:
        raise NotImplementedError

    def pack_with_nulls(self, values: list[Any]) -> bytes:
        return b"".join([_NULL_LENGTH if value is None else self.pack([value]) for value in values])


class _IntArrayDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[_INT8_OID]
    element_oid = _INT8_OID

    def pack(self, values: list[int]) -> bytes:
        return _pack_numbers("q", values)


class _FloatArrayDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[_FLOAT8_OID]
    element_oid = _FLOAT8_OID

    def pack(self, values: list[float]) -> bytes:
        return _pack_numbers("d", values)


class _BytesArrayDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[_BYTEA_OID]
    element_oid = _BYTEA_OID

    def pack(self, values: list[bytes]) -> bytes:
        return _pack_bytes(values)


class _TextArrayDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[_TEXT_OID]
    element_oid = _TEXT_OID

    def pack(self, values: list[str]) -> bytes:
        everything = "".join(values)
        if "\x00" in everything or "\x01" in everything:
            return _pack_bytes([*map(encode_text, values)])
        try:
            return _pack_bytes([*map(str.encode, values)])
        except UnicodeEncodeError:
            return _pack_bytes([*map(encode_text, values)])  # which says what is wrong with which


def _pack_numbers(code: str, values: Sequence[float]) -> bytes:
    """Numbers of eight bytes, each with its length before it."""
    both: list[float] = [8] * (2 * len(values))
    both[1::2] = values
    return struct.pack(f"!{f'i{code}' * len(values)}", *both)


def _pack_bytes(values: list[bytes]) -> bytes:
    both = [b""] * (2 * len(values))
    both[::2] = map(_pack_length, map(len, values))
    both[1::2] = values
    return b"".join(both)
