"""The drills of ``benchmarks/drills``, small: thousands of timers in the same second, and signals to one run."""

from __future__ import annotations

from app_processes import World
from benchmarks.drills.signals import send_many_signals
from benchmarks.drills.timers import ring_at_once

ON_POSTGRES = (
    "test_runs_that_are_due_in_the_same_second_all_wake_up_once",
    "test_signals_from_many_senders_are_consumed_once_and_in_order_although_the_worker_is_killed",
)
"""What always runs on PostgreSQL, too."""


def test_runs_that_are_due_in_the_same_second_all_wake_up_once(world: World):
    ring_at_once(world, run_count=200, sleep_s=6, worker_count=2)


def test_signals_from_many_senders_are_consumed_once_and_in_order_although_the_worker_is_killed(world: World):
    send_many_signals(world, signal_count=1000, process_count=2)
