"""A worker is killed in the middle of a model call: what it had reserved is not counted twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from budgeted_app import LEASE, make
from temporalio.client import Client as TemporalClient

import forked_python
from holdfast import Client, Handle, Runtime
from holdfast.stores.temporal import identifiers

APP = Path(__file__).with_name("budgeted_app.py")

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
]


def start_worker(url: str, ledger: Path, gate: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, APP, url, ledger, gate]
    return forked_python.start(command, library=forked_python.TEMPORAL, stdin=subprocess.DEVNULL)


async def written(ledger: Path, lines: list[str]) -> None:
    """Wait until these lines are in the ledger."""
    for _ in range(1500):
        if ledger.exists() and ledger.read_text().split() == lines:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the ledger has {ledger.read_text() if ledger.exists() else 'nothing'}")


async def test_a_killed_worker_leaves_no_reservation_behind(temporal_url: str, tmp_path: Path) -> None:
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    worker = start_worker(temporal_url, ledger, gate)
    try:
        async with Client(temporal_url) as client:
            handle = await _start(client)
            await written(ledger, ["first"])
    finally:
        worker.kill()
        worker.wait()
    make(ledger, gate)
    runtime = Runtime(temporal_url, lease=LEASE, workflows=["temporal-budget-killed"])
    async with runtime, Client(temporal_url) as client:
        await written(ledger, ["first", "first"])
        gate.touch()
        # Two turns are allowed. If the call that nobody has heard of counted, the second would not be made.
        assert (await client.handle(handle.run_id).result(30)).output == "done"
        address, _, namespace = temporal_url.removeprefix("temporal://").partition("/")
        temporal = await TemporalClient.connect(address, namespace=namespace)
        account = await temporal.get_workflow_handle(identifiers.format_account_id(handle.run_id)).query(
            identifiers.STATUS_QUERY
        )
    assert ledger.read_text().split() == ["first", "first", "tool", "second"]
    assert (account["used"]["calls"], account["in_flight"]) == (2, 0)


async def _start(client: Client) -> Handle[Any]:
    for _ in range(600):
        if "temporal-budget-killed" in await (await client.connections.store()).get_workflow_specs():
            return await client.start("temporal-budget-killed", "go")
        await asyncio.sleep(0.05)
    pytest.fail("no worker has announced the agent")
