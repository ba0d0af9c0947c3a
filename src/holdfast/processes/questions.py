"""A supervisor's questions to one of its processes: it writes a byte, and gets an answer, with its length before it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress

ANSWER_TIMEOUT_S = 2.0
"""Seconds that a process may take to answer."""
_LENGTH = struct.Struct("!I")


class QuestionLine:
    """The supervisor's end. It is used by one thread, and may be closed by another.

    Args:
        process_number: the number of the process at the other end. No other process has had it.
        connection: to the process.
    """

    def __init__(self, process_number: int, connection: socket.socket) -> None:
        self.process_number = process_number
        self._connection = connection
        self._connection.settimeout(ANSWER_TIMEOUT_S)
        self._received = bytearray()
        self._is_asked = False
        """An answer is still to come."""

    def ask(self) -> bytes | None:
        """The answer of the process; ``None``: it does not answer in time. Then the next call returns this answer."""
        try:
            if not self._is_asked:
                self._connection.sendall(b"?")
                self._is_asked = True
            while (answer := self._take_answer()) is None:
                part = self._connection.recv(65536)
                if not part:
                    return None
                self._received += part
        except OSError:
            return None
        self._is_asked = False
        return answer

    def _take_answer(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if len(self._received) < _LENGTH.size + length:
            return None
        answer = bytes(self._received[_LENGTH.size :])
        self._received.clear()
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def answer_questions(connection: socket.socket, answer: Callable[[], bytes]) -> None:
    """Answer the supervisor's questions until it dies."""
    with suppress(OSError):
        while connection.recv(1):
            data = answer()
            connection.sendall(_LENGTH.pack(len(data)) + data)
