"""Runs the golden workflows on a real SQLite file through the real engine, and keeps their journals.

    python tests/golden/record_journals.py                         # for a new release: makes the folder of this version
    python tests/golden/record_journals.py --overwrite-unreleased  # only while that version is not released yet

A released folder is never recorded again: that it was written by the code of its day is all that it is good for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import golden_flows as flows

import holdfast
from holdfast import RunFailed, RunState, Runtime
from holdfast.core.records import RecordKind
from holdfast.services.forks import fork_run
from holdfast.services.journal_files import Journal, export_run
from holdfast.services.run_control import retry_run
from holdfast.stores.operations import SendSignal
from holdfast.stores.urls import create_store
from holdfast.testing.journal_replay import ReplayResult, replay

HERE = Path(__file__).parent
CURRENT = HERE / ".".join(holdfast.__version__.split(".")[:2])
PATIENCE = 60.0

INPUTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "golden_steps": (("acme",), {"upto": 3}),
    "golden_map": ((7,), {}),
    "golden_random": ((0.5,), {}),
    "golden_waiting": ((3650,), {}),
    "golden_failed": (("no stock",), {}),
    "golden_in_flight": ((5,), {}),
    "golden_class": ((), {"count": 3}),
    "golden_class_undone": ((), {"seats": 2}),
    "golden_values": (
        (
            flows.Line(item="tea", price=Decimal("2.50"), colours={flows.Colour.RED}),
            datetime(2024, 5, 1, 12, tzinfo=UTC),
            Decimal("1.5"),
            b"\x00\xff",
            (1, "one"),
        ),
        {},
    ),
    "golden_tagged": (((1, 2), {3}, b"rest"), {"when": datetime(2024, 5, 1, tzinfo=UTC), "plain": [1, "a", None]}),
}

STATES = {
    "golden_failed": RunState.FAILED,
    "golden_deadline": RunState.FAILED,
    "golden_undone": RunState.FAILED,
    "golden_not_undone": RunState.FAILED,
    "golden_class_undone": RunState.FAILED,
    "golden_cancelled": RunState.CANCELLED,
    "golden_waiting_for_child": RunState.WAITING,
    "golden_waiting": RunState.WAITING,
    "golden_in_flight": RunState.RUNNING,
}
"""Where runs are when they are recorded, if they have not completed."""


def trace_replay(replayed: ReplayResult) -> str:
    """All that the code asked for, one command to a line: keys and arguments of steps, ids and inputs of runs."""
    lines: list[str] = []
    for one in replayed.commands:
        key = replayed.idempotency_keys.get(one.position, "")
        arguments = "" if one.arguments is None else repr(one.arguments)[2:-1]
        told = (f"#{one.position + 1}", one.kind.label, one.name, one.run_id, key, arguments)
        lines.append(" ".join(filter(None, told)))
    return "".join(f"{line}\n" for line in lines)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the store is not ours to be told by
            await asyncio.sleep(0.02)


async def record(url: str) -> dict[str, Journal]:
    """Run every workflow, and return its journal."""
    store = create_store(url)
    await store.open()
    copying = asyncio.Event()

    async with Runtime(url) as runtime:

        def started(name: str, run_id: str) -> Awaitable[Any]:
            args, kwargs = INPUTS.get(name, ((), {}))
            return runtime.start(flows.FLOWS[name].options(id=run_id), *args, **kwargs)

        async def send(run_id: str, *signals: tuple[str, Any]) -> None:
            handle = await runtime.start(flows.FLOWS["golden_signals"].options(id=run_id))
            for name, value in signals:
                await handle.signal(name, value)

        async def ready(run_id: str) -> None:
            asyncio.get_running_loop().call_later(
                0.2,
                lambda: keep(
                    send(run_id, ("go", "one"), ("go", {"two": 2}), ("when", datetime(2024, 5, 1, 12, tzinfo=UTC)))
                ),
            )

        async def early(run_id: str) -> None:
            await send(run_id, ("early", [1, 2, 3]))

        async def go(run_id: str) -> None:
            # The step's own outcome is to be on its way when the engine finds the signal: a matter of a few turns.
            await runtime.store_provider.change(
                SendSignal(run_id, "go", b'"late"', None, await runtime.store_provider.now())
            )
            for _ in range(int(run_id.rpartition("-")[2]) % 40):
                await asyncio.sleep(0)

        async def never(run_id: str) -> None:
            copying.set()
            await asyncio.Event().wait()

        chores: set[asyncio.Future[Any]] = set()

        def keep(work: Any) -> None:
            chores.add(task := asyncio.ensure_future(work))
            task.add_done_callback(chores.discard)

        failures = [flows.Declined("not yet", 6)]

        async def unsure(run_id: str) -> None:
            if failures:
                raise failures.pop()

        flows.hooks.update(ready=ready, early=early, go=go, copying=never, unsure=unsure)
        apart = {"golden_waiting", "golden_in_flight", "golden_mailbox", "golden_once", "golden_waiting_for_child"}
        apart |= {"golden_child", "golden_cancelled", "golden_retried", "golden_fork"}

        async def to_its_end(name: str) -> None:
            try:
                await (await started(name, name)).result()
            except RunFailed:
                pass

        async with asyncio.timeout(PATIENCE):
            kill_in_once(url)
            await asyncio.gather(*[to_its_end(name) for name in flows.FLOWS if name not in apart])
            await runtime.store_provider.wait_for_end("golden_once")
            mailbox = await hand_over(store, started)
            waiting = await started("golden_waiting", "golden_waiting")
            await waiting.signal("note", "not yet")
            await started("golden_in_flight", "golden_in_flight")
            await copying.wait()

            async def parked(run_id: str) -> bool:
                run = await store.get_run(run_id)
                return run is not None and run.state == "waiting" and run.waits_for != ""

            async def noted() -> bool:
                return bool((await export_run(store, "golden_in_flight")).attempts)

            await started("golden_waiting_for_child", "golden_waiting_for_child")
            cancelled = await started("golden_cancelled", "golden_cancelled")
            for name in ("golden_waiting", "golden_waiting_for_child", "golden_cancelled"):
                await until(partial(parked, name))
            await until(noted)
            await cancelled.cancel()
            await runtime.store_provider.wait_for_end("golden_cancelled")
            await to_its_end("golden_retried")
            await retry_run(runtime.store_provider, "golden_retried")
            await runtime.store_provider.wait_for_end("golden_retried")
            await (await started("golden_fork", "golden_fork-origin")).result()
            await fork_run(store, "golden_fork-origin", at=2, new_id="golden_fork")
            await runtime.store_provider.wait_for_end("golden_fork")
        ids = {name: name for name in flows.FLOWS if name != "golden_mailbox"}
        ids["golden_child"] = "golden_children:golden_child-2"
        journals = {name: await export_run(store, run_id) for name, run_id in ids.items()}
        journals["golden_mailbox"] = mailbox
    await store.close()
    return journals


async def hand_over(store: Any, started: Callable[[str, str], Awaitable[Any]]) -> Journal:
    """A run whose signal met a wait that was given up. That is a race, so it takes some tries."""
    for attempt in range(300):
        run_id = f"golden_mailbox-{attempt}"
        await (await started("golden_mailbox", run_id)).result()
        journal = await export_run(store, run_id)
        [signal] = [record for record in journal.records if record.kind is RecordKind.SIGNAL]
        if signal.position == 0 and replay(journal).output[0]:
            return journal
    raise SystemExit("no signal ever met a wait that was given up")


def kill_in_once(url: str) -> None:
    """Another process executes `golden_once`, and dies in its `once` step."""
    code = "import golden_flows as f; f.golden_once.options(id='golden_once').run_sync()"
    environment = {**os.environ, "HOLDFAST_URL": url, "GOLDEN_VICTIM": "1", "PYTHONPATH": str(HERE)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 9


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the golden journals of this version.")
    parser.add_argument("--overwrite-unreleased", action="store_true", help="record again what is not released yet")
    given = parser.parse_args()
    if CURRENT.exists() and not given.overwrite_unreleased:
        sys.exit(
            f"{CURRENT} is there already. Journals of a released version are never recorded again; if this version is "
            f"not released yet, pass --overwrite-unreleased."
        )
    with tempfile.TemporaryDirectory() as folder:
        journals = asyncio.run(record(f"sqlite:///{folder}/runs.db"))
    shutil.rmtree(CURRENT, ignore_errors=True)
    CURRENT.mkdir()
    for name, journal in sorted(journals.items()):
        replayed = replay(journal)
        assert journal.run.state is STATES.get(name, RunState.COMPLETED), (name, journal.run.error)
        replayed.check()
        journal.write(CURRENT / f"{name}.json")
        (CURRENT / f"{name}.trace").write_bytes(trace_replay(replayed).encode())
        print(f"{name}: {journal.run.state}, {len(journal.records)} records, {len(replayed.commands)} commands")


if __name__ == "__main__":
    main()
