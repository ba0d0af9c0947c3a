"""How values travel between Python and PostgreSQL, on Holdfast's own connections only.

- **Text** in PostgreSQL cannot hold NUL, and SQLite's can. So NUL is written as ``\\x01\\x01`` and ``\\x01`` as
  ``\\x01\\x02``, and turned back when read: nothing is lost, and texts keep their order. Any other text is written as
  it is. Half of a character (a lone surrogate) cannot be written at all. Callers that may be given one have replaced or
  refused it before (see ``stores.utf8``); here it raises an error that says where it is.
- **Whole numbers** are always ``int8``. psycopg would choose the smallest type that fits, and every combination of
  sizes would need its own prepared statement.
- **Columns** (``IntArray``, ``FloatArray``, ``TextArray``, ``BytesArray``) are lists for ``unnest``, each with a fixed
  type, even if the list is empty or holds only ``None``, so the prepared statement stays the same. They are packed as a
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

_TEXT_OID = 25
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
    """The text in the form that a PostgreSQL column can hold."""
    if "\x01" in text:
        text = text.replace("\x01", "\x01\x02")
    return text.replace("\x00", "\x01\x01") if "\x00" in text else text


def unescape_text(text: str) -> str:
    """The text that ``escape_text`` was given."""
    return _ESCAPE_PATTERN.sub(lambda found: "\x00" if found[1] == "\x01" else "\x01", text)


def encode_text(text: str) -> bytes:
    """The bytes to send. Raises ``UsageError`` if the text contains half of a character."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise make_surrogate_error(error) from None
    return escape_text(text).encode() if b"\x00" in data or b"\x01" in data else data


def register_adapters(context: AdaptContext) -> None:
    """Use these adapters on one connection."""
    adapters = context.adapters
    adapters.register_dumper(str, _BinaryTextDumper)
    adapters.register_dumper(str, _TextDumper)  # the last one registered is used for %s
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(IntArray, _IntArrayDumper)
    adapters.register_dumper(FloatArray, _FloatArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
    adapters.register_dumper(BytesArray, _BytesArrayDumper)
    for name in _TEXT_TYPES:
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _BinaryTextLoader)


class _TextDumper(Dumper):
    """Text without a declared type: the server infers it from the context, as it does for ``None``."""

    def dump(self, obj: str) -> Buffer:
        return encode_text(obj)


class _BinaryTextDumper(_TextDumper):
    format = Format.BINARY
    oid = _TEXT_OID


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return unescape_text(text) if "\x01" in text else text


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


class _ArrayDumper(Dumper):
    """A one-dimensional array: a header, then the length and the bytes of each value.

    The type numbers (``oid``) are the same in every database.
    """

    format = Format.BINARY
    element_oid: ClassVar[int]

    def dump(self, obj: list[Any]) -> Buffer:
        if not obj:
            return struct.pack("!iii", 0, 0, self.element_oid)
        has_nulls = None in obj
        header = struct.pack("!iiiii", 1, has_nulls, self.element_oid, len(obj), 1)
        if not has_nulls:
            return header + self.pack(obj)
        return header + b"".join([_NULL_LENGTH if value is None else self.pack([value]) for value in obj])

    def pack(self, values: list[Any]) -> bytes:
        raise NotImplementedError


class _IntArrayDumper(_ArrayDumper):
    oid = 1016
    element_oid = 20

    def pack(self, values: list[int]) -> bytes:
        return _pack_numbers("q", values)


class _FloatArrayDumper(_ArrayDumper):
    oid = 1022
    element_oid = 701

    def pack(self, values: list[float]) -> bytes:
        return _pack_numbers("d", values)


class _BytesArrayDumper(_ArrayDumper):
    oid = 1001
    element_oid = 17

    def pack(self, values: list[bytes]) -> bytes:
        return _pack_bytes(values)


class _TextArrayDumper(_ArrayDumper):
    oid = 1009
    element_oid = _TEXT_OID

    def pack(self, values: list[str]) -> bytes:
        joined = "".join(values)
        if "\x00" not in joined and "\x01" not in joined:
            try:
                return _pack_bytes([*map(str.encode, values)])
            except UnicodeEncodeError:
                pass  # ``encode_text`` says which value is wrong
        return _pack_bytes([*map(encode_text, values)])


def _pack_numbers(code: str, values: Sequence[float]) -> bytes:
    """Numbers of eight bytes, each after its length."""
    fields: list[float] = [8] * (2 * len(values))
    fields[1::2] = values
    return struct.pack(f"!{f'i{code}' * len(values)}", *fields)


def _pack_bytes(values: list[bytes]) -> bytes:
    fields = [b""] * (2 * len(values))
    fields[::2] = map(_pack_length, map(len, values))
    fields[1::2] = values
    return b"".join(fields)
