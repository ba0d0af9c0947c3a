"""The words of a text, by which memories are found: the same in every store, whatever its own text search does.

A word is a sequence of letters and digits. Case, accents, and typographic variants do not count (``Café`` is ``cafe``,
``ﬁ`` is ``fi``). In scripts without spaces, each ideograph or kana is a word.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")

MAX_QUERY_WORDS = 100
"""Only the first different words of a query count, up to this number."""

BM25_K1, BM25_B = 1.2, 0.75
"""The constants of SQLite's FTS5, which cannot be changed there: how quickly repetitions of a word stop counting, and
how much less a long text counts."""

_ASCII_WORD = re.compile("[a-z0-9]+")


class _CharacterMap(dict[int, str]):
    """What each character becomes, by code point: itself, nothing, or a gap between words."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if 0x300 <= code < 0x370:  # combining accents
            replacement = ""
        elif _is_cjk(code):
            replacement = f" {character} "
        else:  # marks are vowels and the like in scripts that write them above or below
            replacement = character if character.isalnum() or unicodedata.category(character).startswith("M") else " "
        self[code] = replacement
        return replacement


_CHARACTER_MAP = _CharacterMap()


def _is_cjk(code: int) -> bool:
    """Whether this is an ideograph or a kana."""
    return (
        0x3040 <= code < 0x3100 or 0x3400 <= code < 0xA000 or 0xF900 <= code < 0xFB00 or 0x20000 <= code < 0x40000
    ) and chr(code).isalpha()


def tokenize(text: str) -> list[str]:
    """The words of a text, in order, in the form in which they are compared: only letters, digits, and marks."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return plain.translate(_CHARACTER_MAP).split()


def tokenize_query(text: str) -> list[str]:
    """The words of a query: each once, and at most ``MAX_QUERY_WORDS``."""
    return list(dict.fromkeys(tokenize(text)))[:MAX_QUERY_WORDS]


def rank_bm25(
    texts: Mapping[K, Counter[str]], query_words: Sequence[str], candidates: Sequence[K]
) -> list[tuple[float, K]]:
    """The candidates that have at least one of the words, each with its score: the lowest is the best match.

    This is BM25 as in SQLite's FTS5, so that stores agree. (SQLite ranks by itself, and PostgreSQL in a statement: to
    rank here, they would have to read every match.) ``texts`` has the word counts of all texts, from which the rarity
    of a word follows. FTS5 counts one more word in each text, its namespace.
    """
    sizes = {key: counts.total() + 1 for key, counts in texts.items()}
    average = sum(sizes.values()) / len(sizes) if sizes else 0.0
    rarity: list[float] = []
    for word in query_words:
        hits = sum(word in counts for counts in texts.values())
        rarity.append(max(math.log((len(texts) - hits + 0.5) / (hits + 0.5)), 1e-6))
    found: list[tuple[float, K]] = []
    for key in candidates:
        counts, length = texts[key], BM25_K1 * (1 - BM25_B + BM25_B * sizes[key] / average)
        if any(word in counts for word in query_words):
            parts = (
                weight * counts[word] * (BM25_K1 + 1) / (counts[word] + length)
                for word, weight in zip(query_words, rarity, strict=True)
            )
            found.append((-sum(parts), key))
    return found
