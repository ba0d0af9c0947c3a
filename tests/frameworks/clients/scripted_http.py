"""What the behavior tests use: an HTTP server that answers as a test says, and runs that are executed twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import RunFailed, Runtime
from holdfast.authoring.workflow import Workflow
from holdfast.client.handle import Handle
from holdfast.services import run_control

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}


class Sent(NamedTuple):
    """A request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What it answers: whole, or in chunks, after which the connection may break."""

    status: int = 200
    headers: dict[str, str] = JSON
    body: bytes | Iterable[bytes] = b"{}"
    breaks: bool = False


class Server(ThreadingHTTPServer):
    """Answers with ``reply``, and notes all requests."""

    daemon_threads = True
    reply: Callable[[Sent], Reply]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: list[Sent] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.sent]

    def reply_in_turn(self, *replies: Reply) -> None:
        """The n-th request gets the n-th reply."""
        rest = list(replies)
        self.reply = lambda _: rest.pop(0)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        sent = Sent(self.command, self.path, headers, body)
        self.server.sent.append(sent)
        reply = self.server.reply(sent)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if isinstance(reply.body, bytes):
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in reply.body:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if reply.breaks:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_PUT = do_POST


class Crash(Exception):
    """Ends the first execution of a program."""


class Crashes:
    """Raises ``Crash`` when it is called for the first time."""

    def __init__(self) -> None:
        self.is_over = False

    def __call__(self) -> None:
        if not self.is_over:
            self.is_over = True
            raise Crash


class Store:
    """A SQLite store, with one process that executes runs."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self.runtime = runtime

    async def run_twice(self, flow: Workflow[..., Any], *args: Any) -> Handle[Any]:
        """Run a program that fails, then again."""
        handle = await self.runtime.start(flow, *args)
        with pytest.raises(RunFailed, match="Crash"):
            await handle.result()
        await run_control.retry_run(self.runtime.store_provider, handle.run_id)
        return handle

    def read_files(self) -> bytes:
        """All that SQLite has written."""
        return b"".join(path.read_bytes() for path in self.path.glob("runs.db*") if path.is_file())


def make_chat(text: str, **more: Any) -> Reply:
    """A whole answer of Chat Completions."""
    message = {"role": "assistant", "content": text}
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}, **more,
    }  # fmt: skip
    return Reply(body=json.dumps(body).encode())


def make_chat_stream(*texts: str, is_complete: bool = True) -> Reply:
    """A streamed answer of Chat Completions; else its connection breaks."""
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    chunks = [{**frame, "choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    parts = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return Reply(headers=SSE, body=[*parts, b"data: [DONE]\n\n"] if is_complete else parts, breaks=not is_complete)
