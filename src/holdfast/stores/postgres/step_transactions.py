"""Transactional steps on PostgreSQL: an ordinary psycopg connection in a transaction that the step cannot end.

**Sessions** are kept for later steps, up to a maximum. Settings that a step made in a session do not reach the next
step: the server discards them (``DISCARD ALL``), and each step gets a new Python object with psycopg's own adapters and
factories. When a step ends, its object is left with a closed session.

**The end** is one message to the server: the fence, the outcome, and ``COMMIT``. So the run's row is locked no longer
than the server itself needs, and a connection that breaks in between keeps no lock: the server starts when it has the
whole message, or never. If the fence does not hold, an error stops the server before the ``COMMIT``.

**Guards.** Everything that would end the transaction is refused before it is sent: psycopg's methods, and statements
such as ``COMMIT``. A setting that ends with the transaction shows whether one has slipped through, for example in a
text that was assembled on the server. Then the step fails with an error that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import threading
import time
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus
from psycopg.sql import Composable

from holdfast.core.records import Attempt
from holdfast.errors import StepError, StoreUnavailable, UsageError
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.postgres.adapters import escape_text
from holdfast.stores.postgres.connections import close_on_error, connect_for_step, has_shared_sessions
from holdfast.stores.postgres.errors import is_connection_lost, is_outcome_unknown, to_store_error
from holdfast.stores.sql.step_transactions import GuardedConnection, SqlStepTransaction
from holdfast.stores.step_transactions import StepTransactions, make_end_refused_error, make_ended_by_step_error

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore

MAX_STEP_SESSIONS = 8
"""Maximum number of transactional steps of a process that have a connection at a time; others wait."""
MAX_IDLE_SESSION_S = 60.0
"""Seconds after which an unused connection is closed."""
IDLE_TRANSACTION_TIMEOUT_S = 300.0
"""How many seconds a step without a timeout may leave its transaction idle; then the server ends it. A suspended
process must not hold rows forever."""
_IDLE_MARGIN_S = 10.0
_CANCEL_TIMEOUT_S = 5.0
_MAX_TIMEOUT_MS = 2**31 - 1
"""The highest value that the setting takes, in milliseconds."""

_NOT_CLAIMED_CODE, _TRANSACTION_ENDED_CODE = "2201E", "2201F"
"""The SQLSTATEs of the logarithm of 0 and of the square root of a negative number, which ``_SAVE_OUTCOME`` uses."""
_SELECT_CLAIMED = "SELECT 1 FROM {s}.runs WHERE key = %s AND epoch = %s AND state = 'running'"
_SAVE_OUTCOME = (
    "RESET ROLE; WITH held AS (SELECT key FROM {s}.runs WHERE key = {run} AND epoch = {epoch} AND state = 'running' "
    "FOR SHARE), kept AS (INSERT INTO {s}.attempts (run, position, attempt, intent, error, at, name, outcome) "
    "SELECT key, {position}, {attempt}, 0, '', {at}, {name}, {outcome} FROM held "
    "ON CONFLICT (run, position) DO UPDATE SET attempt = excluded.attempt, intent = 0, progress = NULL, error = '', "
    "at = excluded.at, name = excluded.name, outcome = excluded.outcome WHERE attempts.name NOT IN ('', excluded.name) "
    "OR (attempts.attempt < excluded.attempt AND attempts.outcome IS NULL) RETURNING 1) "
    "SELECT CASE current_setting('holdfast.step', true) WHEN '{token}' THEN ln((SELECT count(*) FROM kept)::float8) "
    "ELSE sqrt(-1 - (SELECT count(*) FROM kept)::float8) END; COMMIT"
)

_NESTED_HINT = "For a part of it that may fail, use `with connection.transaction():`."
_CONTROL_WORDS = re.compile(r"\b(commit|end|abort|begin|start|prepare|rollback)\b", re.IGNORECASE)
_COMMENTS_AND_LITERALS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_CONTROL_STATEMENT = re.compile(
    r"\s*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+((work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)


def reject_transaction_control(query: Any, connection: Any) -> None:
    """Raise for a statement that would end the transaction."""
    if isinstance(query, Composable):
        query = query.as_string(connection)
    text = query.decode(errors="replace") if isinstance(query, bytes) else query
    if not isinstance(text, str) or not _CONTROL_WORDS.search(text) or "begin atomic" in text.lower():
        return
    for statement in _COMMENTS_AND_LITERALS.sub(" ", text).split(";"):
        if found := _CONTROL_STATEMENT.match(statement):
            raise make_end_refused_error(found[1].upper(), _NESTED_HINT)


class StepCursor(psycopg.Cursor[Any]):
    """Refuses statements that would end the transaction."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        reject_transaction_control(query, self.connection)
        return super().execute(query, *args, **kwargs)


class AsyncStepCursor(psycopg.AsyncCursor[Any]):
    """Refuses statements that would end the transaction."""

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        reject_transaction_control(query, self.connection)
        return await super().execute(query, *args, **kwargs)


