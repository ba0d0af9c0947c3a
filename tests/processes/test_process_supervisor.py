"""``holdfast worker --processes``: worker processes that die are replaced, and stop with their supervisor."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from app_processes import HERE, Service, World
from ledger import check_end
from prometheus_client.parser import text_string_to_metric_families

from free_ports import free_port
from holdfast.processes.supervisor import PASS_ON_DELAY_S
from waits import wait_until_sync

ON_POSTGRES = ("test_a_killed_worker_process_is_replaced_and_nothing_is_lost",)
"""What always runs on PostgreSQL, too."""
FLOWS = str(HERE / "apps" / "flows.py")


def start_workers(world: World, *options: str, count: int = 2, **settings: object) -> Service:
    """Start a supervisor, and wait until all of its processes serve."""
    service = world.service("worker", FLOWS, "--processes", str(count), *options, **settings)
    wait_until_sync(lambda: len(find_ready(service)) == count, "all are ready", describe=lambda: service)
    return service


def find_ready(service: Service) -> list[int]:
    """The living processes that are ready."""
    return [pid for pid in service.process_pids if f"worker process {pid} is ready" in service.stderr_text]


def read_probe(port: int, path: str) -> tuple[int, dict[str, object]]:
    """The status and the value that a probe gets; 0 if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def stop(service: Service) -> None:
    service.send(signal.SIGTERM)
    service.ends()


def test_a_killed_worker_process_is_replaced_and_nothing_is_lost(world: World):
    service = start_workers(world)
    runs = [world.client.start_sync("busy", f"{n}", 40) for n in range(6)]
    victim = world.wait_for_line("nap", "finish").pid
    assert victim in service.process_pids
    os.kill(victim, signal.SIGKILL)
    said = service.wait_for_log(f"worker process {victim} was killed by SIGKILL")
    assert said.endswith("another one starts now")
    for run in runs:
        assert world.wait_for_end(run).output == 40
    check_end(world.snapshot(), killed=[victim])
    wait_until_sync(lambda: len(find_ready(service)) == 2, "two serve again", describe=lambda: service)
    stop(service)
    assert not service.living_pids


def test_a_supervisor_that_is_told_to_stop_waits_for_steps_in_flight(world: World):
    service = start_workers(world)
    run = world.client.start_sync("relay", "x")
    holder = world.wait_for_line("hold", "start", run=run).pid
    service.send(signal.SIGTERM)
    wait_until_sync(lambda: service.process_pids == [holder], "the idle process stops", describe=lambda: service)
    assert service.exit_code is None
    world.open_gate("x-1")
    service.ends()
    handed_over = world.journal(run)
    assert (handed_over.state, handed_over.deliveries, len(handed_over.records)) == ("pending", 0, 1)
    world.open_gate("x-2")
    successor = start_workers(world)
    world.wait_for_end(run)
    check_end(world.snapshot())
    stop(successor)


@pytest.mark.parametrize("first_word", ["stopping: ", "SIGTERM: "], ids=["later", "soon"])
def test_a_second_signal_stops_all_processes_at_once(world: World, first_word: str):
    service = start_workers(world, "--grace", "1000")
    run = world.client.start_sync("relay", "x")
    holder = world.wait_for_line("hold", "start", run=run).pid
    service.send(signal.SIGTERM)
    service.wait_for_log(first_word)
    service.send(signal.SIGTERM)
    service.ends()
    assert [line.phase for line in world.lines("hold", run=run, pid=holder)] == ["start", "stopped"]
    assert world.journal(run).deliveries == 0, "it was handed over, and its worker did not die"


def test_a_stop_signal_that_a_service_manager_sends_to_every_process_counts_once(world: World):
    service = start_workers(world, "--grace", "1000")
    run = world.client.start_sync("relay", "x")
    holder = world.wait_for_line("hold", "start", run=run).pid
    for pid in [service.pid, *service.process_pids]:  # as systemd does by default
        os.kill(pid, signal.SIGTERM)
    passed_on_at = time.monotonic() + 3 * PASS_ON_DELAY_S
    wait_until_sync(lambda: service.process_pids == [holder], "the idle process stops", describe=lambda: service)
    wait_until_sync(lambda: time.monotonic() > passed_on_at, "the supervisor would have passed it on")
    assert service.process_pids == [holder]
    world.open_gate("x-1")
    service.ends()
    assert [line.phase for line in world.lines("hold", run=run)] == ["start", "finish"]


def test_processes_whose_supervisor_is_killed_finish_their_step_hand_over_and_stop(world: World):
    service = start_workers(world)
    run = world.client.start_sync("relay", "x")
    holder = world.wait_for_line("hold", "start", run=run).pid
    service.kill()
    wait_until_sync(lambda: service.living_pids == [holder], "the idle process stops", describe=lambda: service)
    assert f"the supervisor (pid {service.pid}) has died" in service.stderr_text
    peer = start_workers(world)
    world.open_gate("x-1")
    wait_until_sync(lambda: not service.living_pids, "the busy process stops", describe=lambda: service)
    world.open_gate("x-2")
    assert world.wait_for_end(run).deliveries == 0
    check_end(world.snapshot())
    stop(peer)


