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

_FORMAT_VERSION = 1


class SeenText(NamedTuple):
    """What a reader has seen of an answer in flight."""

    part: str
    """Of which attempt, and which request of it: see ``engine.live_events``."""
    char_count: int = 0
    checksum: int = 0
    """A sum over them, by which a text is known to begin with them."""

    def extend(self, text: str) -> SeenText:
        """With a further piece."""
        return SeenText(self.part, self.char_count + len(text), _checksum_text(text, self.checksum))

    def is_prefix_of(self, text: str) -> bool:
        """Whether the text begins with what was seen."""
        return self.char_count <= len(text) and _checksum_text(text[: self.char_count]) == self.checksum


@dataclass(slots=True)
class EventCursor:
    """How far a reader has come."""

    seq: int = -1
    """The last record that it was told of."""
    live_event_number: int = 0
    """The last notice."""
    has_ended: bool = False
    """It was told that the run has ended."""
    seen_texts: dict[int, SeenText] = field(default_factory=dict[int, SeenText])
    """By the position of the command in flight."""

    def encode(self, run: Run) -> str:
        """As a text."""
        seen = [[position, *one] for position, one in self.seen_texts.items()]
        data = to_json(
            [_FORMAT_VERSION, _checksum_run(run), self.seq, self.live_event_number, int(self.has_ended), seen]
        )
        return urlsafe_b64encode(data + zlib.crc32(data).to_bytes(4)).decode().rstrip("=")


def decode_cursor(offset: str | None, run: Run) -> EventCursor:
    """From the text; from the beginning, if there is none. Raises ``UsageError`` for one that is no offset."""
    if offset is None:
        return EventCursor()
    number, *rest = _decode_offset(offset)
    if number > _FORMAT_VERSION:
        raise UsageError(
            f"the offset {offset!r} was given out by a newer version of Holdfast: upgrade this one, or read from the "
            f"beginning"
        )
    mark, seq, notice, ended, seen = rest
    if mark != _checksum_run(run):
        raise UsageError(
            f"the offset {offset!r} is that of another run than {run.id!r}: go on with an offset that events of this "
            f"run had, or read from the beginning"
        )
    return EventCursor(seq, notice, bool(ended), {position: SeenText(*one) for position, *one in seen})


def _decode_offset(offset: Any) -> list[Any]:
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


def _checksum_run(run: Run) -> int:
    """By which an offset of another run is known: no two runs have the same seed."""
    return zlib.crc32(run.id.encode() + run.seed)


def _checksum_text(text: str, start: int = 0) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"), start)
