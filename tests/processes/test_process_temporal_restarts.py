"""The Temporal server is killed and started again on its file, in the middle of everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_processes import ForkServer
from temporal_processes import TemporalWorld, check_steps

from temporal_server import TemporalServer
from waits import wait_until_sync


@pytest.fixture
def server(folder: Path) -> Iterator[TemporalServer]:
    """One that may be broken."""
    server = TemporalServer(folder / "temporal.db")
    yield server.start()
    server.stop()


@pytest.fixture
def restarted(folder: Path, server: TemporalServer, agent_forks: ForkServer) -> Iterator[TemporalWorld]:
    world = TemporalWorld(folder, server.url, agent_forks)
    yield world
    world.clean_up()


def test_runs_come_through_the_death_of_the_server_and_finished_steps_are_not_repeated(
    restarted: TemporalWorld, server: TemporalServer
):
    world = restarted
    world.lease = 20.0  # no worker is taken for dead because the server was away; what is lost with it comes again
    worker = world.worker("busy held letters")
    held = world.client.start_sync("held", "x")
    letters = world.client.start_sync("letters", "post", 1)
    busy = [world.client.start_sync("busy", f"{number}", 40) for number in range(3)]
    waiting = [world.spawn("wait_for_run.py", run).wait_for_output("ready") for run in (held, letters)]
    world.open_gate("post")
    world.wait_for_line("hold", "start", run=held)
    world.wait_for_line("hold", "finish", run=letters)
    wait_until_sync(
        lambda: all(len(world.lines(run=run, phase="finish")) > 5 for run in busy), "all go on", describe=world.describe
    )
    server.kill()
    world.open_gate("x")  # this step ends while there is nobody to be told
    world.wait_for_line("hold", "finish", run=held)
    server.start()

    for run in busy:
        assert world.wait_for_end(run).output == 40
    world.client.signal_sync(letters, "letter", "hello")
    assert world.wait_for_end(held).output == ["x before", "x", "x after"]
    assert world.wait_for_end(letters).output == ["post", "hello"]
    assert [app.read_answers()[-1] for app in waiting] == [["x before", "x", "x after"], ["post", "hello"]]
    end = world.snapshot()
    check_steps(end)
    begun = Counter(line.key for line in end.lines if line.phase == "start")
    assert set(begun.values()) == {1}, "an outcome is told when there is a server again"
    assert len(begun) == 3 * 40 + 5
    assert worker.exit_code is None


def test_what_the_sdk_says_meanwhile_is_not_among_what_a_program_prints(
    restarted: TemporalWorld, server: TemporalServer
):
    world = restarted
    world.worker("held")
    run = world.client.start_sync("held", "x")
    waiting = world.spawn("wait_for_run.py", run).wait_for_output("ready")
    server.kill()
    wait_until_sync(
        lambda: "temporalio_client::retry" in waiting.stderr_messages,
        "the SDK tries again",
        describe=lambda: waiting,
    )
    assert waiting.stdout_lines == ["ready"]


def test_a_worker_that_starts_while_there_is_no_server_says_so_and_waits(
    restarted: TemporalWorld, server: TemporalServer
):
    world = restarted
    server.kill()
    worker = world.fork("shared")
    wait_until_sync(lambda: "waiting for the store: " in worker.stderr_messages, "it says so", describe=lambda: worker)
    server.start()
    worker.wait_for_output("ready")
    run = world.client.start_sync("shared", "x")
    assert world.wait_for_end(run).output == worker.pid
