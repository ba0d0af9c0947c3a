"""Transactional steps in processes that are killed with SIGKILL at every point: each puts its row there exactly once.

The table has no constraint that would hide a second row. What was called is compared with the ledger, a file.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing

import psycopg
import pytest
from app_processes import World
from postgres_processes import PgWorld, Proxy

ON_POSTGRES = (
    "test_a_process_killed_at_any_point_leaves_each_row_exactly_once",
    "test_processes_that_are_killed_at_any_moment_leave_each_row_exactly_once",
)
TABLE = "CREATE TABLE paid (run TEXT, step TEXT)"
CALLS = {"before-begin": 1, "in-step": 2, "before-commit": 2, "after-commit": 1, "after-record": 1}
"""How often the first step is called, if the process dies there the first time."""


def ask(world: World, statement: str) -> list[tuple[str, str]]:
    if isinstance(world, PgWorld):
        with psycopg.connect(world.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(world.database, timeout=30, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def make_table(world: World) -> None:
    if not isinstance(world, PgWorld):
        world.spawn("transaction_app.py", "run").ends()  # the file must be Holdfast's own first
    ask(world, TABLE)


def paid(world: World) -> Counter[tuple[str, str]]:
    return Counter(ask(world, "SELECT run, step FROM paid"))


def calls(world: World) -> Counter[str]:
    return Counter((world.folder / "ledger").read_text().splitlines())


@pytest.mark.parametrize("flow", ["paying", "paying_async"])
def test_a_process_killed_at_any_point_leaves_each_row_exactly_once(world: World, flow: str):
    make_table(world)
    told = world.spawn("transaction_app.py", "die", flow, *CALLS).ends().stdout_lines
    results = [json.loads(line) for line in told if line != "ready"]
    names = ["first", "second", "third"] if flow == "paying" else ["first"]
    for point in CALLS:
        died, result, ended = results[:3]
        del results[:3]
        assert (died, result, ended) == ([point, -signal.SIGKILL], [names], [point, 0])
        journal = world.journal(point)
        assert len(journal.records) == len(names)
        assert not journal.attempts
    assert paid(world) == {(point, name): 1 for point in CALLS for name in names}
    assert {point: calls(world)[f"{point} first"] for point in CALLS} == CALLS


def test_processes_that_are_killed_at_any_moment_leave_each_row_exactly_once(world: World):
    make_table(world)
    draw = random.Random(7)
    runs = [f"run-{n}" for n in range(20)]
    for _ in range(4):
        app = world.spawn("transaction_app.py", "stay", *runs).wait_for_output("ready")
        time.sleep(draw.uniform(0.0, 0.15))
        app.kill()
    [result] = world.spawn("transaction_app.py", "run", *runs).read_answers()
    names = ["first", "second", "third"]
    assert result == [names] * len(runs)
    assert paid(world) == {(run, name): 1 for run in runs for name in names}
    assert set(calls(world)) == {f"{run} {name}" for run in runs for name in names}


@pytest.mark.parametrize(("moment", "expected"), [("before", 2), ("after", 1)])
def test_a_connection_that_is_cut_at_the_commit_leaves_the_row_exactly_once(
    pg_world: PgWorld, moment: str, expected: int
):
    make_table(pg_world)
    proxy = Proxy(pg_world.url)
    try:
        cut = proxy.cut("RESET ROLE; WITH held", moment)
        [result] = pg_world.spawn("transaction_app.py", "run", "run-0", HOLDFAST_URL=proxy.url).read_answers()
        assert cut.done.is_set()
    finally:
        proxy.close()
    assert result == [["first", "second", "third"]]
    assert paid(pg_world) == {("run-0", name): 1 for name in ("first", "second", "third")}
    assert calls(pg_world)["run-0 first"] == expected
