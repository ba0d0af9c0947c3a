"""Case-insensitive search for text, the same in every PostgreSQL database.

What PostgreSQL considers upper and lower case depends on how a database was created, and may be ASCII only. So it is
used only for ASCII. Any other text becomes a pattern that lists every way to write each of its characters, according to
Python's ``casefold``.
"""

from __future__ import annotations

import re
import sys
from functools import cache

_LIKE_SPECIAL = re.compile(r"([%_\\])")


def make_predicate(text: str) -> tuple[str, str]:
    """The SQL after a column that tests whether it contains this text, and the pattern to bind."""
    if text.isascii():
        return 'COLLATE "C" ILIKE %s', "%" + _LIKE_SPECIAL.sub(r"\\\1", text) + "%"
    return 'COLLATE "C" ~ %s', _make_pattern(text.casefold())


def _make_pattern(folded: str) -> str:
    single, several = _make_case_variants()
    longest = max(map(len, several))
    parts: list[str] = []
    at = 0
    while at < len(folded):
        for length in range(longest, 1, -1):
            chunk = folded[at : at + length]
            if len(chunk) == length and chunk in several:  # such as ss, which can also be written ß
                spelled = "".join(_make_alternatives(single.get(character, character)) for character in chunk)
                parts.append(f"(?:{spelled}|{_make_alternatives(several[chunk])})")
                at += length
                break
        else:
            parts.append(_make_alternatives(single.get(folded[at], folded[at])))
            at += 1
    return "".join(parts)


def _make_alternatives(characters: str) -> str:
    return f"(?:{'|'.join(map(_escape, characters))})" if len(characters) > 1 else _escape(characters)


def _escape(character: str) -> str:
    return (
        f"\\{character}" if character.isascii() and character.isprintable() and not character.isalnum() else character
    )


@cache
def _make_case_variants() -> tuple[dict[str, str], dict[str, str]]:
    """Characters that fold to another one, by that one; and characters that fold to several, by those."""
    single: dict[str, str] = {}
    several: dict[str, str] = {}
    for code in range(128, sys.maxunicode + 1):
        character = chr(code)
        folded = character.casefold()
        if folded == character:
            continue
        found = single if len(folded) == 1 else several
        found[folded] = found.get(folded, folded if len(folded) == 1 else "") + character
    for code in range(ord("A"), ord("Z") + 1):
        lower = chr(code + 32)
        single[lower] = single.get(lower, lower) + chr(code)
    return single, several
