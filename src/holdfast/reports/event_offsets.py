"""How far a reader of events has come, as a text that it can keep.

Events come from two streams, records and notices, whose numbers each rise (see ``stores.live_events``): an offset says
how far the reader has come in both. And it says how much the reader has seen of every answer that is still in flight,
so that a reader which goes on, perhaps in another process, perhaps long after that answer was recorded, can be given
exactly the rest of it, or be told that what it has seen is void.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from holdfast.errors import UsageError
from holdfast.stores.operations import Run

_FORMAT = 1


class Seen(NamedTuple):
    """What a reader has seen of an answer in flight."""

    part: str
    """Of which attempt, and which request of it: see ``engine.live_events``."""
    characters: int = 0
    check: int = 0
    """A sum over them, by which a text is known to begin with them."""

    def and_then(self, text: str) -> Seen:
        """With a further piece."""
        return Seen(self.part, self.characters + len(text), _sum(text, self.check))

    def begins(self, text: str) -> bool:
        """Whether the text begins with what was seen."""
        return self.characters <= len(text) and _sum(text[: self.characters]) == self.check


@dataclass(slots=True)
class Cursor:
    """How far a reader has come."""

    seq: int = -1
    """The last record that it was told of."""
    notice: int = 0
    """The last notice."""
    ended: bool = False
    """It was told that the run has ended."""
    seen: dict[int, Seen] = field(default_factory=dict[int, Seen])
    """By the position of the command in flight."""

    def offset(self, run: Run) -> str:
        """As a text."""
        seen = [[position, *one] for position, one in self.seen.items()]
        data = to_json([_FORMAT, _mark_of(run), self.seq, self.notice, int(self.ended), seen])
        return urlsafe_b64encode(data + zlib.crc32(data).to_bytes(4)).decode().rstrip("=")


def cursor_of(offset: str | None, run: Run) -> Cursor:
    """From the text; from the beginning, if there is none. Raises ``UsageError`` for one that is no offset."""
    if offset is None:
        return Cursor()
    number, *rest = _read(offset)
    if number > _FORMAT:
        raise UsageError(
            f"the offset {offset!r} was given out by a newer version of Holdfast: upgrade this one, or read from the "
            f"beginning"
        )
    mark, seq, notice, ended, seen = rest
    if mark != _mark_of(run):
        raise UsageError(
            f"the offset {offset!r} is that of another run than {run.id!r}: go on with an offset that events of this "
            f"run had, or read from the beginning"
        )
    return Cursor(seq, notice, bool(ended), {position: Seen(*one) for position, *one in seen})


def _read(offset: Any) -> list[Any]:
    try:
        padded = offset + "=" * (-len(offset) % 4)
        data = urlsafe_b64decode(padded.encode("ascii"))
        if zlib.crc32(data[:-4]).to_bytes(4) == data[-4:]:
            return from_json(data[:-4])
    except (ValueError, TypeError, AttributeError):
        pass
    raise UsageError(
        f"{offset!r} is no offset: it is the `offset` of the last event that you had, unchanged; without one, reading "
        f"begins at the beginning"
    )


def _mark_of(run: Run) -> int:
    """By which an offset of another run is known: no two runs have the same seed."""
    return zlib.crc32(run.id.encode() + run.seed)


def _sum(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"), before)
