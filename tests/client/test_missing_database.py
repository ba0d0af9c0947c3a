"""A client of a SQLite file that does not exist: reading it creates nothing, and a first write creates it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, UnknownWorkflow
from holdfast.errors import StoreNotFound
from holdfast.services.policies import Policy

READS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "list": lambda client: client.list(),
    "get": lambda client: client.get("run"),
    "wait": lambda client: client.wait("run"),
    "events": lambda client: anext(client.events("run")),
    "tail": lambda client: anext(client.tail()),
    "describe": lambda client: client.describe("run"),
    "approvals": lambda client: client.approvals(),
    "workers": lambda client: client.workers(),
    "health": lambda client: client.health(),
    "usage_report": lambda client: client.usage_report(),
    "cancel": lambda client: client.cancel("run"),
    "signal": lambda client: client.signal("run", "go"),
    "retry": lambda client: client.retry("run"),
    "fork": lambda client: client.fork("run"),
    "prune": lambda client: client.prune("1 day"),
    "disable": lambda client: client.disable("etl"),
    "memory.get": lambda client: client.memory.get("notes", "key"),
    "memory.delete": lambda client: client.memory.delete("notes", "key"),
    "schedules.list": lambda client: client.schedules.list(),
    "schedules.delete": lambda client: client.schedules.delete("nightly"),
    "queues.list": lambda client: client.queues.list(),
    "queues.pause": lambda client: client.queues.pause("llm"),
    "addresses.list": lambda client: client.addresses.list(),
    "policies.list": lambda client: client.policies.list(),
    "keys.list": lambda client: client.keys.list(),
}
FIRST_WRITES: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "send": lambda client: client.send("reports", 1),
    "memory.put": lambda client: client.memory.put("notes", "key", 1),
    "queues.set": lambda client: client.queues.set("llm", concurrency=1),
    "queues.pause": lambda client: client.queues.pause("llm", allow_unknown=True),
    "disable": lambda client: client.disable("etl", allow_unknown=True),
    "addresses.set": lambda client: client.addresses.set("reports", max_deliveries=2),
    "policies.set": lambda client: client.policies.set("etl", Policy(runs_per_day=1)),
    "keys.create": lambda client: client.keys.create("ci", ["read"]),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_an_operation_that_is_no_first_write_names_the_missing_file_and_creates_nothing(
    tmp_path: Path, read: Callable[[Client], Awaitable[Any]]
):
    path = tmp_path / "folder" / "mistyped.db"
    async with Client(f"sqlite:///{path}") as client:
        with pytest.raises(StoreNotFound, match=f"there is no database at {path} yet"):
            await read(client)
    assert not path.parent.exists()


@pytest.mark.asyncio
@pytest.mark.parametrize("write", FIRST_WRITES.values(), ids=FIRST_WRITES)
async def test_a_first_write_creates_the_file(tmp_path: Path, write: Callable[[Client], Awaitable[Any]]):
    path = tmp_path / "folder" / "new.db"
    async with Client(f"sqlite:///{path}") as client:
        await write(client)
        assert await client.workers() == []
    assert path.exists()


@pytest.mark.asyncio
async def test_a_start_may_be_the_first_to_use_a_file(tmp_path: Path):
    async with Client(f"sqlite:///{tmp_path}/new.db") as client:
        with pytest.raises(UnknownWorkflow, match="no worker has announced a workflow 'etl'"):
            await client.start("etl")


@pytest.mark.asyncio
async def test_an_encrypted_file_that_does_not_exist_is_not_created(tmp_path: Path):
    from holdfast import AesEncryption

    path = tmp_path / "mistyped.db"
    async with Client(f"sqlite:///{path}", encryption=AesEncryption(b"k" * 32)) as client:
        with pytest.raises(StoreNotFound):
            await client.list()
    assert not path.exists()
