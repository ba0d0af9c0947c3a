"""``holdfast serve --processes``: several server processes on one address, of which some are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter

import httpx2
from app_processes import HERE, Service, World
from delivery_processes import APPS
from ledger import check_end
from test_process_supervisor import read_probe

import forked_python
from free_ports import free_port
from holdfast import Client
from waits import wait_until_sync

ON_POSTGRES = ("test_a_killed_server_process_loses_no_start_that_was_acknowledged",)
"""What always runs on PostgreSQL, too."""


def start_servers(world: World, port: int, *options: str, count: int = 2) -> Service:
    """Start server processes on a port, and wait until all of them are ready."""
    service = world.service("serve", "--port", str(port), "--processes", str(count), *options)
    wait_until_sync(lambda: len(find_ready(service)) == count, "all are ready", describe=lambda: service)
    return service


def find_ready(service: Service) -> list[int]:
    return [pid for pid in service.process_pids if f"server process {pid} is ready" in service.stderr_text]


def test_a_killed_server_process_loses_no_start_that_was_acknowledged(world: World):
    port = free_port()
    servers = start_servers(world, port)
    world.worker()
    client, started, is_enough = Client(f"http://127.0.0.1:{port}"), list[str](), threading.Event()

    def start_runs() -> None:
        while not is_enough.is_set():
            started.append(client.start_sync("busy", f"{len(started)}", 2))

    starting = threading.Thread(target=start_runs)
    starting.start()
    for expected in (10, 20, 30):
        wait_until_sync(lambda expected=expected: len(started) >= expected, "runs start", describe=world.describe)
        ready = wait_until_sync(lambda: find_ready(servers), "one is ready", describe=lambda: servers)
        os.kill(ready[0], signal.SIGKILL)
        servers.wait_for_log(f"server process {ready[0]} was killed by SIGKILL")
    wait_until_sync(lambda: len(started) >= 40, "runs start", describe=world.describe)
    is_enough.set()
    starting.join()
    client.close_sync()
    for run in started:
        assert world.wait_for_end(run).output == 2
    assert len(world.journals()) == len(set(started)), "a start that was sent again was the same start"
    check_end(world.snapshot())
    servers.send(signal.SIGTERM)
    servers.ends()
    assert not servers.living_pids


def test_a_listener_whose_requests_reach_different_processes_loses_no_delivery(world: World):
    port, steps = free_port(), ("extract", "validate", "load", "report")
    servers = start_servers(world, port)
    url, ledger = f"http://127.0.0.1:{port}", world.folder / "deliveries"
    environment = {**os.environ, "HOLDFAST_URL": url, "LEDGER": str(ledger)}
    listener = forked_python.start(
        [sys.executable, str(APPS / "delivery_listener.py"), "jobs", "2"], cwd=world.folder, env=environment
    )
    try:
        client = Client(url)
        runs = [client.send_sync("jobs", ["nowhere", None]) for _ in range(8)]
        wait_until_sync(lambda: ledger.exists() and len(ledger.read_text().splitlines()) > 5, "steps are executed")
        os.kill(servers.process_pids[0], signal.SIGKILL)
        for run in runs:
            assert client.wait_sync(run, 60) == [step.upper() for step in steps]
        client.close_sync()
        done = Counter(tuple(line.split()[:2]) for line in ledger.read_text().splitlines())
        assert set(done) == {(run, step) for run in runs for step in steps}
        assert sum(done.values()) <= len(done) + 2, "only what was in flight may be executed twice"
    finally:
        listener.kill()
        listener.wait()


def test_servers_whose_supervisor_is_killed_stop_and_free_the_port(world: World):
    port, probe_port = free_port(), free_port()
    servers = start_servers(world, port, "--probe-address", f"127.0.0.1:{probe_port}")
    assert read_probe(probe_port, "/readyz")[0] == 200
    servers.kill()
    wait_until_sync(lambda: not servers.living_pids, "they stop", describe=lambda: servers)
    successors = start_servers(world, port)
    assert httpx2.get(f"http://127.0.0.1:{port}/v1/health").status_code == 200
    successors.send(signal.SIGTERM)
    successors.ends()


def test_a_server_that_may_not_listen_ends_its_supervisor_with_one_error(world: World):
    servers = world.service("serve", "--host", "0.0.0.0", "--port", str(free_port()), "--processes", "3")
    wait_until_sync(lambda: servers.exit_code is not None, "it ends", describe=lambda: servers)
    assert servers.exit_code == 1
    assert servers.stderr_text.count("error: ") == 1
    assert "holdfast keys create" in servers.stderr_text


def test_a_server_alone_answers_probes_until_it_has_stopped(world: World):
    port, probe_port = free_port(), free_port()
    server = world.service("serve", "--port", str(port), "--probe-address", f"127.0.0.1:{probe_port}")
    wait_until_sync(lambda: read_probe(probe_port, "/readyz")[0] == 200, "it is ready", describe=lambda: server)
    assert read_probe(probe_port, "/healthz") == (200, {"ok": True})
    server.send(signal.SIGTERM)
    server.ends()
    assert read_probe(probe_port, "/healthz") == (0, {})


def test_a_worker_and_its_servers_share_a_sqlite_file(world: World):
    port = free_port()
    start_servers(world, port)
    workers = world.service("worker", str(HERE / "apps" / "flows.py"), "--processes", "2")
    client = Client(f"http://127.0.0.1:{port}")
    workers.wait_for_log("is ready")
    assert [client.run_sync("busy", f"{n}", 3) for n in range(4)] == [3] * 4
    client.close_sync()
