"""A store outlives event loops: a program may close it, and open it again on the next one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from store_values import FLOW, Clock, claim_run, commit_ops, finish, new_worker, start_run

from holdfast.core.states import RunState


def test_a_store_that_was_closed_can_be_opened_on_another_loop(backend: Any, tmp_path: Path):
    with backend.place(tmp_path) as place:
        store = backend.make(place, Clock())

        async def use(run_id: str) -> None:
            await store.open()
            worker = await store.workers.register(new_worker(), 10.0)
            await start_run(store, run_id)
            await commit_ops(store, finish(await claim_run(store, worker)))
            waiting = [asyncio.create_task(store.wait_for_change(0.05)) for _ in range(3)]
            await asyncio.gather(*waiting)
            await store.workers.retire(worker)
            assert (await store.count_runs())[FLOW, RunState.COMPLETED] == int(run_id)
            await store.close()

        for run_id in ("1", "2"):
            asyncio.run(use(run_id))
