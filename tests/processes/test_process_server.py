"""A server as a process of its own, on SQLite, with keys: stopped in good order, stopped hard, and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from app_processes import App

import forked_python
from waits import wait_until_sync

CLI = [sys.executable, "-m", "holdfast.cli"]


class Site:
    """A folder with a database, servers over it, and a key for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/runs.db"
        self.port = 0
        self.servers: list[App] = []
        made = [*CLI, "keys", "create", "all", "--scope", "admin", "--scope", "listen:*", "--quiet", "--url", self.url]
        self.token = forked_python.run(made, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def serve(self) -> App:
        """Start a server, on the port of the one before, and wait until it listens."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        command = [*CLI, "serve", "--url", self.url, "--port", str(self.port)]
        server = App(f"server-{len(self.servers)}", command, environment, self.folder)
        self.servers.append(server)

        def listens() -> re.Match[str] | None:
            assert server.exit_code is None, server.stderr_messages
            return re.search(
                r"on http://127\.0\.0\.1:(\d+) \(pid \d+\)\nevery request needs an API key",
                server.stderr_messages,
            )

        self.port = int(wait_until_sync(listens, "the server listens", describe=lambda: server.stderr_messages)[1])
        return server

    def http(self) -> httpx2.Client:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    site = Site(folder)
    yield site
    for server in site.servers:
        server.clean_up()


def test_a_stopping_server_ends_long_polls_and_exits_cleanly(site: Site):
    server = site.serve()
    polled: list[int] = []

    def poll() -> None:
        with site.http() as http:
            polled.append(http.post("/v1/addresses/quiet/claim", json={}, params={"wait": 60}).status_code)

    polling = threading.Thread(target=poll)
    polling.start()
    with site.http() as http, http.stream("GET", "/v1/addresses/jobs/listen") as stream:
        lines = stream.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        time.sleep(0.2)  # until the poll waits as well
        began = time.monotonic()
        server.send(signal.SIGTERM)
        assert not [line for line in lines if line.startswith("data: ")]  # it ends as a stream should
    polling.join()
    server.ends()
    assert time.monotonic() - began < 5
    assert polled in ([204], [503])
    assert server.stderr_messages.endswith("holdfast has stopped\n")
    assert "Traceback" not in server.stderr_messages
    assert "WARNING" not in server.stderr_messages


def test_a_second_signal_stops_a_server_on_the_spot(site: Site):
    server = site.serve()
    with socket.create_connection(("127.0.0.1", site.port)) as slow:
        head = f"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.token}\r\n"
        slow.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 100")  # now it waits for the body
        server.send(signal.SIGTERM)
        with pytest.raises(httpx2.TransportError):
            while True:  # until it takes nobody in any more
                site.http().get("/v1/health")
        assert server.exit_code is None
        server.send(signal.SIGTERM)
        wait_until_sync(lambda: server.exit_code is not None, "it stops", describe=lambda: server.stderr_messages)
    assert server.exit_code == 1


def test_a_server_that_was_killed_is_followed_at_once_by_another_on_the_same_port(site: Site):
    server = site.serve()
    with site.http() as http:
        for number in range(3):
            http.post("/v1/addresses/jobs/send", json={"id": f"job-{number}", "payload": number}).raise_for_status()
        held = http.post("/v1/addresses/jobs/claim?wait=20", json={}).json()
        http.post(f"/v1/deliveries/{held['id']}/steps", json={"name": "half", "output": 21}).raise_for_status()
        server.kill()
    site.serve()
    with site.http() as http:
        again = http.get(f"/v1/deliveries/{held['id']}").raise_for_status().json()  # still its listener's
        assert [(step["name"], step["output"]) for step in again["steps"]] == [("half", 21)]
        done = http.post(f"/v1/deliveries/{held['id']}/complete", json={"output": 42}).json()
        assert done == {"state": "completed"}
        entries = http.get("/v1/audit").json()["items"]
        assert [entry["action"] for entry in entries] == ["send"] * 3
        assert httpx2.get(f"http://127.0.0.1:{site.port}/v1/whoami").status_code == 401
    kept = forked_python.run([*CLI, "audit", "--json", "--url", site.url], capture_output=True, text=True, check=True)
    assert [entry["target"] for entry in json.loads(kept.stdout)] == ["jobs/job-2", "jobs/job-1", "jobs/job-0"]
