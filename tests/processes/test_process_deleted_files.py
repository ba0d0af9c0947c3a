"""Files of the database that are deleted while workers use them."""

from __future__ import annotations

import asyncio
import signal

from app_processes import World
from ledger import check_end

from holdfast import Client
from waits import wait_until_sync


async def start(url: str, workflow: str, name: str) -> str:
    """Start a run, and leave nothing of this process connected."""
    client = Client(url)
    try:
        return (await client.start(workflow, name)).run_id
    finally:
        await client.close()


def test_workers_whose_wal_was_deleted_stop_writing_and_lose_nothing(world: World):
    workers = [world.worker(GRACE=1), world.worker(GRACE=1)]
    run = asyncio.run(start(world.url, "relay", "x"))
    world.wait_for_line("hold", "start", run=run)
    world.open_gate("x-1")
    holder = wait_until_sync(
        lambda: world.lines("hold", "start", run=run)[1:], "the second step begins", describe=world.describe
    )[0]

    for suffix in ("-wal", "-shm"):
        world.database.with_name(f"{world.database.name}{suffix}").unlink()
    for worker in workers:  # also the one that has nothing to do
        wait_until_sync(
            lambda worker=worker: "-wal was deleted" in worker.stderr_messages,
            f"{worker.name} notices",
            describe=lambda worker=worker: worker,
        )
    assert len(list(world.database.parent.glob("runs.db-wal"))) == 0, "nobody has made another one"
    for worker in workers:
        worker.send(signal.SIGTERM)
    world.open_gate("x-2")
    for worker in workers:
        wait_until_sync(
            lambda worker=worker: worker.exit_code is not None, f"{worker.name} ends", describe=lambda: workers
        )

    world.worker()
    journal = world.wait_for_end(run)
    assert [record.name for record in journal.steps.values()].count("hold") == 2
    first = [line for line in world.lines("hold", "start", run=run) if line.label == "x-1"]
    assert len(first) == 1, "what was recorded in the deleted file is not repeated"
    check_end(world.snapshot(), killed=[holder.pid])
