"""Reads lines of a text file of any size in constant memory."""

from __future__ import annotations

import codecs
import os
from typing import BinaryIO

from holdfast.agents.sandboxed_files import format_path
from holdfast.errors import ModelRetry

MAX_SCANNED_BYTES = 1024**3
"""Maximum number of bytes that are read to find a line."""
_HEAD_BYTES = 8192
_CHUNK_BYTES = 256 * 1024


def is_binary(content: bytes) -> bool:
    """Whether the beginning of the content is not text."""
    return b"\0" in content[:_HEAD_BYTES]


def read_lines(file: BinaryIO, path: str, offset: int, limit: int, max_bytes: int) -> str:
    """Lines from line ``offset`` on, up to ``limit`` and ``max_bytes``, and a note about the rest."""
    if is_binary(file.read(_HEAD_BYTES)):
        raise _not_text_error(file, path)
    start, lines_before = _find_line(file, path, offset)
    if start is None:
        content_size = f"has {lines_before:,} lines" if lines_before else "is empty"
        return f"[{format_path(path)} {content_size}.]"
    file.seek(start)
    content = file.read(max_bytes + 1)
    *lines, rest = content[:max_bytes].split(b"\n")
    is_cut = len(content) > max_bytes  # then `rest` is the beginning of a line
    if is_cut and not lines:
        text = _decode_text(rest, path, file, is_complete=False)
        return (
            f"{text}\n[Line {offset} of {format_path(path)} is longer than can be shown: search_files finds what is in "
            f"it. The next line is offset={offset + 1}.]"
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
    """The position of a line, ``None`` if it does not exist; and the number of lines before it."""
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
                f"a file are read, which have {line:,} lines."
            )
    return None, line - 1 + ends_open


def _skip_lines(chunk: bytes, count: int) -> int:
    """The position after this many line ends."""
    position = 0
    for _ in range(count):
        position = chunk.index(b"\n", position) + 1
    return position


def _decode_text(content: bytes, path: str, file: BinaryIO, *, is_complete: bool = True) -> str:
    """The content as text. If it is not complete, it may end within a character, which is left out."""
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
