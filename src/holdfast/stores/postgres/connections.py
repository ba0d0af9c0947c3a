"""Connecting: what a URL means, and how Holdfast sets up its connections.

A URL has the form that libpq takes (``postgresql://user:password@host:5432/database?sslmode=require``, several hosts,
sockets by ``?host=/run/postgresql``), plus a namespace, which libpq never sees. Only libpq sees the password
(``redact_url``).

**Settings.** A server, a database, or a role can have defaults that would break the store's guarantees, so each session
gets its own settings: how long it waits for a lock, how long it may stay idle in a transaction (a suspended process
must not hold rows forever), and that a commit is on disk when it is reported. One statement sets them after connecting,
because poolers refuse them as parameters of the connection.

**Behind a pooler** that assigns server connections by the transaction, a session belongs to no client: the next client
finds the settings of the one before. The process id of the server shows this, because the pooler makes one up when a
client connects. Then nothing is set for the session, nothing is prepared on the server, and ``Connection.settings_sql``
must be the first statement of every transaction instead. A pooler that assigns whole sessions is treated in the same
way, because it looks the same.

A pooler that passes on the server's own process id is not recognized on connecting, but by what its other clients leave
in a session (see ``pipeline``). From then on this process treats all connections with that URL in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import StoreReadOnly, StoreSchemaError, UsageError
from holdfast.stores.clocks import monotonic
from holdfast.stores.postgres import adapters
from holdfast.stores.postgres.dialect import PLANNER_SETTINGS
from holdfast.stores.postgres.errors import SERVER_CHANGED, to_store_error
from holdfast.stores.urls import REDACTED, find_password, find_secrets, redact_url, split_namespace

MIN_SERVER_VERSION = 14
"""The oldest supported version of PostgreSQL."""
LOCK_TIMEOUT_S = 5.0
"""Seconds to wait for a row that another session has locked."""
IDLE_TRANSACTION_TIMEOUT_S = 4.0
"""Seconds that a session may stay idle in a transaction; then the server ends it."""

SERVER_STARTED_AT = (
    "extract(epoch FROM greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter)))::float8"
)
"""When the server last began with no sessions. Compare it for equality only: another server may have started
earlier."""

_CONNECT_TIMEOUT_S = 10
_KEEPALIVE_OPTIONS = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""A host that disappears silently is noticed within half a minute, not after two hours."""
_SCHEMES = ("postgresql", "postgres")
_SELECT_SERVER_INFO = (
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, current_setting('server_version'), "
    "current_setting('server_encoding'), current_setting('synchronous_commit'), pg_is_in_recovery(), "
    "current_setting('default_transaction_read_only') = 'on', extract(epoch FROM clock_timestamp())::float8, "
    f"{SERVER_STARTED_AT}"
)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of the store, in autocommit mode."""

    display_url: str = ""
    """Its URL without secrets."""
    url: str = ""
    """Its URL, with secrets."""
    pooled_settings_sql: str = ""
    """The value of ``settings_sql`` behind a pooler."""
    has_alternatives: bool = False
    """Whether the URL names several servers."""
    is_pooler_detected: bool = False
    """Whether connecting showed that there is a pooler."""
    server_started_at: float = 0.0
    """The value of ``SERVER_STARTED_AT``."""
    clock_sample: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The arguments of ``clocks.DatabaseClock.sync``, from when the connection was made."""

    @property
    def is_pooled(self) -> bool:
        """Whether the connection goes through a pooler, so that its sessions are shared."""
        return self.is_pooler_detected or has_shared_sessions(self.url)

    @property
    def settings_sql(self) -> str:
        """The first statement of every transaction if ``is_pooled``; otherwise empty."""
        return self.pooled_settings_sql if self.is_pooled else ""

    @property
    def should_leave(self) -> bool:
        """Whether the server refuses writes, and another one may accept them. Servers report this from version 14 on.

        A connection that only reads would otherwise stay with a primary that was demoted without a restart.
        """
        if not self.has_alternatives:
            return False
        return any(self.pgconn.parameter_status(name) == b"on" for name in _READ_ONLY_PARAMETERS)

    def treat_as_pooled(self) -> None:
        """Rely on nothing in a session from now on, because other clients share it."""
        _shared_session_urls.add(self.url)


_READ_ONLY_PARAMETERS = (b"default_transaction_read_only", b"in_hot_standby")
_shared_session_urls: set[str] = set()


def has_shared_sessions(url: str) -> bool:
    """Whether this process has found that connections with this URL share their sessions with other clients."""
    return url in _shared_session_urls


