from __future__ import annotations

import signal

from holdfast.processes.restart_backoff import MAX_DELAY_S, STABLE_AFTER_S, RestartBackoff
from holdfast.processes.supervisor import describe_exit


def test_the_first_death_costs_nothing_and_each_one_that_follows_soon_twice_as_much():
    backoff = RestartBackoff()
    assert [backoff.next_delay_s(1) for _ in range(5)] == [0, 0.5, 1, 2, 4]
    assert [backoff.next_delay_s(1) for _ in range(9)][-1] == MAX_DELAY_S


def test_a_process_that_has_lived_for_a_while_is_replaced_at_once_again():
    backoff = RestartBackoff()
    for _ in range(5):
        backoff.next_delay_s(1)
    assert backoff.next_delay_s(STABLE_AFTER_S) == 0
    assert backoff.death_count == 1


def test_an_exit_is_described_by_its_code_or_its_signal():
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-signal.SIGKILL) == "was killed by SIGKILL"
    assert describe_exit(-63) == "was killed by signal 63"
