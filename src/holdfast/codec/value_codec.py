"""The interface of codecs for one value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class ValueCodec(ABC):
    """Turns values of one declared type into bytes and back.

    ``subject`` is a phrase with which errors begin, such as ``"the output of step 'extract'"``.
    """

    __slots__ = ("annotation",)

    annotation: object

    @abstractmethod
    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the value read from them, which the workflow must see.

        Raises ``UnrecordableValue`` when the value would not survive.
        """

    def encode(self, value: object, subject: str) -> bytes:
        """The bytes to record; as strict as ``round_trip``."""
        return self.round_trip(value, subject)[0]

    def build_json_schema(self, definition_prefix: str) -> dict[str, Any]:
        """A JSON schema of the values: see ``codec.json_schema``. An empty one accepts anything."""
        return {}

    @abstractmethod
    def decode(self, data: bytes, subject: str) -> object:
        """The value in the bytes. Raises ``UnreadableRecord`` when they do not fit the declared type."""


class EncodedValue:
    """Replaces a value that was encoded earlier, for example in a thread so that the event loop need not wait."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data
