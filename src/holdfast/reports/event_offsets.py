"""The position of a reader of events, as a text that the reader can store.

Events come from two streams with increasing numbers, records and live events (see ``stores.live_events``). An offset
holds the position in both, and how much the reader has seen of every answer in flight. So a reader that continues,
perhaps in another process, perhaps long after that answer was recorded, gets exactly the rest of it, or learns that the
part it has seen is invalid.
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
    """The part of an answer in flight that a reader has seen."""

    part: str
    """The attempt, and its request: see ``engine.live_events``."""
    char_count: int = 0
    checksum: int = 0
    """Of these characters, to check whether a text begins with them."""

    def extend(self, text: str) -> SeenText:
        """The same with another piece."""
        return SeenText(self.part, self.char_count + len(text), _checksum_text(text, self.checksum))

    def is_prefix_of(self, text: str) -> bool:
        """Whether the text begins with the seen part."""
        return self.char_count <= len(text) and _checksum_text(text[: self.char_count]) == self.checksum


@dataclass(slots=True)
class EventCursor:
    """The position of a reader."""

    seq: int = -1
    """The last record that it has seen."""
    live_event_number: int = 0
    """The last live event."""
    has_ended: bool = False
    """It has seen the end of the run."""
    seen_texts: dict[int, SeenText] = field(default_factory=dict[int, SeenText])
    """By the position of the command in flight."""

    def encode(self, run: Run) -> str:
        """The offset."""
        seen = [[position, *text] for position, text in self.seen_texts.items()]
        data = to_json(
            [_FORMAT_VERSION, _checksum_run(run), self.seq, self.live_event_number, int(self.has_ended), seen]
        )
        return urlsafe_b64encode(data + zlib.crc32(data).to_bytes(4)).decode().rstrip("=")


def decode_cursor(offset: str | None, run: Run) -> EventCursor:
    """The position of an offset; without one, the beginning. Raises ``UsageError`` for an invalid offset."""
    if offset is None:
        return EventCursor()
    number, *rest = _decode_offset(offset)
    if number > _FORMAT_VERSION:
        raise UsageError(
            f"the offset {offset!r} was given out by a newer version of Holdfast: upgrade this one, or read from the "
            f"beginning"
        )
    checksum, seq, live_event_number, has_ended, seen = rest
    if checksum != _checksum_run(run):
        raise UsageError(
            f"the offset {offset!r} is that of another run than {run.id!r}: go on with an offset that events of this "
            f"run had, or read from the beginning"
        )
    seen_texts = {position: SeenText(*text) for position, *text in seen}
    return EventCursor(seq, live_event_number, bool(has_ended), seen_texts)


def _decode_offset(offset: Any) -> list[Any]:
    try:
        padded = offset + "=" * (-len(offset) % 4)
        data = urlsafe_b64decode(padded.encode("ascii"))
        if zlib.crc32(data[:-4]).to_bytes(4) == data[-4:]:
            return from_json(data[:-4])
    except (ValueError, TypeError, AttributeError):
        pass
    raise UsageError(
        f"{offset!r} is not an offset. Pass the `offset` of the last event that you received, or leave it out to start "
        f"from the beginning"
    )


def _checksum_run(run: Run) -> int:
    """Identifies the run of an offset: no two runs have the same seed."""
    return zlib.crc32(run.id.encode() + run.seed)


def _checksum_text(text: str, start: int = 0) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"), start)
