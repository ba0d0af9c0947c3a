"""Some lines of a text file, however large it is, in constant memory."""

from __future__ import annotations

import codecs
import os
from typing import BinaryIO

from holdfast.agents.sandboxed_files import format_path
from holdfast.errors import ModelRetry

MAX_SCANNED_BYTES = 1024**3
"""How many bytes are read at most to find a line."""
_HEAD_BYTES = 8192
_CHUNK_BYTES = 256 * 1024


def is_binary(content: bytes) -> bool:
    """Whether this is no text, from how it begins."""
    return b"\0" in content[:_HEAD_BYTES]


def read_lines(file: BinaryIO, path: str, offset: int, limit: int, max_bytes: int) -> str:
    """At most so many lines and bytes, beginning with line ``offset``, and a word on what is not shown."""
    if is_binary(file.read(_HEAD_BYTES)):
        raise _not_text_error(file, path)
    start, lines_before = _find_line(file, path, offset)
    if start is None:
        return (
            f"[{format_path(path)} has {lines_before:,} lines.]" if lines_before else f"[{format_path(path)} is empty.]"
        )
    file.seek(start)
    content = file.read(max_bytes + 1)
    *lines, rest = content[:max_bytes].split(b"\n")
    is_cut = len(content) > max_bytes  # and so `rest` is the beginning of a line
    if is_cut and not lines:
        text = _decode_text(rest, path, file, is_complete=False)
        return (
            f"{text}\n[Line {offset} of {format_path(path)} is longer than can be shown: search_files finds what is in "
            "it. "
            f"The next line is offset={offset + 1}.]"
        )
    if rest and not is_cut:
        lines.append(rest)
    is_end = not is_cut and len(lines) <= limit
    lines = lines[:limit]
    text = _decode_text(b"\n".join(lines), path, file)
    last = offset + len(lines) - 1
    if not is_end:
        return f"{text}\n[Lines {offset} to {last} of {format_path(path)}. Read on with offset={last + 1}.]"
    return text if offset == 1 else f"{text}\n[Lines {offset} to {last} of {format_path(path)}, to its end.]"


def _find_line(file: BinaryIO, path: str, number: int) -> tuple[int | None, int]:
    """Where a line begins, ``None`` if there is none; and how many lines there are before it."""
    file.seek(0)
    position, line, ends_open = 0, 1, False
    while piece := file.read(_CHUNK_BYTES):
        ends = piece.count(b"\n")
        if line + ends >= number:
            inside = _skip_lines(piece, number - line)
            if position + inside < _get_size(file):
                return position + inside, number - 1
        line += ends
        ends_open = not piece.endswith(b"\n")
        position += len(piece)
        if position >= MAX_SCANNED_BYTES:
            raise ModelRetry(
                f"Line {number:,} of {format_path(path)} is too far in: only the first {MAX_SCANNED_BYTES:,} bytes of "
                "a file are "
                f"read, which have {line:,} lines."
            )
    return None, line - 1 + ends_open


def _skip_lines(chunk: bytes, count: int) -> int:
    """The place behind so many line ends."""
    place = 0
    for _ in range(count):
        place = chunk.index(b"\n", place) + 1
    return place


def _decode_text(content: bytes, path: str, file: BinaryIO, *, is_complete: bool = True) -> str:
    """As text. What is not whole may end within a character, which is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(content, final=is_complete)
    except UnicodeDecodeError:
        raise _not_text_error(file, path) from None
    if "\0" in text:
        raise _not_text_error(file, path)
    return text


def _not_text_error(file: BinaryIO, path: str) -> ModelRetry:
    return ModelRetry(f"{format_path(path)} is no UTF-8 text, and is not shown. It has {_get_size(file):,} bytes.")


def _get_size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