def connect(
    url: str,
    *,
    application_name: str = "holdfast",
    durable: bool = True,
    idle_timeout_s: float = IDLE_TRANSACTION_TIMEOUT_S,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Connection:
    """A connection, ready for use. Blocking.

    Raises for a read-only server. A connection that is not ``durable`` does not wait for the disk: it is for writes
    that may be lost with the server, such as lease renewals.
    """
    display_url = redact_url(url)
    conninfo, _ = split_url(url)
    parameters = _make_parameters(conninfo, url, application_name)
    try:
        connection = Connection.connect(**parameters, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise to_store_error(error, display_url) from error
    with close_on_error(connection, display_url):
        adapters.register_adapters(connection)
        connection.display_url, connection.url = display_url, url
        connection.has_alternatives = _has_several_hosts(parameters)
        _set_up(connection, _make_settings(durable, idle_timeout_s, lock_timeout_s))
    return connection


@contextmanager
def close_on_error(connection: psycopg.Connection[Any], display_url: str) -> Generator[None]:
    """Close a connection if setting it up fails. Raises store errors for psycopg's."""
    try:
        yield
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise to_store_error(error, display_url) from error
        raise


def connect_for_step(url: str) -> psycopg.Connection[Any]:
    """An ordinary connection: psycopg's own adapters, and the settings of its role. Blocking.

    For transactional steps. It is in autocommit mode.
    """
    conninfo, _ = split_url(url)
    parameters = _make_parameters(conninfo, url, "holdfast step")
    try:
        return psycopg.connect(**parameters, autocommit=True)
    except psycopg.Error as error:
        raise to_store_error(error, redact_url(url)) from error


def split_url(url: str) -> tuple[str, str | None]:
    """The URL for libpq, and the namespace. Raises ``UsageError`` for an invalid URL."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise UsageError(
            f"{redact_url(url)!r} is not the URL of a PostgreSQL database. It looks like "
            f"postgresql://user:password@host:5432/database"
        )
    return split_namespace(url)


def _make_parameters(conninfo: str, url: str, application_name: str) -> dict[str, Any]:
    """The parameters in the URL, and defaults for those that it leaves out."""
    password = find_password(url)
    is_ambiguous = re.search("[@/?]", password) is not None  # then libpq may parse parts of it as something else
    try:
        if is_ambiguous and "@" in url.partition("?")[0]:
            raise psycopg.ProgrammingError
        given = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        text = "" if is_ambiguous else f": {_redact(str(error).strip(), url)}"
        raise UsageError(
            f"{redact_url(url)!r} is not a URL that PostgreSQL understands{text}. Special characters in a password are "
            f"written as %40 (@), %2F (/), %3A (:), %3F (?), %23 (#), %25 (%)."
        ) from None
    defaults = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": application_name,
        **_KEEPALIVE_OPTIONS,
    }
    if _has_several_hosts(given):
        defaults["target_session_attrs"] = "read-write"  # choose the server that is not a standby
    return {**defaults, **given, "client_encoding": "UTF8"}


def _has_several_hosts(parameters: dict[str, Any]) -> bool:
    return "," in str(parameters.get("host", "")) + str(parameters.get("hostaddr", ""))


def _redact(text: str, url: str) -> str:
    """An error message of libpq, which may quote the URL, without the secrets that ``redact_url`` hides."""
    for secret in find_secrets(url):
        text = text.replace(secret, REDACTED)
    return text


def _make_settings(durable: bool, idle_timeout_s: float, lock_timeout_s: float) -> dict[str, str]:
    settings = {
        "lock_timeout": f"{lock_timeout_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{idle_timeout_s * 1000:.0f}",
        "idle_session_timeout": "0",
        "default_transaction_isolation": "read committed",
        **PLANNER_SETTINGS,
    }
    if not durable:
        settings["synchronous_commit"] = "off"
    return settings


def _set_up(connection: Connection, settings: dict[str, str]) -> None:
    sent_at = monotonic()
    row = connection.execute(_SELECT_SERVER_INFO).fetchone()
    assert row is not None
    pid, number, version, encoding, synchronous, is_standby, is_read_only, clock, connection.server_started_at = row
    connection.clock_sample = (clock, sent_at, monotonic())
    display_url = connection.display_url
    if number < MIN_SERVER_VERSION * 10_000:
        raise StoreSchemaError(
            f"{display_url} is a server of PostgreSQL {version}, and Holdfast needs version {MIN_SERVER_VERSION} or "
            f"later. Upgrade the server, or point HOLDFAST_URL at another one."
        )
    if encoding != "UTF8":
        raise StoreSchemaError(
            f"{display_url} keeps its texts in the encoding {encoding}, which not every text fits into. Make a "
            f"database for Holdfast that uses UTF-8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    if is_standby or is_read_only:
        reason = (
            "is a standby, which only follows another server. Point HOLDFAST_URL at the primary, or name all of them "
            "(postgresql://one,two/database): the one that can be written is found by itself"
            if is_standby
            else "lets this user only read (default_transaction_read_only is on). ALTER ROLE … RESET "
            "default_transaction_read_only, or use another user"
        )
        raise StoreReadOnly(f"{display_url} {reason}.")
    if synchronous == "off":
        settings.setdefault("synchronous_commit", "on")  # else a commit could be lost after it was reported
    # In a shared session, the setting of a connection that is not durable may be found by one that is.
    connection.pooled_settings_sql = (
        _make_set_config({"synchronous_commit": synchronous, **settings}, is_local=True)
        + f", CASE WHEN {SERVER_STARTED_AT} = {connection.server_started_at!r}::float8 THEN '' "
        f"ELSE current_setting('{SERVER_CHANGED}') END"
    )
    connection.is_pooler_detected = connection.info.backend_pid != pid
    if not connection.is_pooled:
        connection.execute(_make_set_config(settings, is_local=False).encode())


def _make_set_config(settings: dict[str, str], *, is_local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {is_local})" for name, value in settings.items())
