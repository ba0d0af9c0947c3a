"""The drills of ``benchmarks/drills``, small: agents under a steady load, and a tool that leaks until it is killed."""

from __future__ import annotations

import pytest
from app_processes import World
from benchmarks.drills.agent_soak import WorkerGrowth, check_flat, soak_agents
from benchmarks.drills.leaking_tool import leak_until_killed
from benchmarks.drills.process_samples import measure_growth

ON_POSTGRES = ("test_workers_of_agents_need_no_more_memory_files_or_threads_after_a_while",)
"""What always runs on PostgreSQL, too."""
FLAT = measure_growth([10.0] * 8)


def test_workers_of_agents_need_no_more_memory_files_or_threads_after_a_while(world: World):
    soak_agents(world, seconds=6, worker_count=1)


@pytest.mark.parametrize(
    ("resource", "values", "words"),
    [
        ("rss_mb", [50, 60, 70, 80, 90, 100, 110, 120], "grew by more than 7.8 MB"),
        ("fd_count", [10, 10, 11, 12, 13, 14, 15, 16], "leaks file descriptors"),
        ("thread_count", [4, 5, 6, 7, 8, 9, 10, 11], "leaks threads"),
    ],
)
def test_growth_beyond_the_tolerance_is_reported(resource: str, values: list[float], words: str):
    growth = WorkerGrowth(FLAT, FLAT, FLAT)
    check_flat(1, growth)
    with pytest.raises(AssertionError, match=words):
        check_flat(1, growth._replace(**{resource: measure_growth(values)}))


def test_a_tool_that_leaks_until_it_is_killed_ends_dead_and_its_neighbors_complete(world: World):
    leak_until_killed(world, neighbor_count=6, step_count=30, max_mb=400, max_deliveries=1)
