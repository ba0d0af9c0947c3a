"""The watch for dead workers: who leads, and when the locks are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from postgres_faults import Database
from postgres_server import database

from holdfast.stores.postgres.connections import connect
from holdfast.stores.postgres.death_watch import (
    FOLLOWER_LOCK_ID,
    LONE_READ_INTERVAL_S,
    READ_INTERVAL_S,
    TRY_INTERVAL_S,
    DeathWatch,
)
from waits import wait_until_sync

CLASS = -7
"""Half of all schemas have a negative one."""


class Member:
    """A session with a worker, and its part in the watch."""

    def __init__(self, url: str, worker: int, class_: int = CLASS) -> None:
        self._url = url
        self.db = Database(connect(url))
        self.worker = worker
        self.time = 100.0
        self.watch = DeathWatch(class_, now=lambda: self.time)
        self.class_ = class_
        self.lock(worker)

    def lock(self, number: int) -> None:
        self.db.one("SELECT pg_advisory_lock(%s::int4, %s::int4)", self.class_, number)

    def unlock(self, number: int) -> None:
        assert self.db.one("SELECT pg_advisory_unlock(%s::int4, %s::int4)", self.class_, number)

    def check(self) -> bool:
        return self.watch.check(self.db, {self.worker})  # type: ignore[arg-type]

    def die(self) -> None:
        """End the session, and wait until the server has noticed."""
        if self.db.connection.closed:
            return
        connection, self.db.connection = self.db.connection, connect(self._url)
        pid = connection.info.backend_pid
        connection.close()
        count = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        wait_until_sync(lambda: self.db.one(count, pid) == 0, "the session has ended")
        self.db.connection.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(empty=True) as url:
        yield url


@pytest.fixture
def members(url: str) -> Iterator[list[Member]]:
    """Three workers; the first one leads, and knows the others."""
    with ExitStack() as stack:
        made = [Member(url, worker) for worker in (1, 2, 3)]
        for member in made:
            stack.callback(member.die)
        assert [member.check() for member in made] == [True, False, False]  # a new leader checks all workers
        yield made


def test_the_leader_notices_each_lock_that_is_gone_once(members: list[Member]):
    leader, other, last = members
    assert not leader.check()
    last.die()
    assert leader.check()
    assert not leader.check()
    other.lock(-2)
    assert not leader.check()
    other.unlock(-2)  # the second lock of a worker counts as well
    assert leader.check()
    assert leader.watch.is_leader


def test_the_lock_of_followers_and_those_of_other_schemas_do_not_count(members: list[Member], url: str):
    leader, other, _ = members
    stranger = Member(url, 4, class_=CLASS + 1)
    assert stranger.check()  # it leads elsewhere
    other.lock(FOLLOWER_LOCK_ID)
    assert not leader.check()
    other.unlock(FOLLOWER_LOCK_ID)
    stranger.die()
    assert not leader.check()


def test_another_worker_leads_when_the_leader_is_gone_and_checks_all_workers(members: list[Member]):
    leader, other, last = members
    leader.die()
    assert other.check()
    assert not last.check()
    last.die()
    assert other.check()


def test_a_leader_without_workers_lets_another_one_lead(members: list[Member]):
    leader, other, _ = members
    leader.watch.stop_leading(leader.db)  # type: ignore[arg-type]
    assert not leader.watch.is_leader
    assert other.check()


def test_a_lone_leader_reads_rarely_until_another_worker_comes(url: str):
    leader = Member(url, 1)
    leader.lock(-1)
    leader.check()
    assert leader.watch.get_wait_s() == LONE_READ_INTERVAL_S
    other = Member(url, 2)
    leader.watch.expedite()
    assert leader.watch.get_wait_s() == 0
    assert not leader.check()
    assert leader.watch.get_wait_s() == pytest.approx(READ_INTERVAL_S)
    other.die()
    assert leader.check()
    leader.die()


def test_the_larger_the_fleet_the_less_often_each_worker_tries_to_lead(members: list[Member]):
    _, other, _ = members
    for size in (1, 2, 11, 101):
        other.watch.fleet_size = size
        other.check()
        expected = TRY_INTERVAL_S * max(1, size - 1)
        assert expected / 2 <= other.watch.get_wait_s() <= expected * 1.5
    other.watch.expedite()  # only the leader reads
    assert other.watch.get_wait_s() > 0


def test_a_reading_that_fails_is_not_repeated_at_once(members: list[Member]):
    leader = members[0]
    leader.time += 1000
    leader.die()
    with pytest.raises(Exception, match="closed"):
        leader.check()
    assert leader.watch.get_wait_s() == LONE_READ_INTERVAL_S
