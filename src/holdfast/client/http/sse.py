"""Server-sent events, parsed from the bytes of a stream as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream."""

    data: str
    event: str = ""
    """Its kind."""
    id: str = ""
    """Sent as ``Last-Event-ID`` to continue the stream after this event."""


class SseParser:
    """Parses events from chunks of bytes, wherever they are cut. An incomplete event at the end is dropped."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._line_parts: list[str] = []
        """Parts of a line without its end."""
        self._has_pending_cr = False
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """The events that these bytes complete."""
        text = self._decode(data)
        if self._has_pending_cr:
            text = f"\r{text}"
        # A CR at the end may be the first half of a CRLF: the next chunk shows.
        self._has_pending_cr = text.endswith("\r")
        *lines, rest = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            # A line may have many megabytes: its parts are joined once and scanned once.
            lines[0] = "".join([*self._line_parts, lines[0]])
            self._line_parts.clear()
        self._line_parts.append(rest)
        for line in lines:
            event = self._parse_line(line)
            if event is not None:
                yield event

    def _parse_line(self, line: str) -> ServerSentEvent | None:
        if not line:
            event = ServerSentEvent("\n".join(self._data), self._event, self._id) if self._data else None
            self._data, self._event = [], ""
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # a comment, or an unknown field
