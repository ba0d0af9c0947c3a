"""Streams of runs: heartbeats, browsers that are slow or gone, reconnects, and the end of the server."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from app_process import AppProcess

from holdfast.integrations.fastapi.event_stream import RECONNECT_DELAY_MS
from waits import wait_until_sync

APP = Path(__file__).with_name("stream_app.py")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    yield from serve(tmp_path_factory.mktemp("app"))


@pytest.fixture
def own_app(tmp_path: Path) -> Iterator[AppProcess]:
    yield from serve(tmp_path)


def serve(folder: Path) -> Iterator[AppProcess]:
    app = AppProcess([str(APP), "{port}"], folder, f"sqlite:///{folder / 'runs.db'}")
    app.start()
    yield app
    app.stop(signal.SIGKILL)


def start(app: AppProcess, workflow: str, **inputs: object) -> str:
    return app.post(f"/runs/{workflow}", inputs).json()


def test_an_idle_stream_sends_heartbeats(app: AppProcess):
    run = start(app, "wait", name="a")
    with httpx2.stream("GET", f"{app.address}/runs/{run}/events?heartbeat=0.02", timeout=30) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(6)] == [
            f"retry: {RECONNECT_DELAY_MS}", "", ": heartbeat", "", ": heartbeat", "",
        ]  # fmt: skip


def test_browsers_that_are_gone_leave_no_task(app: AppProcess):
    run = start(app, "wait", name="gone")
    before = httpx2.get(f"{app.address}/tasks").json()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(httpx2.stream("GET", f"{app.address}/runs/{run}/events", timeout=30))
        assert httpx2.get(f"{app.address}/tasks").json() >= before + 20
    wait_until_sync(lambda: httpx2.get(f"{app.address}/tasks").json() <= before, "the streams to end")


def test_a_slow_browser_delays_nobody(app: AppProcess):
    with socket.create_connection(("127.0.0.1", app.port)) as slow:
        run = start(app, "load_much", name="a")
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        slow.sendall(f"GET /runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        assert slow.recv(15) == b"HTTP/1.1 200 OK"  # and it reads no more
        with app.stream(f"/runs/{run}/events") as stream:
            events = list(stream)
        assert [event.event for event in events] == ["step"] * 30 + ["ended"]
        received = b"".join(iter(lambda: slow.recv(1_000_000), b""))  # it gets everything, too, when it reads
        assert (received.count(b"event: step"), received.count(b"event: ended")) == (30, 1)


def test_a_browser_that_comes_back_after_the_end_is_told_to_stop(app: AppProcess):
    run = start(app, "use", name="end", seconds=0)
    with app.stream(f"/runs/{run}/events") as stream:
        events = list(stream)
    assert json.loads(events[-1].data)["data"] == {"state": "completed", "output": "used"}
    last = events[-1].id
    assert httpx2.get(f"{app.address}/runs/{run}/events", headers={"last-event-id": last}).status_code == 204
    assert httpx2.get(f"{app.address}/runs/{run}/events", params={"after": last}).status_code == 204
    with app.stream(f"/runs/{run}/events?after={last}", events[-2].id) as stream:  # the browser's own id wins
        assert list(stream) == events[-1:]


@pytest.mark.parametrize("last", ["made up", "of another run"])
def test_an_id_of_another_stream_is_refused(app: AppProcess, last: str):
    run, other = (start(app, "use", name=f"{name}-{last}", seconds=0) for name in "ab")
    if last != "made up":
        with app.stream(f"/runs/{other}/events") as stream:
            last = next(stream).id
    refused = httpx2.get(f"{app.address}/runs/{run}/events", headers={"last-event-id": last})
    assert (refused.status_code, refused.json()["type"]) == (422, "bad-cursor")


def test_a_server_that_is_stopped_ends_its_streams_and_the_next_one_continues_them(own_app: AppProcess):
    run = start(own_app, "wait", name="a")
    busy = start(own_app, "use", name="b", seconds=0.5)
    with own_app.stream(f"/runs/{busy}/events") as stream, own_app.stream(f"/runs/{run}/events") as idle:
        events = [next(stream)]
        assert own_app.stop(signal.SIGTERM) == -signal.SIGTERM
        events += stream
        assert list(idle) == []
    assert "ended" not in [event.event for event in events]
    # The worker has let the step end, while the app's own resource was open.
    lines = (own_app.folder / "log.txt").read_text().splitlines()
    assert lines == ["opens the resource", "uses ['database']", "has used it", "closes the resource"]
    own_app.start()
    own_app.post(f"/runs/{run}/go", {})
    with own_app.stream(f"/runs/{run}/events") as stream:
        assert [event.event for event in stream] == ["signal", "ended"]
    with own_app.stream(f"/runs/{busy}/events", events[-1].id) as stream:
        assert [event.event for event in stream][-1] == "ended"
