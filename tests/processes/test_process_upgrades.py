"""A fleet of the previous release is upgraded to this one under load, and rolled back.

The code of the previous release is in ``previous_release``, as an archive, because a shallow clone has no earlier
commits. It is the latest commit whose schema this release migrates. ``scripts/pack_previous_release.py`` packs another
one: run it with the last release when you add the first migration after it.
"""

from __future__ import annotations

import signal
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import fleets
import postgres_server
import psycopg
import pytest
from app_processes import HERE, LIBRARY, App, World
from postgres_processes import PgWorld

from holdfast.stores.sql.schema import MIGRATIONS, latest_version
from waits import wait_until_sync

WORKER_COUNT = 2
NEWER = 1000
"""A version of the schema that no release knows yet."""


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What makes a process use the previous release: its environment."""
    [archive] = (HERE / "previous_release").glob("*.tar.xz")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return {"PYTHONPATH": f"{folder}:{HERE}"}


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world without tables: the first process makes them. ``--full-load``: with many runs at once."""
    if request.config.getoption("--full-load"):
        monkeypatch.setattr(fleets, "SLOTS", fleets.MANY_SLOTS)
    with postgres_server.database(empty=True) if request.param == "postgres" else nullcontext("") as url:
        world = PgWorld(folder, url) if url else World(folder)
        yield world
        world.clean_up()


def read_schema_version(world: World) -> int:
    if isinstance(world, PgWorld):
        return int(world.tables.ask("SELECT value FROM meta WHERE name = 'version'")[0][0])
    with closing(sqlite3.connect(world.database, timeout=10)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def require_newer_release(world: World) -> None:
    """What an incompatible migration of a newer release does."""
    if isinstance(world, PgWorld):
        with psycopg.connect(world.url) as connection:
            connection.execute("UPDATE holdfast.meta SET value = %s WHERE name = 'compatible_from'", (str(NEWER),))
        return
    with closing(sqlite3.connect(world.database, timeout=10)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'compatible_from'", (str(NEWER),))
        connection.execute(f"PRAGMA user_version = {NEWER}")


def drain(world: World, workers: list[App], others: list[App]) -> None:
    """Stop workers one by one, while the others work."""
    for worker in workers:
        worker.send(signal.SIGTERM)
        worker.ends()
        fleets.wait_until_at_work(world, others)


def test_a_fleet_is_upgraded_and_rolled_back_under_load(fleet: World, previous: dict[str, str]):
    old = [fleets.start_worker(fleet, **previous) for _ in range(WORKER_COUNT + 1)]
    earlier_version = read_schema_version(fleet)
    clients = [fleets.start_client(fleet, "old", **previous)]
    fleets.wait_until_at_work(fleet, old)

    new = [fleets.start_worker(fleet) for _ in range(WORKER_COUNT)]
    assert earlier_version < read_schema_version(fleet) == latest_version()
    clients.append(fleets.start_client(fleet, "new"))
    fleets.wait_until_at_work(fleet, [*old, *new])
    old[0].kill()
    drain(fleet, old[1:], new)
    for client in clients:  # the old one, too, has all its runs executed by the new workers
        fleets.wait_until_confirmed(fleet, client, "ended")

    rolled_back = [fleets.start_worker(fleet, **previous) for _ in range(WORKER_COUNT)]
    fleets.wait_until_at_work(fleet, rolled_back)
    drain(fleet, new, rolled_back)
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended")
    fleets.close(fleet, clients)

    end = fleets.check_fleet(fleet, clients, killed=[old[0].pid])
    old_pids, new_pids = {app.pid for app in old}, {app.pid for app in new}
    assert fleets.find_handed_over(end, old_pids, new_pids), "the new workers completed runs of the old ones"
    assert fleets.find_handed_over(end, new_pids, {app.pid for app in rolled_back}), "and the other way around"
    for app in (*old, *rolled_back, clients[0]):
        assert str(LIBRARY) not in app.stdout_lines
        assert "Traceback" not in app.stderr_messages, str(app)
    for app in (*new, clients[1]):
        assert "Traceback" not in app.stderr_messages, str(app)
    assert {app.stdout_lines[0] for app in new} == {str(LIBRARY)}


def test_the_previous_release_does_not_start_after_a_migration_that_it_cannot_use(
    fleet: World, previous: dict[str, str]
):
    worker = fleets.start_worker(fleet, **previous)
    worker.send(signal.SIGTERM)
    worker.ends()
    require_newer_release(fleet)
    refused = fleet.spawn("fleet_worker.py", **previous)
    wait_until_sync(lambda: refused.exit_code is not None, "it ends", describe=fleet.describe)
    assert refused.exit_code == 1
    assert "SchemaTooNew" in refused.stderr_messages.splitlines()[-1], str(refused)
    assert "Upgrade this one" in refused.stderr_messages
    assert MIGRATIONS[-1].compatible_from < NEWER
