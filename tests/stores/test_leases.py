"""In which time the leases of others count: only while this process could write to the store itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.stores.leases import LeaseWindow, LeaseWindowTracker

LEASE = 10.0


@dataclass
class Machine:
    """A machine's clocks, and somebody on it who writes to a store."""

    wall: float = 1_000_000.0
    elapsed: float = 50.0

    def __post_init__(self) -> None:
        self.contact = LeaseWindowTracker(lambda: self.wall, lambda: self.elapsed, max_gap_s=LEASE / 2)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds

    def write(self, seconds: float = 0.0) -> None:
        """A write that takes this long goes through."""
        asked = self.elapsed
        self.pass_time(seconds)
        self.contact.note_success(asked)

    def write_for(self, seconds: float) -> None:
        """Renew a lease for a while."""
        for _ in range(int(seconds / 3)):
            self.pass_time(3.0)
            self.write()

    @property
    def counted(self) -> float:
        """Seconds that count."""
        window = self.contact.get_window()
        assert window.until == self.wall
        return max(0.0, window.until - window.since)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.pass_time(100.0)
    machine.write()
    return machine


def test_time_counts_from_the_first_write_and_not_from_before(machine: Machine):
    assert machine.counted == 0.0
    machine.write_for(30.0)
    assert machine.counted == 30.0


def test_nothing_counts_before_anything_was_written():
    machine = Machine()
    machine.pass_time(2.0)
    assert machine.counted == 0.0


def test_time_counts_anew_after_a_write_that_failed(machine: Machine):
    machine.write_for(30.0)
    machine.contact.note_failure()
    assert machine.counted == 0.0
    machine.pass_time(1.0)
    assert machine.counted == 0.0, "as long as nothing has gone through since"
    machine.write()
    machine.write_for(3.0)
    assert machine.counted == 2.0, "it was cut off for one second, and others may need one more"


def test_other_workers_get_as_much_time_to_return_as_the_outage_took(machine: Machine):
    """TCP sends lost packets again after pauses that double each time."""
    machine.write_for(30.0)
    for _ in range(14):
        machine.pass_time(1.0)
        machine.contact.note_failure()
    machine.write()
    machine.write_for(12.0)
    assert machine.counted == 0.0
    machine.write_for(3.0)
    assert machine.counted == 1.0


def test_after_a_long_outage_other_workers_get_half_a_minute(machine: Machine):
    machine.contact.note_failure()
    machine.pass_time(3600.0)
    machine.write()
    machine.write_for(33.0)
    assert machine.counted == 3.0


def test_time_counts_anew_after_a_gap_in_which_nothing_was_written(machine: Machine):
    """The process was suspended, or its machine was: it looks at the others before it has written again."""
    machine.write_for(30.0)
    machine.pass_time(20.0)
    assert machine.counted == 0.0
    machine.write()
    machine.write_for(21.0)
    assert machine.counted == 1.0


def test_time_counts_anew_after_a_write_that_took_long(machine: Machine):
    """A server that stood still answers everything at once when it goes on."""
    machine.write_for(30.0)
    machine.pass_time(3.0)
    machine.write(seconds=14.0)
    assert machine.counted == 0.0


@pytest.mark.parametrize("seconds", [60.0, 3600.0, -60.0])
def test_time_counts_anew_when_the_stores_clock_was_set(machine: Machine, seconds: float):
    machine.write_for(30.0)
    assert machine.counted == 30.0
    machine.wall += seconds
    assert machine.counted == 0.0
    machine.write_for(9.0)
    assert machine.counted == 9.0


def test_a_clock_that_is_put_right_little_by_little_makes_no_difference(machine: Machine):
    for _ in range(10):
        machine.write_for(3.0)
        machine.wall += 0.01
        counted = machine.counted
    assert counted == pytest.approx(30.0)


def test_a_lease_has_expired_if_it_was_not_renewed_for_its_duration_within_the_window():
    window = LeaseWindow(since=100.0, until=150.0)
    assert not window.has_expired(heartbeat_at=145.0, lease_expires_at=155.0)
    assert not window.has_expired(heartbeat_at=140.0, lease_expires_at=150.0)
    assert window.has_expired(heartbeat_at=139.9, lease_expires_at=149.9)
    assert window.has_expired(heartbeat_at=10.0, lease_expires_at=20.0)
    assert not LeaseWindow(145.0, 150.0).has_expired(heartbeat_at=10.0, lease_expires_at=20.0)
