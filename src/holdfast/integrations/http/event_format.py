"""How the events of a streamed answer are separated.

A streamed answer is recorded and passed on event by event: what the network delivers is split where an event ends.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

from pydantic_core import from_json

DONE = "[DONE]"
"""The event with which OpenAI's chat streams end. All others are JSON objects."""

Event = Any
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_EVENT_SEPARATOR = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventFormat(ABC):
    """The format of a stream."""

    @abstractmethod
    def find_end(self, data: bytes) -> int:
        """Where the last whole event in these bytes ends; 0: there is none."""

    @abstractmethod
    def parse(self, data: bytes) -> Iterator[Event]:
        """The events in these bytes, which are whole."""


class ServerSentEvents(EventFormat):
    """``text/event-stream``."""

    def find_end(self, data: bytes) -> int:
        return max(place + len(end) if (place := data.rfind(end)) >= 0 else 0 for end in _EVENT_ENDS)

    def parse(self, data: bytes) -> Iterator[Event]:
        for block in _EVENT_SEPARATOR.split(data):
            lines = [line[5:].lstrip() for line in block.splitlines() if line.startswith(b"data:")]
            text = b"\n".join(lines)
            if text == DONE.encode():
                yield DONE
            elif text:
                yield from _parse_json(text)


class JsonLines(EventFormat):
    """One JSON object per line: Ollama."""

    def find_end(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def parse(self, data: bytes) -> Iterator[Event]:
        for line in data.splitlines():
            if line.strip():
                yield from _parse_json(line)


class AwsEvents(EventFormat):
    """``application/vnd.amazon.eventstream``: binary frames, whose payload is JSON."""

    def find_end(self, data: bytes) -> int:
        place = 0
        while len(data) - place >= 12 and len(data) - place >= (length := int.from_bytes(data[place : place + 4])):
            place += max(length, 12)
        return min(place, len(data))

    def parse(self, data: bytes) -> Iterator[Event]:
        place = 0
        while len(data) - place >= 16:
            length = int.from_bytes(data[place : place + 4])
            headers = int.from_bytes(data[place + 4 : place + 8])
            frame = data[place : place + max(length, 16)]
            for payload in _parse_json(frame[12 + headers : -4]):
                if isinstance(payload, dict) and "bytes" in payload:  # a model's own event
                    yield from _parse_json(base64.b64decode(cast("dict[str, Any]", payload)["bytes"]))
                else:
                    yield {"type": _read_event_type(frame[12 : 12 + headers]), "payload": payload}
            place += max(length, 16)


class UndividedBody(EventFormat):
    """Anything else: passed on as it arrives, and parsed as a whole."""

    def find_end(self, data: bytes) -> int:
        return len(data)

    def parse(self, data: bytes) -> Iterator[Event]:
        for value in _parse_json(data):
            if isinstance(value, list):
                yield from cast("list[Any]", value)
            else:
                yield value


SERVER_SENT_EVENTS = ServerSentEvents()
_FORMATS: dict[str, EventFormat] = {
    "text/event-stream": SERVER_SENT_EVENTS,
    "application/x-ndjson": JsonLines(),
    "application/jsonl": JsonLines(),
    "application/vnd.amazon.eventstream": AwsEvents(),
}
UNDIVIDED = UndividedBody()


def get_event_format(content_type: str) -> EventFormat:
    """The event format of answers with this media type."""
    return _FORMATS.get(content_type, UNDIVIDED)


class EventSplitter:
    """Splits what the network delivers into parts that end where events end."""

    def __init__(self, event_format: EventFormat) -> None:
        self._event_format = event_format
        self._rest = b""

    def add(self, data: bytes) -> bytes:
        """The whole events that are complete with these bytes; may be empty."""
        data = self._rest + data if self._rest else data
        end = self._event_format.find_end(data)
        self._rest = data[end:]
        return data[:end]

    def finish(self) -> bytes:
        """What is left at the end."""
        rest, self._rest = self._rest, b""
        return rest


def _parse_json(data: bytes) -> Iterator[Any]:
    try:
        yield from_json(data)
    except ValueError:
        return


def _read_event_type(headers: bytes) -> str:
    """The ``:event-type`` or ``:exception-type`` in the headers of a frame, which are strings (type 7)."""
    place, found = 0, ""
    while place + 1 < len(headers):
        name_end = place + 1 + headers[place]
        name = headers[place + 1 : name_end]
        if headers[name_end : name_end + 1] != b"\x07":
            break
        value_start = name_end + 3
        value_end = value_start + int.from_bytes(headers[name_end + 1 : value_start])
        if name in (b":event-type", b":exception-type"):
            found = headers[value_start:value_end].decode()
        place = value_end
    return found