class StepConnection(GuardedConnection, psycopg.Connection[Any]):
    """The connection of a step that is a plain function."""

    nested_hint = _NESTED_HINT

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = StepCursor


class AsyncStepConnection(psycopg.AsyncConnection[Any]):
    """The connection of a step that is an async function."""

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = AsyncStepCursor

    async def commit(self) -> NoReturn:
        raise make_end_refused_error("connection.commit()")

    async def rollback(self) -> NoReturn:
        raise make_end_refused_error("connection.rollback()", _NESTED_HINT.replace("with", "async with"))

    async def close(self) -> NoReturn:
        raise make_end_refused_error("connection.close()")

    async def __aenter__(self) -> NoReturn:
        raise make_end_refused_error("`async with connection:`", _NESTED_HINT.replace("with", "async with"))


# Sessions


class StepSession:
    """A server connection, without a Python connection object around it."""

    def __init__(self, connection: psycopg.Connection[Any], *, is_shared: bool) -> None:
        [(backend_pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        self.is_pooled = is_shared or connection.info.backend_pid != backend_pid
        self.used_at = time.monotonic()
        self.pgconn = _detach_pgconn(connection)

    @contextlib.contextmanager
    def borrow_connection(self) -> Generator[psycopg.Connection[Any]]:
        """A connection object for Holdfast's own statements. It begins no transaction."""
        connection = psycopg.Connection[Any](self.pgconn)
        connection.prepare_threshold = None
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            connection.autocommit = True
        try:
            yield connection
        finally:
            _detach_pgconn(connection)

    def close(self) -> None:
        """Close the connection. The server rolls back its transaction."""
        self.pgconn.finish()


class StepSessionPool:
    """The sessions of a store's transactional steps."""

    def __init__(self, url: str, schema: str, display_url: str) -> None:
        self._url = url
        self._select_claimed = _SELECT_CLAIMED.format(s=schema).encode()
        self._display_url = display_url
        self._idle: list[StepSession] = []
        self._is_closed = False
        self._lock = threading.Lock()
        """Steps begin in threads, and end on the loop."""
        self.slots = asyncio.Semaphore(MAX_STEP_SESSIONS)

    def begin_transaction(self, run: Run, token: str, timeout_s: float) -> StepSession | None:
        """A session with an open transaction, if the run is still held. Blocking."""
        while True:
            session, is_new = self._acquire()
            try:
                with session.borrow_connection() as connection:
                    if not (is_new or session.is_pooled):
                        connection.execute("DISCARD ALL")
                    if connection.execute(self._select_claimed, (run.key, run.epoch)).fetchone() is None:
                        self.release(session)
                        return None
                    idle_ms = min(int((timeout_s + _IDLE_MARGIN_S) * 1000), _MAX_TIMEOUT_MS)
                    connection.execute(
                        f"BEGIN; SET LOCAL holdfast.step = '{token}'; "
                        f"SET LOCAL idle_in_transaction_session_timeout = {idle_ms}".encode()
                    )
                return session
            except psycopg.Error as error:
                session.close()
                # An idle session may be lost because the server was restarted since. The next one is tried, or made.
                if is_new or not is_connection_lost(error):
                    raise to_store_error(error, self._display_url) from error

    def release(self, session: StepSession) -> None:
        """Keep the session for another step, and close those that no step has used for a while."""
        now = session.used_at = time.monotonic()
        with self._lock:
            idle = [*self._idle, session]
            self._idle = [] if self._is_closed else [one for one in idle if one.used_at >= now - MAX_IDLE_SESSION_S]
            expired = [one for one in idle if one not in self._idle]
        for one in expired:
            one.close()

    def close(self) -> None:
        """Close the idle sessions now, and the others when they are released."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _acquire(self) -> tuple[StepSession, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        connection = connect_for_step(self._url)
        with close_on_error(connection, self._display_url):
            return StepSession(connection, is_shared=has_shared_sessions(self._url)), True


class PgStepTransaction(SqlStepTransaction):
    """The transaction of one attempt."""

    connection: StepConnection | AsyncStepConnection
    _store: PgStore

    def __init__(
        self,
        store: PgStore,
        run: Run,
        attempt: Attempt,
        sessions: StepSessionPool,
        session: StepSession,
        token: str,
        *,
        is_sync: bool,
    ) -> None:
        super().__init__(store, run, attempt)
        self.connection = StepConnection(session.pgconn) if is_sync else AsyncStepConnection(session.pgconn)
        if session.is_pooled:
            self.connection.prepare_threshold = None
        self._sessions = sessions
        self._session: StepSession | None = session
        self._token = token
        self._was_commit_sent = False

    @property
    def is_lost(self) -> bool:
        return self._session is None or self._session.pgconn.status != ConnStatus.OK

    async def commit(self, outcome: bytes) -> OpStatus:
        if self._was_commit_sent:
            return await self._resolve_attempt()
        if self.is_lost:
            await self.abandon()
            return OpStatus.REFUSED  # no commit was sent
        if problem := self._find_problem():
            await self.abandon()
            raise problem
        self._was_commit_sent = True
        try:
            await asyncio.to_thread(self._commit, self._make_commit(outcome))
        except psycopg.Error as error:
            if is_outcome_unknown(error):
                await self.abandon()
                raise StoreUnavailable(str(to_store_error(error, self._store.url))) from error
            await self.roll_back()
            if error.sqlstate == _NOT_CLAIMED_CODE:
                return await self._resolve_attempt()
            if error.sqlstate == _TRANSACTION_ENDED_CODE:
                raise make_ended_by_step_error(self._attempt.name) from None
            raise
        self._end(is_reusable=True)
        return OpStatus.DONE

    def _find_problem(self) -> UsageError | None:
        """Why nothing can be committed, by the state of the connection."""
        assert self._session is not None
        name, pgconn = self._attempt.name, self._session.pgconn
        if pgconn.transaction_status == TransactionStatus.IDLE:
            return make_ended_by_step_error(name)
        if pgconn.transaction_status == TransactionStatus.INERROR:
            return UsageError(
                f"a statement of step {name!r} has failed, and the step went on: PostgreSQL commits nothing of a "
                f"transaction in which something has failed. {_NESTED_HINT}"
            )
        is_busy = pgconn.transaction_status != TransactionStatus.INTRANS or pgconn.pipeline_status != PipelineStatus.OFF
        if is_busy:
            return UsageError(
                f"step {name!r} has returned while a statement, a COPY or a pipeline was under way on its connection: "
                f"wait for whatever uses it before you return"
            )
        return None

    def _make_commit(self, outcome: bytes) -> bytes:
        run, attempt = self._run, self._attempt
        name = _format_bytes(escape_text(attempt.name).encode())
        return _SAVE_OUTCOME.format(
            s=self._store.schema, run=run.key, epoch=run.epoch, position=attempt.position, attempt=attempt.attempt,
            at=f"{attempt.at!r}::float8", name=f"convert_from({name}, 'UTF8')", outcome=_format_bytes(outcome),
            token=self._token,
        ).encode()  # fmt: skip

    def _commit(self, statements: bytes) -> None:
        assert self._session is not None
        _detach_pgconn(self.connection)
        with self._session.borrow_connection() as connection:
            connection.execute(statements)

    async def roll_back(self) -> None:
        try:
            await asyncio.to_thread(self._roll_back)
        except (psycopg.Error, StepError):
            await self.abandon()
        else:
            self._end(is_reusable=True)

    def _roll_back(self) -> None:
        session = self._session
        if session is None:
            return
        if session.pgconn.transaction_status == TransactionStatus.ACTIVE:
            raise StepError("the connection is in use", self._attempt.name)
        _detach_pgconn(self.connection)
        with session.borrow_connection() as connection:
            connection.execute("ROLLBACK")

    async def abandon(self) -> None:
        try:
            await asyncio.to_thread(self._abandon)
        finally:
            self._end(is_reusable=False)

    def _abandon(self) -> None:
        """Let the connection start nothing more; stop the statement in progress, and wait for it."""
        connection, session = self.connection, self._session
        if session is None:
            return
        is_active = session.pgconn.transaction_status == TransactionStatus.ACTIVE
        cancel = session.pgconn.get_cancel() if is_active else None
        _detach_pgconn(connection)
        if isinstance(connection, StepConnection):
            if cancel is not None:
                with contextlib.suppress(psycopg.Error):
                    cancel.cancel()
            if not connection.lock.acquire(timeout=_CANCEL_TIMEOUT_S):
                return  # the step's thread has the last reference: the connection closes when it drops it
            connection.lock.release()
        session.close()

    def _end(self, *, is_reusable: bool) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if is_reusable:
            self._sessions.release(session)
        self._sessions.slots.release()


class PgStepTransactions(StepTransactions):
    """Transactional steps of a store."""

    def __init__(self, store: PgStore, libpq_url: str) -> None:
        self._store = store
        self._libpq_url = libpq_url
        self._sessions: StepSessionPool | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None

    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> PgStepTransaction | None:
        store = self._store
        store.check_open()
        if self._sessions is None:
            self._sessions = StepSessionPool(self._libpq_url, store.schema, store.url)
        sessions, token = self._sessions, secrets.token_hex(8)
        await sessions.slots.acquire()
        session = None
        try:
            session = await asyncio.to_thread(
                sessions.begin_transaction, run, token, IDLE_TRANSACTION_TIMEOUT_S if timeout_s is None else timeout_s
            )
        finally:
            if session is None:
                sessions.slots.release()
        if session is None:
            return None
        return PgStepTransaction(store, run, attempt, sessions, session, token, is_sync=is_sync)


def _format_bytes(value: bytes) -> str:
    """Bytes as SQL, whatever a backslash means in the session."""
    return f"decode('{value.hex()}', 'hex')"


def _detach_pgconn(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Any:
    """Take the libpq connection out of a connection object, which is left with a closed one."""
    pgconn, connection.pgconn = connection.pgconn, _get_closed_pgconn()
    return pgconn


@cache
def _get_closed_pgconn() -> Any:
    pgconn = pq.PGconn.connect_start(b"host=/nowhere")
    pgconn.finish()
    return pgconn