def test_a_process_that_dies_again_and_again_is_replaced_later_each_time(world: World):
    service = start_workers(world, count=1)
    for when in ("now", "in 0.5 s (death 2 in a row)", "in 1 s (death 3 in a row)"):
        (pid,) = wait_until_sync(lambda: find_ready(service), "a process serves", describe=lambda: service)
        os.kill(pid, signal.SIGKILL)
        assert service.wait_for_log(f"worker process {pid} was killed").endswith(f"another one starts {when}")
    wait_until_sync(lambda: find_ready(service), "a process serves", describe=lambda: service)
    stop(service)


def test_a_process_that_hangs_is_killed_and_replaced(world: World):
    service = start_workers(world, "--max-blocked", "1", count=1)
    (pid,) = service.process_pids
    os.kill(pid, signal.SIGSTOP)
    service.wait_for_log(f"worker process {pid} has not reported for 5 s: it is killed")
    wait_until_sync(lambda: set(find_ready(service)) - {pid}, "another one is ready", describe=lambda: service)
    stop(service)


def test_processes_that_cannot_start_end_the_supervisor_with_one_error(world: World):
    service = world.service("worker", FLOWS + ":nope", "--processes", "4")
    wait_until_sync(lambda: service.exit_code is not None, "it ends", describe=lambda: service)
    assert service.exit_code == 1
    assert service.stderr_text.count("error: ") == 1
    assert "exited with code 1" in service.stderr_text
    assert not service.living_pids


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_probes_answer_from_the_start_of_a_worker_to_its_end(world: World, options: list[str]):
    port = free_port()
    service = world.service("worker", FLOWS, "--probe-address", f"127.0.0.1:{port}", *options)
    wait_until_sync(lambda: read_probe(port, "/readyz")[0] == 200, "it is ready", describe=lambda: service)
    assert read_probe(port, "/healthz") == (200, {"ok": True})
    run = world.client.start_sync("relay", "x")
    world.wait_for_line("hold", "start", run=run)
    service.send(signal.SIGTERM)
    stopping = (503, {"ready": False, "reason": "it is stopping"})
    wait_until_sync(lambda: read_probe(port, "/readyz") == stopping, "it is stopping", describe=lambda: service)
    assert read_probe(port, "/healthz") == (200, {"ok": True})
    service.wait_for_log("stopping: ")
    world.open_gate("x-1")
    service.ends()
    assert read_probe(port, "/healthz") == (0, {})


def read_ended_runs(port: int) -> tuple[int, int]:
    """How many runs have ended, and how many are held, by the page of metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        families = {one.name: one.samples for one in text_string_to_metric_families(response.read().decode())}
    ended = sum(sample.value for sample in families["holdfast_runs_ended"] if sample.name.endswith("_total"))
    return int(ended), int(sum(sample.value for sample in families["holdfast_runs_held"]))


def test_the_page_of_a_supervisor_has_the_metrics_of_all_processes_also_of_killed_ones(world: World):
    port = free_port()
    service = start_workers(world, "--probe-address", f"127.0.0.1:{port}")
    held = world.client.start_sync("relay", "x")
    victim = world.wait_for_line("hold", "start", run=held).pid
    runs = [world.client.start_sync("busy", f"{n}", 3) for n in range(20)]
    for run in runs:
        world.wait_for_end(run)
    assert len({line.pid for line in world.lines("nap")}) == 2
    wait_until_sync(lambda: read_ended_runs(port) == (20, 1), "all are counted", describe=lambda: service)
    os.kill(victim, signal.SIGKILL)
    for gate in ("x-1", "x-2"):
        world.open_gate(gate)
    world.wait_for_end(held)
    wait_until_sync(lambda: read_ended_runs(port) == (21, 0), "its runs still count", describe=lambda: service)
    stop(service)


def test_a_worker_that_blocks_its_event_loop_is_alive(world: World, tmp_path: Path):
    port = free_port()
    app = tmp_path / "blocking.py"
    app.write_text(
        "import time\nfrom holdfast import step, workflow\n"
        "@step\nasync def block() -> None:\n    open('blocked', 'w').close()\n    time.sleep(600)\n"
        "@workflow\nasync def blocked() -> None:\n    await block()\n"
    )
    service = world.service("worker", str(app), "--probe-address", f"127.0.0.1:{port}")
    service.wait_for_log("serves blocked")
    world.client.start_sync("blocked")
    wait_until_sync((world.folder / "blocked").exists, "the step blocks", describe=lambda: service)
    assert read_probe(port, "/healthz") == (200, {"ok": True})
    assert read_probe(port, "/readyz")[0] == 200  # it still renews its lease


def test_children_that_a_step_left_behind_do_not_keep_the_probe_address_of_their_dead_worker(world: World):
    address = f"127.0.0.1:{free_port()}"
    victim = world.service("worker", FLOWS, "--probe-address", address)
    victim.wait_for_log("serves ")
    run = world.client.start_sync("children", "x")
    world.wait_for_line("hold", "start", run=run)
    orphans = [int(pid) for pid in world.journal(run).records[0].payload.decode().strip('"').split()]
    try:
        victim.kill()
        successor = world.service("worker", FLOWS, "--probe-address", address)
        port = int(address.rpartition(":")[2])
        wait_until_sync(lambda: read_probe(port, "/readyz")[0] == 200, "it is ready", describe=lambda: successor)
    finally:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
