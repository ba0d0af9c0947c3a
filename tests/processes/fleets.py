"""A fleet under load, for tests that replace its workers, its release, or its database server meanwhile.

Its workers and clients are ``apps/fleet_worker.py`` and ``apps/fleet_client.py``. Clients print what the store has
confirmed to them, so that a test can hold it against what the store has in the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from app_processes import App, World
from ledger import Snapshot, check_end

from waits import wait_until_sync

SLOTS, MANY_SLOTS = 6, 60
"""How many parcels a client has under way at once."""


def start_worker(world: World, **settings: object) -> App:
    """Start a worker, and wait until it serves."""
    return world.spawn("fleet_worker.py", **settings).wait_for_output("ready")


def start_client(world: World, name: str, **settings: object) -> App:
    """Start a client that starts runs called ``parcel-<name>-<number>``."""
    return world.spawn("fleet_client.py", NAME=name, SLOTS=SLOTS, **settings).wait_for_output("ready")


def read_confirmations(clients: Sequence[App]) -> dict[str, dict[str, Any]]:
    """What clients were told, by event and run."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for client in clients:
        for line in client.stdout_lines:
            if line.startswith("["):
                event, run, answer = json.loads(line)
                found[event][run] = answer
    return found


def wait_until_at_work(world: World, workers: Sequence[App]) -> None:
    """Wait until each of these workers starts another step from now on."""
    seen = len(world.lines())

    def are_at_work() -> bool:
        return {app.pid for app in workers} <= {line.pid for line in world.lines()[seen:] if line.phase == "start"}

    wait_until_sync(are_at_work, "all workers are at work", describe=world.describe)


def wait_until_confirmed(world: World, client: App, event: str, count: int = 6) -> None:
    """Wait until the client has been told this of that many more runs."""
    seen = len(read_confirmations([client])[event])
    wait_until_sync(
        lambda: len(read_confirmations([client])[event]) >= seen + count,
        f"{client.name}: {count} more have {event}",
        describe=world.describe,
    )


def close(world: World, clients: Sequence[App]) -> None:
    """Let the clients start nothing more, and wait until they have read the results of all their runs."""
    world.open_gate("closing")
    for client in clients:
        client.ends()


def check_fleet(world: World, clients: Sequence[App], killed: Sequence[int] = ()) -> Snapshot:
    """Hold what clients were told and what steps did against the store, after all has ended."""
    end = world.snapshot()
    confirmed = read_confirmations(clients)
    assert confirmed["started"].keys() == confirmed["signaled"].keys() == confirmed["ended"].keys()
    assert confirmed["started"].keys() == {run for run in end.journals if run.startswith("parcel-")}
    for run, answer in confirmed["ended"].items():
        check_result(run, end.journals[run].output, may_be_unknown=bool(killed))
        assert answer == end.journals[run].output, f"{run}: its client read {answer}"
        assert end.journals[f"label-{run.removeprefix('parcel-')}"].state == "completed"
    check_end(end, killed=killed)
    return end


def check_result(run: str, output: Any, *, may_be_unknown: bool) -> None:
    """Check the result of a parcel."""
    name = run.removeprefix("parcel-")
    packed, weighed, address, label, charged, *rest = output
    assert [packed, weighed, address, label] == [f"{name} packed", f"{name} weighed", run, f"{name} label"]
    assert charged == f"{name} charged" or (may_be_unknown and charged == "unknown"), f"{run}: {charged}"
    assert rest == [f"{name} a", f"{name} b", f"{name} c"]


def find_handed_over(end: Snapshot, before: Collection[int], after: Collection[int]) -> list[str]:
    """The runs of which these processes recorded the first outcome and those the last."""
    return [
        journal.id
        for journal in end.journals.values()
        if end.pids[journal.records[0].worker] in before and end.pids[journal.records[-1].worker] in after
    ]
