"""Runs whose steps put rows into a table of their own, in processes that die when told to.

``transaction_app.py run <id>...`` executes these runs, and ``transaction_app.py stay <id>...`` is still there when they
have ended, for whoever kills it at any moment. ``transaction_app.py die <workflow> <point>...`` forks a process for
each point that begins a run of that name and dies there, and another one that takes it up. The points are
``before-begin``, ``in-step``, ``before-commit``, ``after-commit`` (of the step's transaction, when its record is still
to be appended) and ``after-record``. Each call of a step leaves a line in the ledger, a file.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
from typing import Any

from holdfast import Runtime, current_run, current_step, step, workflow
from holdfast.stores.operations import AppendRecord
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.step_transactions import PgStepTransaction, PgStepTransactions
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.step_transactions import SqliteStepTransaction, SqliteStepTransactions

INSERT = "INSERT INTO paid (run, step) VALUES ('{}', '{}')"
deadly = ""
"""The point at which this process dies."""


def strike(point: str) -> None:
    if point and point == deadly:
        os.kill(os.getpid(), signal.SIGKILL)


def trap(owner: type, method: str, before: str, after: str, on: Any = lambda _: True) -> None:
    inner = getattr(owner, method)

    async def trapped(self: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if on(given):
            strike(before)
        answer = await inner(self, given, *args, **kwargs)
        if on(given):
            strike(after)
        return answer

    setattr(owner, method, trapped)


for store, transactions, transaction in (
    (SqliteStore, SqliteStepTransactions, SqliteStepTransaction),
    (PgStore, PgStepTransactions, PgStepTransaction),
):
    trap(transactions, "begin", "before-begin", "")
    trap(transaction, "commit", "before-commit", "after-commit")
    trap(store, "commit", "", "after-record", lambda ops: any(isinstance(op, AppendRecord) for op in ops))


def build_insert(name: str) -> str:
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{current_run().id} {name}\n".encode())
    os.close(file)
    return INSERT.format(current_run().id, name)


@step(transaction=True)
def pay(name: str) -> str:
    current_step().connection.execute(build_insert(name))
    strike("in-step")
    return name


@step(transaction=True)
async def pay_async(name: str) -> str:
    done = current_step().connection.execute(build_insert(name))
    if inspect.isawaitable(done):
        await done
    strike("in-step")
    return name


@workflow(id="{id}", max_deliveries=1000)
async def paying(id: str) -> list[str]:
    return [await pay("first"), await pay_async("second"), await pay("third")]


@workflow(id="{id}")
async def paying_async(id: str) -> list[str]:
    return [await pay_async("first")]


FLOWS = {"paying": paying, "paying_async": paying_async}


async def execute(flow: str, runs: list[str], *, stays: bool = False) -> None:
    async with Runtime(lease=float(os.environ.get("LEASE", "10"))):
        print("ready", flush=True)
        results = await asyncio.gather(*[FLOWS[flow](run) for run in runs])
        print(json.dumps(results), flush=True)
        if stays:
            await asyncio.Event().wait()


def forked(flow: str, run: str, point: str) -> int:
    """How a process ended that executed a run."""
    global deadly
    child = os.fork()
    if not child:
        deadly = point
        asyncio.run(execute(flow, [run]))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


_, what, *arguments = sys.argv
if what in ("run", "stay"):
    asyncio.run(execute("paying", arguments, stays=what == "stay"))
else:
    flow, *points = arguments
    for point in points:
        print(json.dumps([point, forked(flow, point, point)]), flush=True)
        print(json.dumps([point, forked(flow, point, "")]), flush=True)
