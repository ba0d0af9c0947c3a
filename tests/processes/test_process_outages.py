"""The database is away for longer than the lease. No worker could renew meanwhile, so none of them is declared dead."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from app_processes import App, World
from postgres_faults import Server
from postgres_processes import PgWorld

from waits import wait_until_sync

LEASE = 2.0
OUTAGE = 4.0
RUNS = 4
"""Steps in flight on each of two workers: ``once`` on one, others on the other."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def take_down(server: Server) -> None:
    server.control("stop", "-m", "immediate")
    time.sleep(OUTAGE)
    server.control("start")


def suspend_server(server: Server) -> None:
    """All connections and locks stay, and everything that was asked is answered at once when it goes on."""
    processes = [server.process, *server.process.children()]
    for process in processes:
        process.suspend()
    time.sleep(OUTAGE)
    for process in processes:
        process.resume()


@pytest.mark.parametrize("outage", [take_down, suspend_server])
def test_a_server_that_is_away_for_longer_than_the_lease_costs_no_worker_its_runs(
    folder: Path, server: Server, outage: Callable[[Server], None]
):
    world = PgWorld(folder, server.url)
    try:
        survive_outage(world, two_busy_workers(world), lambda: outage(server))
    finally:
        world.clean_up()


def test_a_disk_that_is_full_for_longer_than_the_lease_costs_no_worker_its_runs(folder: Path, small_disk: Path):
    world = World(folder)
    world.database = small_disk / "runs.db"
    world.url = f"sqlite:///{world.database}"
    world.client = type(world.client)(world.url)
    try:
        workers = two_busy_workers(world)

        def outage() -> None:
            fill(small_disk / "ballast")
            wait_until_sync(
                lambda: all("could not be renewed" in one.stderr_messages for one in workers),
                "full",
                describe=world.describe,
            )
            time.sleep(OUTAGE)
            (small_disk / "ballast").unlink()

        survive_outage(world, workers, outage)
    finally:
        world.clean_up()


def two_busy_workers(world: World) -> list[App]:
    """Two workers that have steps in flight, and a third one."""
    workers: list[App] = []
    for workflow, step in (("held_payment", "pay_at"), ("held", "hold")):
        workers.append(world.worker(LEASE=LEASE, WORKFLOWS=workflow))
        for number in range(RUNS):
            run = world.client.start_sync(workflow, f"{workflow} {number}")
            world.wait_for_line(step, "start", run=run, pid=workers[-1].pid)
    workers.append(world.worker(LEASE=LEASE))  # which could take over everything
    return workers


def survive_outage(world: World, workers: list[App], outage: Callable[[], None]) -> None:
    """After the outage every worker is the one that it was, and every step ends where it began."""
    before = world.live_workers()
    assert sorted(before.values()) == sorted(worker.pid for worker in workers)
    outage()
    time.sleep(2 * LEASE)  # all that anybody would do to the others is done by then
    for number in range(RUNS):
        world.open_gate(f"held_payment {number}")
        world.open_gate(f"held {number}")
    for run in list(world.journals()):
        ended = world.wait_for_end(run)
        assert (ended.epoch, ended.deliveries) == (1, 0)
    for step in ("pay_at", "hold"):
        for phase in ("start", "finish"):
            assert len(world.lines(step, phase)) == RUNS, f"{step} {phase}"
    assert world.live_workers() == before
    for worker in workers:
        assert "Traceback" not in worker.stderr_messages, str(worker)


def fill(ballast: Path) -> None:
    """Leave no room on its disk."""
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass
