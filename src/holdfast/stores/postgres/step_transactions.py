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
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus
from psycopg.sql import Composable

from holdfast.core.records import Attempt
from holdfast.errors import StepError, StoreUnavailable, UsageError
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.postgres.adapters import escape_text
from holdfast.stores.postgres.connections import connect_for_step, has_shared_sessions
from holdfast.stores.postgres.errors import is_connection_lost, is_outcome_unknown, to_store_error
from holdfast.stores.sql.step_transactions import resolve_attempt
from holdfast.stores.step_transactions import (
    StepTransaction,
    StepTransactions,
    make_end_refused_error,
    make_ended_by_step_error,
)

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore

MAX_STEP_SESSIONS = 8
"""How many transactional steps of a process have a connection at a time; the others wait."""
MAX_IDLE_SESSION_S = 60.0
"""Seconds after which a connection that no step has used is closed."""
IDLE_TRANSACTION_TIMEOUT_S = 300.0
"""How long a step without a time-out may leave its transaction alone, in seconds; then the server ends it. A process
that is suspended must not hold rows for ever."""
_IDLE_MARGIN_S = 10.0
_CANCEL_TIMEOUT_S = 5.0
_MAX_TIMEOUT_MS = 2**31 - 1
"""Milliseconds: more is no setting."""

_NOT_CLAIMED_CODE, _TRANSACTION_ENDED_CODE = "2201E", "2201F"
"""What the server says to the logarithm of 0, and to the root of a negative number."""
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
    """Refuse a statement that would end the transaction."""
    if isinstance(query, Composable):
        query = query.as_string(connection)
    text = query.decode(errors="replace") if isinstance(query, bytes) else query
    if not isinstance(text, str) or not _CONTROL_WORDS.search(text) or "begin atomic" in text.lower():
        return
    for statement in _COMMENTS_AND_LITERALS.sub(" ", text).split(";"):
        if found := _CONTROL_STATEMENT.match(statement):
            raise make_end_refused_error(found[1].upper(), _NESTED_HINT)


# What a step is handed


