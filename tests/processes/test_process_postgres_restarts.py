"""The database server is killed and started again, in the middle of everything: nothing is lost, nothing done twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger import SIGNAL, check_end
from postgres_faults import Server
from postgres_processes import PgWorld

from holdfast.errors import StoreUnavailable
from waits import wait_until_sync

LEASE = 100
"""Seconds: however slow the machine, no worker is taken for dead because the server was away."""
RESTARTS = 3


@pytest.fixture
def server() -> Iterator[Server]:
    """One that writes to disk what it has promised, and may be broken."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def restarted(folder: Path, server: Server) -> Iterator[PgWorld]:
    world = PgWorld(folder, server.url)
    yield world
    world.clean_up()


def test_a_server_that_is_restarted_again_and_again_loses_and_doubles_nothing(restarted: PgWorld, server: Server):
    survive_restarts(restarted, server, RESTARTS)


def survive_restarts(world: PgWorld, server: Server, restarts: int) -> None:
    """Restart the server so many times under load, and hold what came of it against the ledger."""
    workers = [world.worker(LEASE=LEASE) for _ in range(2)]
    mixed = [world.client.start_sync("mixed", f"{n}") for n in range(4)]
    letters = world.client.start_sync("letters", "x", restarts)
    world.open_gate("x")
    for number in range(restarts):
        for run in mixed:
            is_progressing(world, run)
        restart = threading.Thread(target=server.restart)
        restart.start()
        send(world, letters, f"{number}")
        restart.join()
    for n, run in enumerate(mixed):
        is_progressing(world, run)
        world.open_gate(f"{n}")
        ended = world.wait_for_end(run)
        assert ended.deliveries == 0
        assert ended.output == sum(record.name == "is_over" for record in ended.records) - 1
    ended = world.wait_for_end(letters)
    assert ended.output == ["x", *(f"{number}" for number in range(restarts))]
    assert len(ended.list_records(SIGNAL)) == restarts
    check_end(world.snapshot())
    for worker in workers:
        assert worker.exit_code is None
        assert "Traceback" not in worker.stderr_messages, str(worker)
    assert set(world.live_workers().values()) == {worker.pid for worker in workers}


def test_a_worker_that_starts_while_there_is_no_server_says_so_and_waits(restarted: PgWorld, server: Server):
    world = restarted
    server.control("stop", "-m", "immediate")
    worker = world.spawn("worker.py")
    wait_until_sync(lambda: "waiting for the store: " in worker.stderr_messages, "it says so", describe=lambda: worker)
    server.control("start")
    worker.wait_for_output("ready")
    run = world.client.start_sync("shared", "x")
    assert world.wait_for_end(run).output == worker.pid


def is_progressing(world: PgWorld, run: str) -> None:
    """Wait until something more is recorded for a run."""
    seen = len(world.journal(run).records)
    world.wait_for_run(run, lambda journal: len(journal.records) > seen + 3, "goes on")


def send(world: PgWorld, run: str, text: str) -> None:
    """Send a letter, however often that has to be tried."""

    def sent() -> bool:
        try:
            world.client.signal_sync(run, "letter", text, id=text)
        except StoreUnavailable:
            return False
        return True

    wait_until_sync(sent, f"letter {text} is sent", describe=world.describe)
