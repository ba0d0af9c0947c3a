"""The drills of ``benchmarks/drills`` on PostgreSQL, small: most workers die at once, or one is cut off."""

from __future__ import annotations

import pytest
from benchmarks.drills.mass_death import kill_most_workers
from benchmarks.drills.partition import partition_worker
from postgres_processes import PgWorld


def test_when_most_workers_are_killed_at_once_the_rest_finish_and_repeat_only_what_was_in_flight(pg_world: PgWorld):
    kill_most_workers(pg_world, worker_count=8, survivor_count=1, run_count=120, concurrency=5, step_s=0.1)


@pytest.mark.parametrize("mode", ["black hole", "reset"])
def test_a_worker_that_is_cut_off_changes_nothing_after_the_takeover_and_comes_back_by_itself(
    pg_world: PgWorld, mode: str
):
    partition_worker(pg_world, mode, run_count=60, lease_s=2, concurrency=5, step_s=0.1)
