"""Listeners: workers of which only the lease tells whether they live are shown as what they are."""

from __future__ import annotations

import asyncio
import re
import socket

from cli_project import Project

from holdfast import Client
from holdfast.stores.operations import NewRun, ReleaseRun, StartRun
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

ADDRESS = "billing"


async def deliver(project: Project, lease: float) -> None:
    """Two runs for a listener on this machine, one of which it has taken before and failed with; then both are held."""
    store = SqliteStore(project.database)
    await store.open()
    try:
        here = socket.gethostname()
        listener = await store.workers.register(NewWorker("biller", here, 0, (ADDRESS,), None, is_listener=True), 60.0)
        for run_id in ("bill-1", "bill-2"):
            new = NewRun(run_id, ADDRESS, b'{"payload":1}', b"d", b"s", store.now(), is_delivery=True)
            await store.commit([StartRun(new)])
        [first] = await store.claims.claim(listener, workflows=[ADDRESS], queues=None, limit=1)
        await store.commit([ReleaseRun(first.key, first.epoch, error=b'{"type":"ValueError"}')])
        [_] = await store.claims.claim(listener, workflows=[ADDRESS], queues=None, limit=1)
        assert await store.workers.renew_listener_lease(listener, lease)
    finally:
        await store.close()


def test_a_listener_is_judged_by_its_lease_alone_and_called_one(project: Project):
    asyncio.run(deliver(project, 60.0))
    out = project.here("show", "bill-1").out
    where = re.escape(socket.gethostname())
    assert re.search(rf"^held by +listener 1 \(biller at {where}\), alive$", out, re.M)
    assert re.search(r"^deliveries +1 of 3 without a new record$", out, re.M)
    assert re.search(rf"^ +1  listener biller at {where}, alive, 0 records$", out, re.M)
    [data] = project.here("show", "bill-1", "--json").json["workers"]
    assert (data["is_listener"], data["pid"], data["is_alive"]) == (True, None, True)
    out = project.here("doctor").out
    assert re.search(rf"^ok +listeners +1 alive \(biller at {where}\) *$", out, re.M)
    assert re.search(r"^ok +workers +0 alive *$", out, re.M)
    assert "nobody listens" not in project.here("show", "bill-2").out


def test_a_listener_with_an_expired_lease_is_dead(project: Project):
    asyncio.run(deliver(project, -1.0))
    out = project.here("show", "bill-1").out
    assert re.search(
        r"^held by +listener 1 \(biller at .*\), which is dead: the next listener takes it over$", out, re.M
    )
    assert "nobody listens to 'billing', where run 'bill-2' waits to be taken" in project.here("show", "bill-2").out
    assert re.search(r"^ok +listeners +0 alive; 1 silent one whose", project.here("doctor").out, re.M)


def test_a_fork_is_delivered_like_its_source(project: Project):
    asyncio.run(deliver(project, 60.0))

    async def fork() -> bool:
        async with Client(f"sqlite:///{project.database}") as client:
            handle = await client.fork("bill-1", id="bill-1b")
        store = SqliteStore(project.database)
        await store.open()
        try:
            run = await store.get_run(handle.run_id)
        finally:
            await store.close()
        assert run is not None
        return run.is_delivery

    assert asyncio.run(fork())
