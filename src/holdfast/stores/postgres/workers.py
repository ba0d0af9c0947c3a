"""Workers on a PostgreSQL database: registering, and finding out which of them are gone.

A worker holds a session lock (see ``worker_session``), and its row tells when the server had begun on which it took
that. The lock is free as soon as the process or its connection is gone: then the worker is a suspect. It may be that
only the connection was cut; a worker that lives takes its lock again in a moment. So a suspect is looked at twice.

Without a lock of its own (behind a pooler), or on a server that has been restarted since, the lease decides, by the
database's clock, and as far as the caller's window reaches (see ``leases``). A worker by lease never has one, and is
nobody's suspect: only those who are asked to look for such (``reap`` with ``by_lease``) ask for those whose lease has
passed.

**Neighbors.** Each worker watches the few that come after it in a circle, so a look costs the same in a fleet of any
size. Whichever workers die, at least one that lives watches one of those; then it looks at all of them, since deaths
come in groups.

**One look for everything.** A worker that has nothing to do asks one question now and then, about all that might have
become its business without anybody having told it: workers that seem to be dead, runs that are due, signals and
requests for the runs that it holds, workflows that were switched off or on, and whether a newer Holdfast has migrated
the schema.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from holdfast.stores.contract import NewWorker
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.postgres.migrations import quoted
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.worker_session import SERVER_BEGAN
from holdfast.stores.sql.claims import Wanted
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.workers import Suspect, worker_row

FOLLOWERS = 0
"""The number of the lock that whoever follows runs shares; workers' ids begin at 1."""
_CLOCK = "extract(epoch FROM clock_timestamp())::float8"
_TIME = f"coalesce(%(time)s::float8, {_CLOCK})"
"""The database's clock, unless a test has its own."""


NEIGHBORS = 3
"""How many workers each one watches: those with the next higher ids, as if all stood in a circle."""


def _try_lock(number: int | str, shared: str = "") -> str:
    """Whether nobody holds a lock, or, if ``shared``, nobody but those who share it. It is not kept.

    ``pg_locks`` would tell it as well, but it copies all locks of the server, while everybody else waits.
    """
    which = f"(%(class)s::int4, {number}::int4)"
    return f"CASE WHEN pg_try_advisory_lock{shared}{which} THEN pg_advisory_unlock{shared}{which} ELSE false END"


_IS_FREE = f"CASE WHEN server_started = {SERVER_BEGAN} THEN {_try_lock('id', '_shared')} ELSE false END"
"""Whether the lock of a worker is free, and that means something."""


def lock_class(schema: str) -> int:
    """The first half of the numbers of all locks of a schema."""
    return int.from_bytes(hashlib.blake2b(schema.encode(), digest_size=4).digest(), signed=True)


class Doubtful(NamedTuple):
    """A worker that may be dead."""

    suspect: Suspect
    beat_at: float
    lease_until: float
    has_lost_lock: bool
    """Its lock is free, and that means something."""


class Seen(NamedTuple):
    """What a look has found."""

    doubtful: list[Doubtful]
    is_due: bool
    """Something may be claimed."""
    has_news: bool
    """Something was sent to, or asked of, runs that the worker holds."""
    switches: str
    """Which workflows are switched off, as one text."""
    is_followed: bool
    """Somebody follows runs, perhaps those that are executed here."""
    compatible_from: int
    """The version of the schema that a Holdfast must know to use it."""
    at: float
    """The database's clock."""


class Looker:
    """The statements about workers, for one schema."""

    def __init__(self, statements: PgStatements) -> None:
        schema = quoted(statements.schema)
        self._class = lock_class(statements.schema)
        workers, signals, runs, switches, meta = (
            f"{schema}.{name}" for name in ("workers", "signals", "runs", "switches", "meta")
        )
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
            f"AND greatest(beat_at, %(since)s) + lease_until - beat_at < %(until)s ORDER BY id"
        )
        self._note_server = f"UPDATE {workers} SET server_started = %s WHERE id = %s AND state = 'live'"
        self._has_lost_its_lock = f"SELECT {_IS_FREE} FROM {workers} WHERE id = %(worker)s"
        serving = f"SELECT * FROM {workers} WHERE state = 'live' AND by_lease = 0"
        self.near = (
            f"SELECT * FROM ((SELECT *, 0 AS lap FROM ({serving} AND id > %(me)s) w ORDER BY id LIMIT {NEIGHBORS}) "
            f"UNION ALL (SELECT *, 1 FROM ({serving} AND id < %(me)s) w ORDER BY id LIMIT {NEIGHBORS})) w "
            f"ORDER BY lap, id LIMIT {NEIGHBORS}"
        )
        """The neighbors of a worker."""
        self._doubtful, nearby = (
            f"SELECT json_agg(json_build_array(id, name, host, pid, beat_at, lease_until, lost)) FROM (SELECT w.*, "
            f"{_IS_FREE} AS lost FROM ({some}) w) w WHERE lost OR lease_until < {_TIME}"
            for some in (f"{serving} AND id <> %(me)s", self.near)
        )
        self._look = (
            f"SELECT ({nearby}), ({statements.HAS_DUE}), "
            f"EXISTS (SELECT 1 FROM {signals} s CROSS JOIN LATERAL (SELECT 1 FROM {runs} r WHERE r.key = s.run "
            f"AND r.owner + 0 = %(me)s OFFSET 0) r WHERE s.xid >= %(cursor)s::text::xid8) "
            f"OR EXISTS ({statements.REQUESTS.replace('%s', '%(me)s')}), "
            f"(SELECT coalesce(string_agg(workflow, ' ' ORDER BY workflow), '') FROM {switches}), "
            f"NOT {_try_lock(FOLLOWERS)}, (SELECT value::int FROM {meta} WHERE name = 'compatible_from'), {_TIME}"
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

    def listeners_over(self, db: Database, window: LeaseWindow) -> list[Suspect]:
        """Workers by lease whose lease has passed within ``window``."""
        return [Suspect(*row, by_lease=True) for row in db.ask(self._listeners_over, window._asdict())]

    def note_server(self, db: Database, worker: int, began: float | None) -> None:
        """A worker has its lock, on a server that has begun then. ``None``: its lease decides, not its lock."""
        db.change(self._note_server, (began, worker))

    def look(self, db: Database, me: int, wanted: Wanted, cursor: int, now: float, time: float | None) -> Seen:
        """Look for all that might have become a worker's business. ``time`` is given where the clock is not trusted."""
        values = {"class": self._class, "now": now, "time": time, "me": me, "cursor": cursor}
        [row] = db.ask(self._look, {**wanted.values(db), **values})
        return Seen(_doubtful(row[0]), *row[1:])

    def doubtful(self, db: Database, me: int, time: float | None) -> list[Doubtful]:
        """All workers that may be dead."""
        return _doubtful(db.ask(self._doubtful, {"class": self._class, "time": time, "me": me})[0][0])

    def follow(self, db: Database, follows: bool) -> None:
        """Let others see, by a lock, that somebody here follows runs; or no more."""
        change = "lock" if follows else "unlock"
        db.ask(f"SELECT pg_advisory_{change}_shared(%s::int4, %s::int4)", (self._class, FOLLOWERS))

    def has_lost_its_lock(self, db: Database, suspect: Suspect) -> bool:
        """Whether a worker's lock is free, and that means something."""
        return db.ask(self._has_lost_its_lock, {"worker": suspect.id, "class": self._class}) == [(True,)]


def _doubtful(found: list[list[Any]] | None) -> list[Doubtful]:
    return [Doubtful(Suspect(*one[:4]), *one[4:]) for one in found or ()]
