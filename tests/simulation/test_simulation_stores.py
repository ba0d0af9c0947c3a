"""The same lives on the stores on SQL, which must answer as the store in memory does; and bugs that show if not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any
from unittest.mock import patch

import postgres_server
import pytest
from simulation.seed_runner import SeedTotals, run_parallel
from simulation.sql_stores import SQLITE, StoreFactory, open_store_factory
from simulation.world import InvariantBroken, run_seed

from holdfast.stores.postgres.dialect import BulkStatement
from holdfast.stores.sqlite import statements as sqlite_statements

JOBS = min(2, os.cpu_count() or 1)
BEGIN, COUNTS = 257, {"sqlite": 30, "postgres": 15}
"""With which seed to begin, and how many, unless a number is asked for: all that must occur does so several times."""
MAX_SEEDS = 40
"""How many seeds a planted bug may take to be found."""
REQUIRED_EVENTS = (
    "crashes",
    "pauses",
    "closes",
    "outages",
    "cuts",
    "unknown outcomes",
    "late requests",
    "children",
    "forks",
    "retries",
    "questions",
    "answers",
    "steps undone",
    "places taken",
    "people: cancel",
    "people: pause",
    "people: switch",
    *(f"runs {end}" for end in ("completed", "failed", "cancelled", "dead")),
)

no_locks = pytest.mark.skipif(sys.platform == "win32", reason="without file locks, only a lease tells of a death")
STORES = [pytest.param("sqlite", marks=no_locks), "postgres"]


def get_store_url(store: str) -> str:
    return SQLITE if store == "sqlite" else postgres_server.server_url()


@pytest.fixture(scope="module")
def store_factories() -> Iterator[Callable[[str], StoreFactory]]:
    """Places that several tests share."""
    with ExitStack() as stack:
        yield cache(lambda store: stack.enter_context(open_store_factory(get_store_url(store))))


# Not bounded by the suite's time-out: the long run is asked for on purpose.
@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", STORES)
def test_a_store_on_sql_answers_as_the_one_in_memory_in_every_seed(store: str, twin_seeds: int) -> None:
    tally = SeedTotals()
    first, count, jobs = (1, twin_seeds, JOBS) if twin_seeds else (BEGIN, COUNTS[store], 1)
    for tally in run_parallel(first, count, jobs, get_store_url(store)):
        assert not tally.failures, "\n".join(str(broken) for broken in tally.failures)
    assert tally.counts["answers compared"] > tally.counts["requests"]
    if count >= COUNTS[store]:
        assert not [what for what in REQUIRED_EVENTS if not tally.counts[what]]


@pytest.mark.parametrize("store", STORES)
def test_a_seed_runs_the_same_way_on_every_store(store: str, store_factories: Callable[[str], StoreFactory]) -> None:
    here: list[str] = []
    there: list[str] = []
    run_seed(BEGIN, here.append)
    run_seed(BEGIN, there.append, store_factories(store))
    assert there == here


# Bugs in SQL


def changed(name: str, old: str, new: str) -> Callable[[StoreFactory], AbstractContextManager[Any]]:
    """A statement with something else in it."""

    def plant(place: StoreFactory) -> AbstractContextManager[Any]:
        text = getattr(place.statements, name)
        assert old in text
        made = text.replace(old, new)
        return patch.object(
            place.statements, name, type(text)(made, text.array_types) if isinstance(text, BulkStatement) else made
        )

    return plant


def hold_no_lock(_: StoreFactory) -> AbstractContextManager[Any]:
    """The fence of a single record on SQLite, which is one of several statements."""
    text = sqlite_statements.APPEND_FENCED[1]
    made = text.replace(" AND runs.state = 'running'", "")
    assert made != text
    return patch.dict(sqlite_statements.APPEND_FENCED, {1: made})


FIRST = {"a record is appended to a run that nobody holds": 1658, "deaths add up": 13, "a fork shares too much": 15}
"""The seed that found each when somebody last looked: it is tried before the others."""
PLANTED = {
    ("sqlite", "a record is appended to a run that nobody holds"): hold_no_lock,
    ("postgres", "a record is appended to a run that nobody holds"): changed(
        "APPEND_ONE", " AND state = 'running'", ""
    ),
    ("sqlite", "deaths add up"): changed(
        "RESET_DELIVERY_COUNT", "delivery_count = 0", "delivery_count = delivery_count"
    ),
    ("postgres", "deaths add up"): changed(
        "RESET_DELIVERY_COUNT", "delivery_count = 0", "delivery_count = runs.delivery_count"
    ),
    ("sqlite", "a fork shares too much"): changed("COPY_JOURNAL", "seq < ?", "seq <= ?"),
    ("postgres", "a fork shares too much"): changed("COPY_JOURNAL", "seq < %s", "seq <= %s"),
}


@pytest.mark.parametrize(
    ("store", "what"), [pytest.param(*key, marks=no_locks if key[0] == "sqlite" else ()) for key in PLANTED]
)
def test_a_bug_in_a_statement_is_found(store: str, what: str, store_factories: Callable[[str], StoreFactory]) -> None:
    place = store_factories(store)
    with PLANTED[store, what](place):
        found = find_bug(place, FIRST[what])
    assert found is not None, f"nobody noticed on {store} that {what}"
    assert f"python -m simulation --seed {found.seed} --store {store}" in str(found)


def find_bug(place: StoreFactory, first: int) -> InvariantBroken | None:
    for seed in (first, *range(1, MAX_SEEDS + 1)):
        try:
            run_seed(seed, store_factory=place)
        except InvariantBroken as broken:
            return broken
    return None