class StepCursor(psycopg.Cursor[Any]):
    """Executes what does not end the transaction."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """As always."""
        reject_transaction_control(query, self.connection)
        return super().execute(query, *args, **kwargs)


class AsyncStepCursor(psycopg.AsyncCursor[Any]):
    """Executes what does not end the transaction."""

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """As always."""
        reject_transaction_control(query, self.connection)
        return await super().execute(query, *args, **kwargs)


class StepConnection(psycopg.Connection[Any]):
    """For a plain function."""

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = StepCursor

    def commit(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.commit()")

    def rollback(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.rollback()", _NESTED_HINT)

    def close(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.close()")

    def __enter__(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("`with connection:`", _NESTED_HINT)


class AsyncStepConnection(psycopg.AsyncConnection[Any]):
    """For an async function."""

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.cursor_factory = AsyncStepCursor

    async def commit(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.commit()")

    async def rollback(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.rollback()", _NESTED_HINT.replace("with", "async with"))

    async def close(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("connection.close()")

    async def __aenter__(self) -> NoReturn:
        """Refused."""
        raise make_end_refused_error("`async with connection:`", _NESTED_HINT.replace("with", "async with"))


# Sessions


class StepSession:
    """A connection to the server, without the Python object around it."""

    def __init__(self, connection: psycopg.Connection[Any], *, is_shared: bool) -> None:
        self.is_pooled = is_shared or connection.info.backend_pid != _read_backend_pid(connection)
        self.used_at = time.monotonic()
        self.pgconn = _detach_pgconn(connection)

    @contextlib.contextmanager
    def borrow_connection(self) -> Generator[psycopg.Connection[Any]]:
        """Ours for a moment; it begins no transaction."""
        connection = psycopg.Connection[Any](self.pgconn)
        connection.prepare_threshold = None
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            connection.autocommit = True
        try:
            yield connection
        finally:
            _detach_pgconn(connection)

    def make_step_connection(self, is_sync: bool) -> StepConnection | AsyncStepConnection:
        """For a step."""
        connection = StepConnection(self.pgconn) if is_sync else AsyncStepConnection(self.pgconn)
        if self.is_pooled:
            connection.prepare_threshold = None
        return connection

    def close(self) -> None:
        """Close it; whatever it was in the middle of is undone."""
        self.pgconn.finish()


class StepSessionPool:
    """Those of a store."""

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
        """One with an open transaction, if the run is still held. Blocking."""
        while True:
            session, is_new = self._acquire()
            try:
                with session.borrow_connection() as connection:
                    if not (is_new or session.is_pooled):
                        connection.execute("DISCARD ALL")
                    if connection.execute(self._select_claimed, (run.key, run.epoch)).fetchone() is None:
                        self.release(session)
                        return None
                    idle = min(int((timeout_s + _IDLE_MARGIN_S) * 1000), _MAX_TIMEOUT_MS)
                    connection.execute(
                        f"BEGIN; SET LOCAL holdfast.step = '{token}'; "
                        f"SET LOCAL idle_in_transaction_session_timeout = {idle}".encode()
                    )
                return session
            except psycopg.Error as error:
                session.close()
                if is_new or not is_connection_lost(
                    error
                ):  # else the server was restarted since, say, and the next one is new
                    raise to_store_error(error, self._display_url) from error

    def release(self, session: StepSession) -> None:
        """A step has ended in good order."""
        now = session.used_at = time.monotonic()
        with self._lock:
            idle = [*self._idle, session]
            self._idle = [] if self._is_closed else [one for one in idle if one.used_at >= now - MAX_IDLE_SESSION_S]
            over = [one for one in idle if one not in self._idle]
        for one in over:
            one.close()

    def close(self) -> None:
        """Close those that nobody uses, and the others when they are given back."""
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
        try:
            return StepSession(connection, is_shared=has_shared_sessions(self._url)), True
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise to_store_error(error, self._display_url) from error
            raise


class PgStepTransaction(StepTransaction):
    """The transaction of one attempt."""

    connection: StepConnection | AsyncStepConnection

    def __init__(
        self,
        sessions: StepSessionPool,
        session: StepSession,
        make_commit: Callable[[bytes], bytes],
        attempt: Attempt,
        display_url: str,
        resolve_attempt: Callable[[], Awaitable[OpStatus]],
        *,
        is_sync: bool,
    ) -> None:
        self.connection = session.make_step_connection(is_sync)
        self._sessions = sessions
        self._session: StepSession | None = session
        self._make_commit = make_commit
        self._attempt = attempt
        self._display_url = display_url
        self._resolve_attempt = resolve_attempt
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
                raise StoreUnavailable(str(to_store_error(error, self._display_url))) from error
            await self.roll_back()
            if error.sqlstate == _NOT_CLAIMED_CODE:
                return await self._resolve_attempt()
            if error.sqlstate == _TRANSACTION_ENDED_CODE:
                raise make_ended_by_step_error(self._attempt.name) from None
            raise
        self._end(is_reusable=True)
        return OpStatus.DONE

    def _find_problem(self) -> UsageError | None:
        """Why there is nothing to be committed, by the state of the connection."""
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
        """Nothing more is begun on the connection; what is under way is stopped, and waited for."""
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
                return  # whoever uses it is the last to have it: it is closed when they let go
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
    """The database, for steps that change it."""

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

        def keep(outcome: bytes) -> bytes:
            return _SAVE_OUTCOME.format(
                s=store.schema, run=run.key, epoch=run.epoch, position=attempt.position, attempt=attempt.attempt,
                at=f"{attempt.at!r}::float8", name=f"convert_from({_format_bytes(escape_text(attempt.name).encode())}, "
                "'UTF8')",
                outcome=_format_bytes(outcome), token=token,
            ).encode()  # fmt: skip

        def ask() -> Awaitable[OpStatus]:
            return store.write(lambda db: resolve_attempt(db, run, attempt, store.now()))

        return PgStepTransaction(sessions, session, keep, attempt, store.url, ask, is_sync=is_sync)


def _format_bytes(value: bytes) -> str:
    """Bytes in SQL, whatever a session takes a backslash for."""
    return f"decode('{value.hex()}', 'hex')"


def _read_backend_pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return 0 if row is None else row[0]


def _detach_pgconn(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Any:
    """What a connection consists of; it is left with one that is closed."""
    pgconn, connection.pgconn = connection.pgconn, _get_closed_pgconn()
    return pgconn


@cache
def _get_closed_pgconn() -> Any:
    pgconn = pq.PGconn.connect_start(b"host=/nowhere")
    pgconn.finish()
    return pgconn
