"""What every codec for one value can do, whichever way it does it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ValueCodec(ABC):
    """Turns values of one declared type into bytes and back.

    ``what`` is a phrase that the errors begin with, such as ``"the output of step 'extract'"``.
    """

    __slots__ = ("annotation",)

    annotation: object

    @abstractmethod
    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the value as it will be read from them: the one that the workflow must see.

        Raises ``UnrecordableValue`` when the value would not survive.
        """

    def encode(self, value: object, what: str) -> bytes:
        """The bytes to record; as strict as ``record``."""
        return self.record(value, what)[0]

    @abstractmethod
    def decode(self, data: bytes, what: str) -> object:
        """The value in the bytes; raises ``UnreadableRecord`` when they do not fit the declared type."""
