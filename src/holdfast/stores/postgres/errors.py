"""PostgreSQL's errors in Holdfast's words: what happened to which database, and what to do.

Their SQLSTATE tells them apart. When a connection cannot be made, libpq has only a message: the server's English
messages are known here, and any other counts as temporary.

A connection can be lost between a commit and its confirmation. Then it is unknown whether the commit was done; the
caller repeats it, which is harmless (see ``contract``).
"""

from __future__ import annotations

from psycopg import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from psycopg.errors import IdleInTransactionSessionTimeout, TransactionTimeout, UndefinedObject

from holdfast.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaError,
    StoreUnavailable,
)

SERVER_CHANGED = "holdfast.server_has_changed"
"""The name of a setting that does not exist. A pooler keeps a connection when its server is replaced by another one.
Then the first statement of each transaction fails with an error that names this setting."""
_CONFLICT_CODES = ("40P01", "40001")
_SESSION_END_CODES = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
_SCHEMA_CODES = ("42P01", "42703", "3F000")
_PERMISSION_CODE = "42501"
_AUTH_CODES = ("28000", "28P01")
_AUTH_PHRASES = ("authentication failed", "no pg_hba.conf entry", "no password supplied", "is not permitted to log in")
_READ_ONLY_CODE = "25006"
_NO_DATABASE_CODES = ("3D000",)
_CONNECTION_LIMIT_CODES = ("53300",)
_CONNECTION_LIMIT_PHRASES = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections",
)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was aborted because of another one: repeating it at once may work."""
    return isinstance(error, Error) and error.sqlstate in _CONFLICT_CODES


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection is lost or is about to be, or a pooler now leads it to another server."""
    if isinstance(error, UndefinedObject):
        return SERVER_CHANGED in str(error)
    if not isinstance(error, OperationalError | InterfaceError | IdleInTransactionSessionTimeout | TransactionTimeout):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_SESSION_END_CODES)  # libpq itself has no codes


def is_write_refused(error: BaseException) -> bool:
    """Whether the server accepts no writes: a standby, or a primary that was demoted."""
    return isinstance(error, Error) and error.sqlstate == _READ_ONLY_CODE


def is_outcome_unknown(error: BaseException) -> bool:
    """Whether a commit in progress may have been done."""
    return is_connection_lost(error) or (isinstance(error, Error) and error.sqlstate == "40003")


def translate_error(error: BaseException, database: str) -> BaseException:
    """The store's error for one of psycopg's. A misuse of SQL or of psycopg is a bug, and stays as it is.

    ``database`` is its URL without secrets, for the message.
    """
    return to_store_error(error, database) if isinstance(error, Error) and not _is_misuse(error) else error


def to_store_error(error: Error, database: str) -> StoreError:
    """The store error that explains ``error``."""
    code = error.sqlstate or ""
    text = format_error(error)
    if code in _CONFLICT_CODES or code == "55P03":
        return StoreLocked(
            f"{database}: another session held the rows that are needed here for too long ({text}). Look in "
            f"pg_stat_activity for a session that is idle in transaction, and for a long ALTER TABLE or LOCK. Holdfast "
            f"itself holds them for milliseconds."
        )
    if code == "53100" or "No space left on device" in text:
        return StoreFull(
            f"{database}: the server has no room left ({text}). Free space on its disk; nothing that was recorded is "
            f"lost, and runs go on by themselves."
        )
    if code == _READ_ONLY_CODE:
        return StoreReadOnly(
            f"{database} does not let this session write ({text}). Either it is a standby (point HOLDFAST_URL at the "
            f"primary, or name all servers: postgresql://one,two/database), or default_transaction_read_only is set "
            f"for this role or database, as some hosts do when a disk is nearly full."
        )
    if code == _PERMISSION_CODE:
        return StoreSchemaError(
            f"{database} does not permit this user what is needed ({text}). Either let it own the schema (GRANT CREATE "
            f"ON DATABASE … TO …, so that Holdfast makes its own), or give it an existing one: GRANT USAGE, CREATE ON "
            f"SCHEMA … TO …; GRANT ALL ON ALL TABLES IN SCHEMA … TO …; GRANT ALL ON ALL SEQUENCES IN SCHEMA … TO …"
        )
    if code in _SCHEMA_CODES:
        return StoreSchemaError(
            f"{database} does not have the tables that its version number stands for ({text}): they were changed by "
            f"hand, or by an unreleased Holdfast. Go back to a backup, or use another namespace "
            f"(postgresql://…?namespace=…)."
        )
    if code in ("XX001", "XX002"):
        return StoreCorrupt(
            f"{database} is damaged ({text}). Stop all workers, and go back to a backup; for an index, REINDEX may be "
            f"enough. The server's log tells more."
        )
    if code in _AUTH_CODES or (not code and _has_any(_AUTH_PHRASES, text)):
        return StoreError(
            f"{database} refuses this user ({text}). Check the user and the password in the URL (or PGUSER, PGPASSWORD "
            f"and ~/.pgpass), and the server's pg_hba.conf."
        )
    if code in _NO_DATABASE_CODES or (not code and "does not exist" in text):
        return StoreError(
            f"{database} is not there ({text}). Holdfast makes its own tables, but no database and no user: createdb "
            f"makes one, or name another in the URL."
        )
    if code in _CONNECTION_LIMIT_CODES or (not code and _has_any(_CONNECTION_LIMIT_PHRASES, text)):
        return StoreUnavailable(
            f"{database} takes no more connections ({text}). A worker needs about five: raise max_connections, or put "
            f"a pooler such as PgBouncer in front."
        )
    if code == "57014":
        return StoreUnavailable(
            f"{database} stopped a statement ({text}). If that is statement_timeout: lift it for this role (ALTER ROLE "
            f"… SET statement_timeout = 0)."
        )
    if is_connection_lost(error):
        return StoreUnavailable(
            f"{database} cannot be reached ({text}). Check that the server runs, and that this process can reach it. "
            f"If a commit was under way, nobody knows whether it was done; Holdfast repeats it, which is harmless."
        )
    return StoreUnavailable(f"{database} cannot be used at the moment: {text}")


def format_error(error: Error) -> str:
    """PostgreSQL's message, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = "; ".join(line for line in lines if line) or type(error).__name__
    return f"{text} ({error.sqlstate})" if error.sqlstate else text


def _is_misuse(error: Error) -> bool:
    if isinstance(error, InterfaceError):
        return "closed" not in str(error)
    if isinstance(error, ProgrammingError):
        is_known = error.sqlstate in (*_SCHEMA_CODES, *_NO_DATABASE_CODES, _PERMISSION_CODE)
        return not is_known and not is_connection_lost(error)
    return isinstance(error, IntegrityError | DataError | NotSupportedError)


def _has_any(phrases: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in phrases)
