"""A real uvicorn process that serves an app, and a browser's view of its streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from free_ports import free_port
from holdfast.client.http.sse import ServerSentEvent, SseParser
from waits import wait_until_sync

PROJECT = Path(__file__).parents[3]


@dataclass
class AppProcess:
    """An app that can be killed and started again at the same port."""

    command: Sequence[str]
    """The arguments of Python; ``{port}`` stands for the port."""
    folder: Path
    url: str
    """Of the store."""

    def __post_init__(self) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "app.log"

    def start(self) -> None:
        paths = [PROJECT / "src", PROJECT / "examples", Path(__file__).parent]
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        environment = {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOLDFAST_URL": self.url}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(part.format(port=self.port) for part in self.command)],
                env=environment, cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until_sync(self.is_serving, "the app to serve", describe=self.log.read_text)

    def is_serving(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx2.get(f"{self.address}/docs").status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self, number: int) -> int:
        """Send a signal, and wait for the end."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the app does not stop\n{self.log.read_text()}") from None
        finally:
            self.process.kill()
            self.process.wait()

    def post(self, path: str, body: Any) -> httpx2.Response:
        return httpx2.post(f"{self.address}{path}", json=body, timeout=30)

    @contextmanager
    def stream(self, path: str, last_id: str = "") -> Iterator[Iterator[ServerSentEvent]]:
        """The events of a stream; it ends when the stream does, also if it breaks."""
        headers = {"last-event-id": last_id} if last_id else {}
        with httpx2.stream("GET", f"{self.address}{path}", headers=headers, timeout=60) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            with closing(read_events(response)) as events:
                yield events


def read_events(response: httpx2.Response) -> Any:
    parser = SseParser()
    try:
        for chunk in response.iter_bytes():
            yield from parser.feed(chunk)
    except httpx2.TransportError:
        return  # the server was killed


def join_texts(events: Sequence[ServerSentEvent]) -> Mapping[int, str]:
    """What a page shows of each answer."""
    texts: dict[int, str] = {}
    for event in events:
        data = json.loads(event.data)
        if event.event == "text":
            texts[data["step"]] = texts.get(data["step"], "") + data["text"]
        elif event.event == "retracted":
            texts[data["step"]] = ""
    return texts
