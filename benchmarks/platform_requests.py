"""What single requests cost a server: CPU milliseconds of `holdfast serve` for each, over SQLite on this machine.

Requests are sent one after the other over one connection, by a client that only writes and reads bytes. Run as a
program, it compares with another worktree, in turns: ``python -m benchmarks.platform_requests OTHER [--pairs N]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.server_process import ROOT, ServerProcess
from benchmarks.sqlite_benchmarks import Measurement, median
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.urls import create_store

WORKFLOW = "greet"
RUN_COUNT = 300
TARGETS_MS = {"POST start": 0.5, "GET run": 0.3, "GET list of 50": 0.8}


class RawConnection:
    """A connection that sends requests and reads responses, and does as little as possible."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n".encode()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(content)
        self._socket.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + self._head + length + b"\r\n" + content)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(1 << 18)
        head, _, data = received.partition(b"\r\n\r\n")
        assert head[9:10] == b"2", received
        wanted = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while len(data) < wanted:
            data += self._socket.recv(1 << 18)
        return json.loads(data) if data else None

    def close(self) -> None:
        self._socket.close()


def measure_requests(folder: Path, tree: Path = ROOT) -> dict[str, float]:
    """CPU milliseconds of the server for each kind of request."""
    folder.mkdir(exist_ok=True)
    url = f"sqlite:///{folder / 'runs.db'}"
    asyncio.run(_announce_workflow(url))
    server = ServerProcess(url, folder / "server.log", tree)
    server.start()
    try:
        return _measure_server(server)
    finally:
        server.stop()


def _measure_server(server: ServerProcess) -> dict[str, float]:
    connection = RawConnection(server.port)
    costs: dict[str, float] = {}

    def measure(name: str, count: int, request: Callable[[int], Any]) -> list[Any]:
        began = server.get_cpu_s()
        answers = [request(number) for number in range(count)]
        costs[name] = 1000 * (server.get_cpu_s() - began) / count
        return answers

    def start(number: int) -> Any:
        body = {"workflow": WORKFLOW, "kwargs": {"name": f"person {number}"}, "id": f"greet-{number}"}
        return connection.request("POST", "/v1/runs", body)

    def send(number: int) -> Any:
        return connection.request("POST", "/v1/addresses/load/send", {"payload": {"number": number}})

    listener: dict[str, Any] = {"name": "one"}

    def claim(_: int) -> str:
        delivery = connection.request("POST", "/v1/addresses/load/claim", listener)
        listener["listener_id"] = delivery["listener_id"]
        listener.setdefault("active_deliveries", []).append(delivery["id"])
        return delivery["id"]

    measure("warm-up", 50, lambda number: (start(-number - 1), connection.request("GET", "/v1/runs?limit=50")))
    connection.request("GET", "/v1/openapi.json")  # the document is built for the first request
    measure("POST start", RUN_COUNT, start)
    measure("GET run", 1000, lambda number: connection.request("GET", f"/v1/runs/greet-{number % RUN_COUNT}"))
    measure("GET list of 50", 200, lambda _: connection.request("GET", "/v1/runs?limit=50"))
    measure("POST send", RUN_COUNT, send)
    ids = measure("POST claim", 50, claim)
    step = {"name": "work", "output": {"done": True}}
    measure("POST step", 50, lambda number: connection.request("POST", f"/v1/deliveries/{ids[number]}/steps", step))
    measure(
        "POST complete",
        50,
        lambda number: connection.request("POST", f"/v1/deliveries/{ids[number]}/complete", {"output": number}),
    )
    measure("GET openapi.json", 20, lambda _: connection.request("GET", "/v1/openapi.json"))
    connection.close()
    del costs["warm-up"]
    return costs


async def _announce_workflow(url: str) -> None:
    store = create_store(url)
    await store.open()
    await store.announce_workflows([WorkflowSpec(WORKFLOW, ("name",))])
    await store.close()


async def measure_platform_requests(folder: Path, rounds: int) -> list[Measurement]:
    """CPU of the server for single requests."""
    costs = [await asyncio.to_thread(measure_requests, folder / str(number)) for number in range(rounds)]
    lines: list[Measurement] = []
    for name in costs[0]:
        cost, target = median([one[name] for one in costs]), TARGETS_MS.get(name)
        if target is None:
            lines.append(Measurement(name, cost, "ms of CPU"))
        else:
            lines.append(Measurement(name, cost, "ms of CPU", "", f"<= {target} ms", cost <= target))
    return lines


BENCHMARKS = {"platform-requests": measure_platform_requests}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.platform_requests", description=__doc__)
    parser.add_argument("other", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    costs: dict[Path, list[dict[str, float]]] = {options.other.resolve(): [], ROOT: []}
    for number in range(options.pairs):
        for tree in list(costs) if number % 2 else reversed(costs):
            with tempfile.TemporaryDirectory() as folder:
                costs[tree].append(measure_requests(Path(folder), tree))
    for name in costs[ROOT][0]:
        there, here = (median([one[name] for one in found]) for found in costs.values())
        print(f"{name:<20} {there:6.2f} -> {here:6.2f} ms of CPU, {there / here:.1f} times", flush=True)


if __name__ == "__main__":
    main()
