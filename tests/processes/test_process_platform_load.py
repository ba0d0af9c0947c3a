"""Many listeners and many submissions over HTTP, while the server is killed and started again.

No listener dies, so each run's one step is done once: what the server had not recorded when it was killed is recorded
after it is back. The ledger is a file that the listeners write, outside the database. The gate has a fifth of the load;
``--full-load`` has all of it: 200 listeners and 1,000 submissions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from benchmarks.platform_load import run_load
from benchmarks.server_process import ServerProcess

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_twice(tmp_path: Path, pytestconfig: pytest.Config):
    listeners, runs = (200, 1000) if pytestconfig.getoption("--full-load") else (40, 200)
    load = await run_load(tmp_path, listener_count=listeners, run_count=runs, kill_count=2)
    assert (load.run_count, load.completed_count) == (runs, runs)
    assert sorted(load.step_counts) == sorted(f"load-{number}" for number in range(runs))
    assert set(load.step_counts.values()) == {1}


async def test_a_few_listeners_with_a_backlog_lose_nothing_when_the_server_is_killed(tmp_path: Path):
    """Each completes one run and takes the next in one commit, which the kills may separate from its response."""
    load = await run_load(tmp_path, listener_count=3, run_count=150, kill_count=3)
    assert (load.run_count, load.completed_count) == (150, 150)
    assert load.step_counts == {f"load-{number}": 1 for number in range(150)}


async def post_until_answered(http: httpx2.AsyncClient, path: str, body: Any) -> Any:
    """As a simple program in any language does it: the same request again, until there is an answer."""
    while True:
        try:
            answer = await http.post(path, json=body)
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
            continue
        assert answer.status_code in (200, 201, 204, 503), answer.text
        if answer.status_code != 503:
            return answer.json() if answer.content else None
        await asyncio.sleep(0.05)


async def test_one_request_that_completes_and_takes_the_next_survives_kills_of_the_server(tmp_path: Path):
    run_count, listener_count, kill_count = 120, 8, 3
    done: Counter[str] = Counter()
    delivered: Counter[tuple[str, int]] = Counter()
    server = ServerProcess(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path / "server.log")
    server.start()

    async def listen(number: int, http: httpx2.AsyncClient) -> None:
        claim: dict[str, Any] = {"name": f"box-{number}"}
        delivery = None
        while len(done) < run_count or delivery is not None:
            if delivery is None:
                delivery = await post_until_answered(http, "/v1/addresses/line/claim?wait=0.3", claim)
                continue
            claim["listener_id"] = delivery["listener_id"]
            delivered[delivery["run_id"], delivery["number"]] += 1
            done[delivery["run_id"]] += 1
            body = {"output": delivery["payload"], "steps": [{"name": "work", "output": True}], "next": claim}
            answer = await post_until_answered(http, f"/v1/deliveries/{delivery['id']}/complete?wait=0.3", body)
            delivery = answer["delivery"]

    async def kill_repeatedly() -> None:
        for number in range(1, kill_count + 1):
            while len(done) < run_count * number // (kill_count + 1):  # noqa: ASYNC110 - a count, not an event
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    try:
        async with httpx2.AsyncClient(base_url=server.base_url, timeout=30) as http, asyncio.TaskGroup() as tasks:
            for number in range(run_count):
                await post_until_answered(http, "/v1/addresses/line/send", {"id": f"line-{number}", "payload": number})
            for number in range(listener_count):
                tasks.create_task(listen(number, http))
            await kill_repeatedly()
        async with httpx2.AsyncClient(base_url=server.base_url, timeout=30) as http:
            for number in range(run_count):
                result = (await http.get(f"/v1/runs/line-{number}/result")).json()
                assert (result["state"], result["output"]) == ("completed", number)
                [last] = (await http.get(f"/v1/runs/line-{number}/deliveries")).json()["items"][-1:]
                assert last["steps"] == ["work"]
    finally:
        server.stop()
    assert done == {f"line-{number}": 1 for number in range(run_count)}
    assert set(delivered.values()) == {1}
