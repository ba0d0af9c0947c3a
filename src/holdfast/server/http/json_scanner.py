"""Limits on JSON from outside, checked as it arrives, before anything parses it.

A parser builds a Python object for every value, and later code visits every one of them. So a few megabytes of
brackets cost a server a minute of work and a gigabyte of memory. The scanner counts values and levels in the bytes
alone. It makes a few passes over the bytes, does a little work for each value, and stops at the first piece that
exceeds a limit.

It also refuses what JSON does not allow but parsers accept: ``NaN``, ``Infinity``, and numbers that overflow a float.
The parser refuses everything else that is not JSON.
"""

from __future__ import annotations

import math
import re
from itertools import accumulate
from typing import Final

MAX_DEPTH = 64
"""Levels of arrays and objects."""
MAX_VALUES = 500_000
"""Values and names of fields."""
MAX_CONTAINERS = 100_000
"""Arrays and objects among them; they cost about ten times as much as other values."""
MAX_NUMBER_CHARS = 1300
"""Characters of a number: integers of 4,096 bits have 1,234. Python reads more, in time that grows with the square."""
CHUNK_BYTES = 64 * 1024
"""Bytes that are scanned at a time."""


class JsonLimitExceeded(ValueError):
    """JSON that exceeds a limit, or has a number that cannot be stored.

    ``kind`` is ``too-deep``, ``too-many-values``, or ``bad-input``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class JsonScanner:
    """Checks one JSON text, which may arrive in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._value_count = 0
        self._container_count = 0
        self._is_in_string = False
        self._is_escaped = False
        """The next byte of the string follows a backslash."""
        self._pending_number = b""
        """A number at the end of the last piece, which may continue in the next one."""

    def feed(self, data: bytes) -> None:
        """Check the next piece. Raises ``JsonLimitExceeded``."""
        for start in range(0, len(data), CHUNK_BYTES):
            self._scan(self._strip_strings(data[start : start + CHUNK_BYTES]))

    def close(self) -> None:
        """Check what is left after the last piece. Raises ``JsonLimitExceeded``."""
        _check_numbers(self._pending_number)
        self._pending_number = b""

    def _strip_strings(self, chunk: bytes) -> bytes:
        """The piece with each string, or part of one, replaced by a quotation mark or nothing."""
        start = 0
        if self._is_in_string:
            rest = _REST_OF_STRING.match(chunk, 1 if self._is_escaped else 0)
            assert rest is not None
            start = rest.end() + 1
            if chunk[rest.end() : start] != b'"':
                self._is_escaped = chunk[rest.end() : start] == b"\\"
                return b""
            self._is_in_string = self._is_escaped = False
        chunk = chunk[start:]
        if _NO_OPEN_STRING.match(chunk) is None:
            self._is_in_string = True
            self._is_escaped = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1
        return _STRING.sub(b'"', chunk)

    def _scan(self, text: bytes) -> None:
        if not text:
            return
        opened = text.count(b"[") + text.count(b"{")
        self._container_count += opened
        self._value_count += opened + text.count(b",") + text.count(b":")
        if self._container_count > MAX_CONTAINERS:
            raise JsonLimitExceeded("too-many-values", f"It has more than {MAX_CONTAINERS:,} arrays and objects.")
        if self._value_count > MAX_VALUES:
            raise JsonLimitExceeded("too-many-values", f"It has more than {MAX_VALUES:,} values and names of fields.")
        self._check_depth(text, opened)
        if _NAN_OR_INFINITY.search(text):
            raise JsonLimitExceeded("bad-input", "NaN and Infinity are not numbers in JSON.")
        self._scan_numbers(text)

    def _check_depth(self, text: bytes, opened_count: int) -> None:
        brackets = text.translate(None, _NON_BRACKETS)
        if self._depth + opened_count > MAX_DEPTH:
            steps = accumulate(map(_DEPTH_CHANGE.__getitem__, brackets), initial=self._depth)
            if max(steps) > MAX_DEPTH:
                raise JsonLimitExceeded("too-deep", f"It is nested more than {MAX_DEPTH} levels deep.")
        self._depth += 2 * opened_count - len(brackets)

    def _scan_numbers(self, text: bytes) -> None:
        text = self._pending_number + text
        end = len(text.rstrip(_NUMBER_CHARS))
        self._pending_number = text[end:]
        if len(self._pending_number) > MAX_NUMBER_CHARS:
            raise JsonLimitExceeded("bad-input", f"It has a number of more than {MAX_NUMBER_CHARS:,} characters.")
        _check_numbers(text[:end])


def check_json(data: bytes) -> None:
    """Check a whole JSON text. Raises ``JsonLimitExceeded``."""
    is_short = len(data) <= MAX_NUMBER_CHARS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    if is_short and _MAYBE_BAD.search(data) is None:
        return  # so are most requests
    scanner = JsonScanner()
    scanner.feed(data)
    scanner.close()


def _check_numbers(text: bytes) -> None:
    for number in _LARGE_NUMBER.finditer(text):
        if len(number[0]) > MAX_NUMBER_CHARS:
            raise JsonLimitExceeded("bad-input", f"It has a number of more than {MAX_NUMBER_CHARS:,} characters.")
        try:
            is_finite = math.isfinite(float(number[0]))
        except ValueError:  # not a number: the parser says so
            continue
        if not is_finite:
            shown = number[0][:20].decode() + ("…" if len(number[0]) > 20 else "")
            raise JsonLimitExceeded(
                "bad-input", f"The number {shown} is larger than any that can be stored: send it as text."
            )


# All of these are possessive: a repeat that could backtrack would remember every character of a long string.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NO_OPEN_STRING: Final = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[^"]*+\Z', re.DOTALL)
_NAN_OR_INFINITY: Final = re.compile(rb"[NI]")
"""The literals of JSON are in lower case."""
_MAYBE_BAD: Final = re.compile(rb"[NI]|[0-9.][Ee]|[0-9]{309}")
"""What a short text with a bad value contains; others may contain it in a string."""
_NUMBER_CHARS: Final = b"-+.0123456789Ee"
_LARGE_NUMBER: Final = re.compile(
    rb"(?<![+.0-9Ee])[0-9][0-9.]*+[Ee][-+]?+[0-9]++|(?<![+.0-9Ee])[0-9]{309,}+\.[0-9]*+"
    rb"|(?<![-+.0-9Ee])[-+.0-9Ee]{%d,}+" % (MAX_NUMBER_CHARS + 1)
)
"""Numbers that may be too large for a float (with an exponent, or with many digits before the point), or too long.

A match never begins inside of a number: otherwise, each digit of a long number would start a search to its end.
"""
_DEPTH_CHANGE: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NON_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"[]{}")))
