"""A newer Holdfast migrates the database while workers of an older one are at work."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import fleets
import psycopg
from app_processes import App, World
from ledger import check_end
from postgres_processes import PgWorld

from waits import wait_until_sync

ON_POSTGRES = (
    "test_a_worker_that_is_too_old_for_a_migration_stops_and_says_why",
    "test_an_idle_worker_that_is_too_old_for_a_migration_stops_soon",
    "test_a_client_that_is_too_old_for_a_migration_stops_waiting_and_says_why",
    "test_a_worker_goes_on_after_a_migration_that_only_adds",
)
SOON_S = 30.0
"""Less than the minute after which a worker checks what it holds in any case."""
NEWER = 1000
"""The version that a newer Holdfast has brought the schema to."""


def migrate(world: World, *, compatible_from: int) -> None:
    """What a newer Holdfast does."""
    if isinstance(world, PgWorld):
        with psycopg.connect(world.url) as connection:
            for name, value in (("version", NEWER), ("compatible_from", compatible_from)):
                connection.execute("UPDATE holdfast.meta SET value = %s WHERE name = %s", (str(value), name))
        return
    with closing(sqlite3.connect(world.database, timeout=10)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'compatible_from'", (str(compatible_from),))
        connection.execute(f"PRAGMA user_version = {NEWER}")


def ends(world: World, app: App) -> None:
    wait_until_sync(lambda: app.exit_code is not None, f"{app.name} ends", describe=world.describe)


def test_a_worker_that_is_too_old_for_a_migration_stops_and_says_why(world: World):
    old = world.worker(LEASE=100)
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run, pid=old.pid)
    migrate(world, compatible_from=NEWER)
    ends(world, old)
    assert old.exit_code == 1
    assert "SchemaTooNew" in old.stderr_messages.splitlines()[-1]
    assert "a newer Holdfast has migrated it. Upgrade this one" in old.stderr_messages
    assert world.lines("hold", "stopped", run=run), "its step was told to stop"
    assert len(world.journal(run).records) == 1

    migrate(world, compatible_from=1)  # the worker that comes next stands for one of the newer Holdfast
    new = world.worker()
    world.open_gate("x")
    assert world.wait_for_end(run).output == ["x before", "x", "x after"]
    assert [line.pid for line in world.lines("hold", "finish", run=run)] == [new.pid]
    check_end(world.snapshot(), killed=[old.pid])


def test_an_idle_worker_that_is_too_old_for_a_migration_stops_soon(world: World):
    worker = world.worker()
    migrate(world, compatible_from=NEWER)
    wait_until_sync(lambda: worker.exit_code is not None, "it ends", timeout_s=SOON_S, describe=world.describe)
    assert worker.exit_code == 1
    assert "SchemaTooNew" in worker.stderr_messages.splitlines()[-1]


def test_a_client_that_is_too_old_for_a_migration_stops_waiting_and_says_why(world: World):
    worker = fleets.start_worker(world)  # makes the workflows known
    worker.send(signal.SIGTERM)
    worker.ends()
    client = fleets.start_client(world, "x")
    fleets.wait_until_confirmed(world, client, "signaled")
    migrate(world, compatible_from=NEWER)
    ends(world, client)
    assert client.exit_code == 1
    assert "SchemaTooNew" in client.stderr_messages.splitlines()[-1]


def test_a_worker_goes_on_after_a_migration_that_only_adds(world: World):
    worker = world.worker()
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run)
    migrate(world, compatible_from=1)
    world.open_gate("x")
    world.wait_for_end(run)
    assert world.wait_for_end(world.client.start_sync("shared", "y")).output == worker.pid
