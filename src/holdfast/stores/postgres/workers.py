"""Workers on a PostgreSQL database: registering, and finding out which of them are gone.

A worker holds a session lock (see ``keeper``), and its row tells when the server had begun on which it took that. The
lock is free as soon as the process or its connection is gone: then the worker is a suspect. It may be that only the
connection was cut; a worker that lives takes its lock again in a moment. So a suspect is looked at twice.

Without a lock of its own (behind a pooler), or on a server that has been restarted since, the lease decides, by the
database's clock. A worker by lease never has one, and is nobody's suspect: only those who are asked to look for such
(``reap`` with ``by_lease``) ask for those whose lease has passed.

**One look for everything.** A worker that has nothing to do asks one question now and then, about all that might have
become its business without anybody having told it: workers that seem to be dead, runs that are due, signals and
requests for the runs that it holds, workflows that were switched off or on.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.stores.contract import NewWorker
from holdfast.stores.postgres.keeper import SERVER_BEGAN
from holdfast.stores.postgres.migrations import quoted
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.sql.claims import Wanted
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import Suspect, worker_row

FOLLOWERS = 0
"""The number of the lock that whoever follows runs shares; workers' ids begin at 1."""
_CLOCK = "extract(epoch FROM clock_timestamp())::float8"
_TIME = f"coalesce(%(time)s::float8, {_CLOCK})"
"""The database's clock, unless a test has its own."""


def lock_class(schema: str) -> int:
    """The first half of the numbers of all locks of a schema."""
    return int.from_bytes(hashlib.blake2b(schema.encode(), digest_size=4).digest(), signed=True)


class Seen(NamedTuple):
    """What a look has found."""

    suspects: list[Suspect]
    is_due: bool
    """Something may be claimed."""
    has_news: bool
    """Something was sent to, or asked of, runs that the worker holds."""
    switches: str
    """Which workflows are switched off, as one text."""
    is_followed: bool
    """Somebody follows runs, perhaps those that are executed here."""
    at: float
    """The database's clock."""


class Looker:
    """The statements about workers, for one schema."""

    def __init__(self, statements: PgStatements) -> None:
        schema = quoted(statements.schema)
        self._class = lock_class(statements.schema)
        workers, signals, runs, switches = (f"{schema}.{name}" for name in ("workers", "signals", "runs", "switches"))
        self._register = (
            f"INSERT INTO {workers} "
            f"(token, name, host, pid, workflows, queues, by_lease, state, started_at, lease_until, beat_at) "
            f"SELECT %(token)s, %(name)s, %(host)s, %(pid)s, %(workflows)s, %(queues)s, %(by_lease)s, 'live', t.now, "
            f"t.now + %(lease)s, t.now FROM (SELECT {_TIME} AS now) t RETURNING id"
        )
        self._renew = (
            f"UPDATE {workers} SET lease_until = t.now + %(lease)s, beat_at = t.now "
            f"FROM (SELECT {_TIME} AS now) t WHERE id = %(worker)s AND state = 'live'"
        )
        self._keep = f"{self._renew} AND by_lease = 1"
        self._listeners_over = (
            f"SELECT id, name, host, pid FROM {workers} "
            f"WHERE state = 'live' AND by_lease = 1 "
            f"AND greatest(beat_at, %(since)s) + lease_until - beat_at < {_TIME} ORDER BY id"
        )
        self._note_server = f"UPDATE {workers} SET server_started = %s WHERE id = %s AND state = 'live'"
        held = (
            "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
            "AND classid::bigint = %(class)s "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        self._has_lost_its_lock = (
            f"SELECT server_started = {SERVER_BEGAN} AND id NOT IN ({held}) FROM {workers} WHERE id = %(worker)s"
        )
        self._look = (
            f"WITH held (id) AS MATERIALIZED ({held}) SELECT "
            f"(SELECT json_agg(json_build_array(id, name, host, pid)) FROM {workers} WHERE state = 'live' "
            f"AND by_lease = 0 AND id <> %(me)s AND (lease_until < {_TIME} OR (server_started = {SERVER_BEGAN} "
            f"AND id NOT IN (SELECT id FROM held)))), "
            f"({statements.HAS_DUE}), "
            f"EXISTS (SELECT 1 FROM {signals} s CROSS JOIN LATERAL (SELECT 1 FROM {runs} r WHERE r.key = s.run "
            f"AND r.owner + 0 = %(me)s OFFSET 0) r WHERE s.xid >= %(cursor)s::text::xid8) "
            f"OR EXISTS ({statements.REQUESTS.replace('%s', '%(me)s')}), "
            f"(SELECT coalesce(string_agg(workflow, ' ' ORDER BY workflow), '') FROM {switches}), "
            f"EXISTS (SELECT 1 FROM held WHERE id = {FOLLOWERS}), {_CLOCK}"
        )

    def register(self, db: Database, worker: NewWorker, token: str, now: float | None, lease: float) -> int:
        """Write a worker's row. Its lease decides whether it lives, until its lock is noted."""
        names = ("token", "name", "host", "pid", "workflows", "queues", "by_lease")
        values = dict(zip(names, worker_row(worker, token), strict=True))
        [(number,)] = db.ask(self._register, {**values, "time": now, "lease": lease})
        return number

    def renew(self, db: Database, worker: int, now: float | None, lease: float) -> bool:
        """Prolong a lease. False: the worker is live no more."""
        return db.change(self._renew, {"worker": worker, "time": now, "lease": lease}) == 1

    def keep(self, db: Database, worker: int, now: float | None, lease: float) -> bool:
        """The same for a worker by lease; false as well if it is none."""
        return db.change(self._keep, {"worker": worker, "time": now, "lease": lease}) == 1

    def listeners_over(self, db: Database, since: float, now: float | None) -> list[Suspect]:
        """Workers by lease whose lease, counted from ``since`` at the earliest, has passed."""
        return [Suspect(*row, by_lease=True) for row in db.ask(self._listeners_over, {"since": since, "time": now})]

    def note_server(self, db: Database, worker: int, began: float) -> None:
        """A worker has its lock, on a server that has begun then."""
        db.change(self._note_server, (began, worker))

    def look(self, db: Database, me: int, wanted: Wanted, cursor: int, now: float, time: float | None) -> Seen:
        """Look for all that might have become a worker's business. ``time`` is given where the clock is not trusted."""
        locks = {"class": self._class % (1 << 32)}
        [row] = db.ask(self._look, {**wanted.values(db), **locks, "now": now, "time": time, "me": me, "cursor": cursor})
        return Seen([Suspect(*suspect) for suspect in row[0] or ()], *row[1:])

    def clock(self, db: Database, time: float | None) -> float:
        """What leases are measured by."""
        return db.ask(f"SELECT {_TIME}", {"time": time})[0][0]

    def follow(self, db: Database, follows: bool) -> None:
        """Let others see, by a lock, that somebody here follows runs; or no more."""
        change = "lock" if follows else "unlock"
        db.ask(f"SELECT pg_advisory_{change}_shared(%s::int4, %s::int4)", (self._class, FOLLOWERS))

    def has_lost_its_lock(self, db: Database, suspect: Suspect) -> bool:
        """Whether a worker's lock is free, and that means something."""
        return db.ask(self._has_lost_its_lock, {"worker": suspect.id, "class": self._class % (1 << 32)}) == [(True,)]
