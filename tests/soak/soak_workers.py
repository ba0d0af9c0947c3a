"""The workers of the soak, and what strikes them: who is struck, how, and when follows from the seed.

``kill`` is SIGKILL. ``stop`` is SIGSTOP, and SIGCONT when the lease has passed and somebody else holds the runs.
``term`` is SIGTERM: the worker ends what is in flight and hands the rest over. ``hurry`` is SIGTERM twice: it
hands over at once. Whoever ends is replaced.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from app_processes import App, World
from soak_expectations import LETTERS, WORKFLOWS
from test_process_zombies import stop

from waits import wait_until_sync

WORKERS = 4
LEASE = 1.5
GRACE = 10.0
"""Seconds that steps in flight get after SIGTERM: more than any of them takes."""
LEAVING = GRACE + 10.0
"""After so many seconds, a worker that was told to stop hangs."""
AT_LEAST = 2
"""So many workers are always left to go on with the runs of one that is struck."""
KINDS = ("kill", "stop", "term", "hurry")
BAG = ("kill", "kill", "kill", "stop", "stop", "term", "term", "hurry")
"""The strikes come in this proportion, in an order that the seed decides."""
HELD_UP = 0.4
"""A stop that takes longer hit a worker that held the write lock: it was let go on, and stopped again."""
SETTLED = 0.2
"""A worker that has just said that it is ready has its signal handlers after so many seconds."""


class Strike(NamedTuple):
    """Something that was done to a worker."""

    kind: str
    pid: int
    at: float
    end: float
    """When a stopped worker goes on; the others never do."""


@dataclass
class Member:
    """One worker process."""

    app: App
    born: float
    ready_at: float = 0.0
    strikes: list[Strike] = field(default_factory=list)

    @property
    def last(self) -> Strike | None:
        """What was done to it last."""
        return self.strikes[-1] if self.strikes else None

    @property
    def is_stopped(self) -> bool:
        return self.last is not None and self.last.kind == "stop" and self.last.end > time.time()

    @property
    def is_leaving(self) -> bool:
        return self.last is not None and self.last.kind != "stop"


def blows(chance: random.Random) -> Iterator[tuple[float, str]]:
    """For ever: how many seconds after the last one, and what."""
    while True:
        bag = list(BAG)
        chance.shuffle(bag)
        for kind in bag:
            yield chance.uniform(0.3, 1.0), kind


class Crew:
    """A handful of workers, as many at the end as at the beginning."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.made: Counter[str] = Counter()
        self.recent: deque[Strike] = deque(maxlen=300)
        self.in_the_way = 0
        """How often a worker was stopped while it held SQLite's write lock, so that nobody could renew a lease."""
        self.leaving: deque[float] = deque(maxlen=10_000)
        """How long those took to leave that were told to."""
        self._chance = random.Random(seed)
        self._blows = blows(self._chance)
        self._members: dict[int, Member] = {}
        self._gone: deque[Member] = deque()
        self._stopped: list[Member] = []
        self._next = (0.0, "")
        for _ in range(WORKERS):
            self._hire()

    def _hire(self) -> None:
        served = " ".join(WORKFLOWS)
        app = self.world.spawn("soak_worker.py", LEASE=LEASE, GRACE=GRACE, WORKFLOWS=served, LETTERS=LETTERS)
        self._members[app.pid] = Member(app, time.time())

    def begin(self) -> None:
        """The first strike comes a moment from now."""
        delay, kind = next(self._blows)
        self._next = (time.time() + delay, kind)

    # One turn of the soak

    def turn(self, *, striking: bool) -> None:
        """See who has ended, who is to go on, and who is struck next."""
        now = time.time()
        for member in list(self._members.values()):
            self._look_at(member, now, replace=True)
        for member in [member for member in self._stopped if not member.is_stopped or not striking]:
            self._let_go_on(member)
        at, kind = self._next
        if striking and now >= at and (victim := self._victim(kind, now)) is not None:
            self._strike(victim, kind)
            delay, kind = next(self._blows)
            self._next = (time.time() + delay, kind)

    def _victim(self, kind: str, now: float) -> Member | None:
        able = [
            member
            for member in self._members.values()
            if member.ready_at and now - member.ready_at > SETTLED and not member.is_leaving and not member.is_stopped
        ]
        return self._chance.choice(able) if len(able) > AT_LEAST else None

    def _strike(self, member: Member, kind: str) -> None:
        at, end = time.time(), math.inf
        match kind:
            case "kill":
                member.app.send(signal.SIGKILL)
            case "stop":
                stop(self.world, member.app)
                self.in_the_way += time.time() - at > HELD_UP
                at = time.time()
                end = at + LEASE + self._chance.uniform(0.5, 2.0)
                self._stopped.append(member)
            case _:
                member.app.send(signal.SIGTERM)
        if kind == "hurry":
            time.sleep(0.02)  # two at once would be one
            member.app.send(signal.SIGTERM)
        strike = Strike(kind, member.app.pid, at, end)
        member.strikes.append(strike)
        self.recent.append(strike)
        self.made[kind] += 1

    def _let_go_on(self, member: Member) -> None:
        last = member.strikes.pop()
        member.strikes.append(last._replace(end=time.time()))
        self._stopped.remove(member)
        member.app.send(signal.SIGCONT)

    def _look_at(self, member: Member, now: float, *, replace: bool) -> None:
        app, last = member.app, member.last
        code = app.exit_code
        if code is None:
            if not member.ready_at and "ready" in app.said:
                member.ready_at = now
            if member.is_leaving and last is not None and now - last.at > LEAVING:
                raise AssertionError(f"told to stop {now - last.at:.1f} s ago, and still there: {self.stacks(member)}")
            return
        kind = "" if last is None else last.kind
        expected = {"kill": -signal.SIGKILL, "term": 0, "hurry": 0}.get(kind)
        assert code == expected, f"a worker ended with {code} after {kind or 'nothing'}: {app}"
        assert "ERROR" not in app.complaints, f"{app}"
        assert "Traceback" not in app.complaints, f"{app}"
        if code == 0 and last is not None:
            self.leaving.append(now - last.at)
        del self._members[app.pid]
        self._gone.append(member)
        if replace:
            self._hire()

    # The end

    def dismiss(self) -> None:
        """Tell everybody to stop, and wait until they have."""
        wait_until_sync(self._is_complete, "the last workers are there", describe=self.stacks)
        time.sleep(SETTLED)
        now = time.time()
        for member in self._members.values():
            member.app.send(signal.SIGTERM)
            member.strikes.append(Strike("term", member.app.pid, now, math.inf))
        while self._members:
            for member in list(self._members.values()):
                self._look_at(member, time.time(), replace=False)
            time.sleep(0.01)

    def _is_complete(self) -> bool:
        for member in list(self._members.values()):
            self._look_at(member, time.time(), replace=True)
        return all(member.ready_at for member in self._members.values())

    # Who was struck

    def process_of(self, pid: int, at: float) -> Member:
        """The process that had this number then."""
        found = self._find(pid, at)
        assert found is not None, f"there was no worker process {pid} at {at}"
        return found

    def is_known(self, pid: int, at: float) -> bool:
        """Whether the process that had this number then has not been forgotten."""
        return self._find(pid, at) is not None

    def _find(self, pid: int, at: float) -> Member | None:
        living = self._members.get(pid)
        if living is not None and living.born <= at:
            return living
        return next((member for member in reversed(self._gone) if member.app.pid == pid and member.born <= at), None)

    def forget(self, before: float) -> None:
        """No run is left that was there at this time: those who have ended by then are not asked for any more."""
        while self._gone and (last := self._gone[0].last) is not None and last.at + LEAVING < before:
            self._gone.popleft()

    def stacks(self, only: Member | None = None) -> str:
        """What the threads of the living workers are doing, and what they have to say."""
        members = [only] if only is not None else list(self._members.values())
        for member in members:
            if member.app.exit_code is None:
                member.app.send(signal.SIGCONT)
                member.app.send(signal.SIGUSR1)
        time.sleep(0.5)
        return "\n".join(str(member.app) for member in members)
