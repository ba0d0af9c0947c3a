# ruff: noqa: D102 - what the methods are for is said once, in the base class
"""Transactional steps on PostgreSQL: a connection as users know them, in a transaction that they cannot end.

**Sessions** are kept for the steps that come after, a bounded number of them. What a step has set in one does not reach
the next: the server forgets it (``DISCARD ALL``), and the Python object around it is made anew for each step, with
psycopg's own adapters and factories. When the step is over, its object is left with a session that is closed.

**The end** is one message to the server: the fence, the outcome and ``COMMIT``. So the run's row is locked for no
longer than the server itself needs, and a connection that breaks in between leaves nobody waiting: the server begins
with it when all of it is there, or never. If the fence does not hold, an error keeps it from coming to the ``COMMIT``.

**Guards.** What would end the transaction is refused before it is sent: psycopg's methods, and statements such as
``COMMIT``. A setting that is gone with the transaction shows whether one has slipped through, say in a text that was
put together on the server: then the step fails, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from functools import cache
from typing import Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus
from psycopg.sql import Composable

from holdfast.core.records import Attempt
from holdfast.errors import StepError, StoreUnavailable, UsageError
from holdfast.stores.operations import Run, Verdict
from holdfast.stores.postgres.adapters import escaped
from holdfast.stores.postgres.connections import connect_plainly, is_shared
from holdfast.stores.postgres.errors import is_lost, outcome_is_unknown, store_error
from holdfast.stores.step_transactions import StepTransaction, ended_by_itself, refused

AT_ONCE = 8
"""How many transactional steps of a process have a connection at a time; the others wait."""
KEEP = 60.0
"""Seconds after which a connection that no step has used is closed."""
IDLE_LIMIT = 300.0
"""How long a step without a time-out may leave its transaction alone, in seconds; then the server ends it. A process
that is suspended must not hold rows for ever."""
_MARGIN = 10.0
_CANCEL_PATIENCE = 5.0
_LONGEST = 2**31 - 1
"""Milliseconds: more is no setting."""

_NOT_HELD, _ENDED = "2201E", "2201F"
"""What the server says to the logarithm of 0, and to the root of a negative number."""
_IS_HELD = "SELECT 1 FROM {s}.runs WHERE key = %s AND epoch = %s AND state = 'running'"
_KEEP_OUTCOME = (
    "RESET ROLE; WITH held AS (SELECT key FROM {s}.runs WHERE key = {run} AND epoch = {epoch} AND state = 'running' "
    "FOR SHARE), kept AS (INSERT INTO {s}.attempts (run, position, attempt, intent, error, at, name, outcome) "
    "SELECT key, {position}, {attempt}, 0, '', {at}, {name}, {outcome} FROM held "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = 0, progress = NULL, error = '', "
    "at = excluded.at, name = excluded.name, outcome = excluded.outcome WHERE attempts.name NOT IN ('', excluded.name) "
    "OR (attempts.attempt < excluded.attempt AND attempts.outcome IS NULL) RETURNING 1) "
    "SELECT CASE current_setting('holdfast.step', true) WHEN '{token}' THEN ln((SELECT count(*) FROM kept)::float8) "
    "ELSE sqrt(-1 - (SELECT count(*) FROM kept)::float8) END; COMMIT"
)

_NESTED = "For a part of it that may fail, use `with connection.transaction():`."
_WORDS = re.compile(r"\b(commit|end|abort|begin|start|prepare|rollback)\b", re.IGNORECASE)
_NOT_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_CONTROL = re.compile(
    r"\s*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+((work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)


def refuse_control(query: Any, connection: Any) -> None:
    """Refuse a statement that would end the transaction."""
    if isinstance(query, Composable):
        query = query.as_string(connection)
    text = query.decode(errors="replace") if isinstance(query, bytes) else query
    if not isinstance(text, str) or not _WORDS.search(text) or "begin atomic" in text.lower():
        return
    for statement in _NOT_CODE.sub(" ", text).split(";"):
        if found := _CONTROL.match(statement):
            raise refused(found[1].upper(), _NESTED)


# What a step is handed


class StepCursor(psycopg.Cursor[Any]):
    """Executes what does not end the transaction."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """As always."""
        refuse_control(query, self.connection)
        return super().execute(query, *args, **kwargs)


class AsyncStepCursor(psycopg.AsyncCursor[Any]):
    """Executes what does not end the transaction."""

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """As always."""
        refuse_control(query, self.connection)
        return await super().execute(query, *args, **kwargs)


class StepConnection(psycopg.Connection[Any]):
    """For a plain function."""

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = StepCursor

    def commit(self) -> NoReturn:
        """Refused."""
        raise refused("connection.commit()")

    def rollback(self) -> NoReturn:
        """Refused."""
        raise refused("connection.rollback()", _NESTED)

    def close(self) -> NoReturn:
        """Refused."""
        raise refused("connection.close()")

    def __enter__(self) -> NoReturn:
        """Refused."""
        raise refused("`with connection:`", _NESTED)


class AsyncStepConnection(psycopg.AsyncConnection[Any]):
    """For an async function."""

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = AsyncStepCursor

    async def commit(self) -> NoReturn:
        """Refused."""
        raise refused("connection.commit()")

    async def rollback(self) -> NoReturn:
        """Refused."""
        raise refused("connection.rollback()", _NESTED.replace("with", "async with"))

    async def close(self) -> NoReturn:
        """Refused."""
        raise refused("connection.close()")

    async def __aenter__(self) -> NoReturn:
        """Refused."""
        raise refused("`async with connection:`", _NESTED.replace("with", "async with"))


# Sessions


class Session:
    """A connection to the server, without the Python object around it."""

    def __init__(self, connection: psycopg.Connection[Any], *, is_shared: bool) -> None:
        self.is_pooled = is_shared or connection.info.backend_pid != _pid(connection)
        self.used_at = time.monotonic()
        self.pgconn = _taken_from(connection)

    @contextlib.contextmanager
    def plainly(self) -> Generator[psycopg.Connection[Any]]:
        """Ours for a moment; it begins no transaction."""
        connection = psycopg.Connection[Any](self.pgconn)
        connection.prepare_threshold = None
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            connection.autocommit = True
        try:
            yield connection
        finally:
            _taken_from(connection)

    def handed_out(self, plain: bool) -> StepConnection | AsyncStepConnection:
        """For a step."""
        connection = StepConnection(self.pgconn) if plain else AsyncStepConnection(self.pgconn)
        if self.is_pooled:
            connection.prepare_threshold = None
        return connection

    def close(self) -> None:
        """Close it; whatever it was in the middle of is undone."""
        self.pgconn.finish()


class Sessions:
    """Those of a store."""

    def __init__(self, url: str, schema: str, shown: str) -> None:
        self._url = url
        self._is_held = _IS_HELD.format(s=schema).encode()
        self._shown = shown
        self._idle: list[Session] = []
        self._is_closed = False
        self._guard = threading.Lock()
        """Steps begin in threads, and end on the loop."""
        self.turns = asyncio.Semaphore(AT_ONCE)

    def begin(self, run: Run, token: str, limit: float) -> Session | None:
        """One with an open transaction, if the run is still held. Blocking."""
        while True:
            session, is_new = self._take()
            try:
                with session.plainly() as connection:
                    if not (is_new or session.is_pooled):
                        connection.execute("DISCARD ALL")
                    if connection.execute(self._is_held, (run.key, run.epoch)).fetchone() is None:
                        self.give_back(session)
                        return None
                    idle = min(int((limit + _MARGIN) * 1000), _LONGEST)
                    connection.execute(
                        f"BEGIN; SET LOCAL holdfast.step = '{token}'; "
                        f"SET LOCAL idle_in_transaction_session_timeout = {idle}".encode()
                    )
                return session
            except psycopg.Error as error:
                session.close()
                if is_new or not is_lost(error):  # else the server was restarted since, say, and the next one is new
                    raise store_error(error, self._shown) from error

    def give_back(self, session: Session) -> None:
        """A step has ended in good order."""
        now = session.used_at = time.monotonic()
        with self._guard:
            idle = [*self._idle, session]
            self._idle = [] if self._is_closed else [one for one in idle if one.used_at >= now - KEEP]
            over = [one for one in idle if one not in self._idle]
        for one in over:
            one.close()

    def close(self) -> None:
        """Close those that nobody uses, and the others when they are given back."""
        with self._guard:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _take(self) -> tuple[Session, bool]:
        with self._guard:
            if self._idle:
                return self._idle.pop(), False
        connection = connect_plainly(self._url)
        try:
            return Session(connection, is_shared=is_shared(self._url)), True
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise store_error(error, self._shown) from error
            raise


class PgStepTransaction(StepTransaction):
    """The transaction of one attempt."""

    connection: StepConnection | AsyncStepConnection

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        keep: Callable[[bytes], bytes],
        attempt: Attempt,
        shown: str,
        find_out: Callable[[], Awaitable[Verdict]],
        *,
        plain: bool,
    ) -> None:
        self.connection = session.handed_out(plain)
        self._sessions = sessions
        self._session: Session | None = session
        self._keep = keep
        self._attempt = attempt
        self._shown = shown
        self._find_out = find_out
        self._was_sent = False

    @property
    def is_lost(self) -> bool:
        return self._session is None or self._session.pgconn.status != ConnStatus.OK

    async def commit(self, outcome: bytes) -> Verdict:
        if self._was_sent:
            return await self._find_out()
        if self.is_lost:
            await self.abandon()
            return Verdict.REFUSED  # no commit was sent
        if problem := self._problem():
            await self.abandon()
            raise problem
        self._was_sent = True
        try:
            await asyncio.to_thread(self._commit, self._keep(outcome))
        except psycopg.Error as error:
            if outcome_is_unknown(error):
                await self.abandon()
                raise StoreUnavailable(str(store_error(error, self._shown))) from error
            await self.roll_back()
            if error.sqlstate == _NOT_HELD:
                return await self._find_out()
            if error.sqlstate == _ENDED:
                raise ended_by_itself(self._attempt.name) from None
            raise
        self._end(give_back=True)
        return Verdict.DONE

    def _problem(self) -> UsageError | None:
        """Why there is nothing to be committed, by the state of the connection."""
        assert self._session is not None
        name, pgconn = self._attempt.name, self._session.pgconn
        if pgconn.transaction_status == TransactionStatus.IDLE:
            return ended_by_itself(name)
        if pgconn.transaction_status == TransactionStatus.INERROR:
            return UsageError(
                f"a statement of step {name!r} has failed, and the step went on: PostgreSQL commits nothing of a "
                f"transaction in which something has failed. {_NESTED}"
            )
        is_busy = pgconn.transaction_status != TransactionStatus.INTRANS or pgconn.pipeline_status != PipelineStatus.OFF
        if is_busy:
            return UsageError(
                f"step {name!r} has returned while a statement, a COPY or a pipeline was under way on its connection: "
                f"wait for whatever uses it before you return"
            )
        return None

    def _commit(self, statements: bytes) -> None:
        assert self._session is not None
        _taken_from(self.connection)
        with self._session.plainly() as connection:
            connection.execute(statements)

    async def roll_back(self) -> None:
        try:
            await asyncio.to_thread(self._roll_back)
        except (psycopg.Error, StepError):
            await self.abandon()
        else:
            self._end(give_back=True)

    def _roll_back(self) -> None:
        session = self._session
        if session is None:
            return
        if session.pgconn.transaction_status == TransactionStatus.ACTIVE:
            raise StepError("the connection is in use", self._attempt.name)
        _taken_from(self.connection)
        with session.plainly() as connection:
            connection.execute("ROLLBACK")

    async def abandon(self) -> None:
        try:
            await asyncio.to_thread(self._abandon)
        finally:
            self._end(give_back=False)

    def _abandon(self) -> None:
        """Nothing more is begun on the connection; what is under way is stopped, and waited for."""
        connection, session = self.connection, self._session
        if session is None:
            return
        is_active = session.pgconn.transaction_status == TransactionStatus.ACTIVE
        cancel = session.pgconn.get_cancel() if is_active else None
        _taken_from(connection)
        if isinstance(connection, StepConnection):
            if cancel is not None:
                with contextlib.suppress(psycopg.Error):
                    cancel.cancel()
            if not connection.lock.acquire(timeout=_CANCEL_PATIENCE):
                return  # whoever uses it is the last to have it: it is closed when they let go
            connection.lock.release()
        session.close()

    def _end(self, *, give_back: bool) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if give_back:
            self._sessions.give_back(session)
        self._sessions.turns.release()


async def begin(
    sessions: Sessions,
    schema: str,
    shown: str,
    run: Run,
    attempt: Attempt,
    find_out: Callable[[], Awaitable[Verdict]],
    *,
    plain: bool,
    limit: float | None,
) -> PgStepTransaction | None:
    """Begin the transaction of an attempt, if its run is still held."""
    token = secrets.token_hex(8)
    await sessions.turns.acquire()
    session = None
    try:
        session = await asyncio.to_thread(sessions.begin, run, token, IDLE_LIMIT if limit is None else limit)
    finally:
        if session is None:
            sessions.turns.release()
    if session is None:
        return None

    def keep(outcome: bytes) -> bytes:
        return _KEEP_OUTCOME.format(
            s=schema, run=run.key, epoch=run.epoch, position=attempt.position, attempt=attempt.attempt,
            at=f"{attempt.at!r}::float8", name=f"convert_from({_hex(escaped(attempt.name).encode())}, 'UTF8')",
            outcome=_hex(outcome), token=token,
        ).encode()  # fmt: skip

    return PgStepTransaction(sessions, session, keep, attempt, shown, find_out, plain=plain)


def _hex(value: bytes) -> str:
    """Bytes in SQL, whatever a session takes a backslash for."""
    return f"decode('{value.hex()}', 'hex')"


def _pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return 0 if row is None else row[0]


def _taken_from(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Any:
    """What a connection consists of; it is left with one that is closed."""
    pgconn, connection.pgconn = connection.pgconn, _closed()
    return pgconn


@cache
def _closed() -> Any:
    pgconn = pq.PGconn.connect_start(b"host=/nowhere")
    pgconn.finish()
    return pgconn
