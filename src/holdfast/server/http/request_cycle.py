"""One request and its response, written with as few system calls as possible."""

from __future__ import annotations

import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_CONTROL_CHARACTER: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What a header must not contain."""


class RequestCycle(RequestResponseCycle):
    """uvicorn's state of one request.

    The head of a response is written together with the beginning of its body: sending costs more than all the rest.
    """

    _head = b""
    """The head, until it is written."""

    async def send(self, message: Any) -> None:
        """Write a part of the response."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._encode_head(message["status"], message["headers"])
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._write_body(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message {message['type']!r}.")

    def _encode_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        headers = [*self.default_headers, *headers]
        if _CONTROL_CHARACTER.search(b"".join([part for header in headers for part in header])):
            raise RuntimeError("Invalid HTTP header.")
        has_length = False
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            if name == b"connection":
                self.keep_alive = False  # uvicorn says so if the app fails
                continue
            has_length = has_length or name == b"content-length"
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self.chunked_encoding = not has_length and self.scope["method"] != "HEAD" and status not in (204, 304)
        lines.append(b"transfer-encoding: chunked\r\n\r\n" if self.chunked_encoding else b"\r\n")
        return b"".join(lines)

    def _write_body(self, body: bytes, has_more: bool) -> None:
        if self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not has_more:
                body += b"0\r\n\r\n"
        if self._head:
            self.transport.writelines([self._head, body])
            self._head = b""
        elif body:
            self.transport.write(body)
        if not has_more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
