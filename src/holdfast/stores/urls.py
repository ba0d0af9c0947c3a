"""Store URLs: which store and namespace a URL means, and how to show it without secrets.

**Namespaces.** Several programs or tenants can share a database without seeing each other's data: a namespace has its
own tables. On PostgreSQL it is a schema (``holdfast_acme``; the default is ``holdfast``), and lock numbers and
notification channels are derived from the schema. With SQLite it is a file next to the one in the URL (``runs.acme.db``
for ``runs.db``, which is the default namespace). A store in memory belongs to one object. So there is no condition that
a query could forget. On Temporal it is one of Temporal's own namespaces, in the path of the URL:
``temporal://host:7233/acme``.

The namespace comes from an argument, else from ``?namespace=`` in the URL, else from ``HOLDFAST_NAMESPACE``.
``resolve_store_url`` decides this once and returns a URL that contains it.

**Encryption.** A store encrypts what it records if an ``Encryption`` is given, or the environment has keys.

**Secrets.** A URL may contain a password or an API key. People only ever see ``redact_url`` of it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from urllib.parse import unquote

from holdfast.codec import AesEncryption, Encryption
from holdfast.errors import UsageError
from holdfast.stores.contract import DEFAULT_NAMESPACE, Store
from holdfast.stores.temporal import targets

URL_EXAMPLES = (
    "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user:password@host/database, "
    "temporal://host:7233/namespace, memory://"
)
DEFAULT_URL = "sqlite:///.holdfast/runs.db"
REDACTED = "***"
"""Replaces a password."""

_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_NAMESPACE_PATTERN = re.compile(r"[a-z0-9][a-z0-9_]{0,40}")
_SECRET_PATTERN = re.compile(r"([?&][^=&]*(?:password|secret|api_?key)[^=&]*=)([^&]*)", re.IGNORECASE)


def resolve_store_url(url: str | None = None, namespace: str | None = None) -> str:
    """The URL to use, with its namespace in it.

    It is the given one, else ``HOLDFAST_URL``, else the SQLite file in this folder. ``namespace`` must not contradict
    it; without either, ``HOLDFAST_NAMESPACE`` counts.
    """
    url = url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL
    plain, in_url = split_namespace(url)
    validate = targets.validate_namespace if targets.is_temporal_url(url) else validate_namespace
    if namespace is not None:
        valid = validate(namespace)
        if in_url is not None and in_url != valid:
            raise UsageError(
                f"the namespace is to be {valid!r}, but the URL {redact_url(url)} says {in_url!r}: say it once"
            )
        return _append_namespace(plain, valid)
    default = os.environ.get("HOLDFAST_NAMESPACE", "")
    if in_url is not None:
        if default and default != in_url and targets.is_temporal_url(url):
            raise UsageError(
                f"HOLDFAST_NAMESPACE is {default!r}, but the URL {redact_url(url)} says {in_url!r}. On Temporal there "
                f"are only Temporal's own namespaces: say it once"
            )
        return url
    valid = validate(default)
    return url if valid == DEFAULT_NAMESPACE else _append_namespace(plain, valid)


def create_store(url: str, *, clock: Callable[[], float] | None = None, encryption: Encryption | None = None) -> Store:
    """The store for ``url``, not opened yet. A bare path that ends in ``.db`` or ``.sqlite`` means SQLite.

    Values of users' code are encrypted with ``encryption``, else with the keys in ``HOLDFAST_ENCRYPTION_KEYS``, if
    there are any.
    """
    if targets.is_temporal_url(url):
        return _create_temporal_store(url, clock, encryption)
    store = _create_plain_store(url, clock)
    encryption = encryption or AesEncryption.from_environment()
    if encryption is None:
        return store
    from holdfast.stores.encrypted import EncryptedStore

    return EncryptedStore(store, encryption)


def _create_plain_store(url: str, clock: Callable[[], float] | None) -> Store:
    plain, in_url = split_namespace(url)
    namespace = in_url or DEFAULT_NAMESPACE
    scheme, separator, rest = plain.partition("://")
    if not separator:
        if url.endswith(_SQLITE_SUFFIXES):
            return _create_sqlite_store(url, namespace, clock)
        raise UsageError(f"{redact_url(url)!r} is not a store URL. Known are: {URL_EXAMPLES}")
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        if rest:
            raise UsageError(f"memory:// takes nothing after it but ?namespace=, and the URL is {redact_url(url)!r}")
        return MemoryStore(clock=clock or time.time, namespace=namespace)
    if scheme == "sqlite":
        return _create_sqlite_store(_parse_sqlite_path(plain, rest), namespace, clock)
    if scheme in ("postgresql", "postgres"):
        from holdfast.stores.postgres import PgStore

        if find_password(plain) == REDACTED:
            raise UsageError(
                f"the password in {plain} is hidden: that is a URL for people to read, as `store.url` and "
                f"`runtime.url` are. Use the one that was given where it comes from."
            )
        return PgStore(plain, namespace=namespace, clock=clock)
    if scheme in ("http", "https"):
        raise UsageError(
            f"{redact_url(url)} is a Holdfast server, and this needs the store itself: a server is for "
            f"`Client(...)`, which starts and follows runs. Known stores are: {URL_EXAMPLES}"
        )
    raise UsageError(f"no store is known for {scheme}:// URLs. Known are: {URL_EXAMPLES}")


def is_temporal(url: str) -> bool:
    """Whether a URL means Temporal, which has its own engine."""
    return targets.is_temporal_url(url)


def _parse_sqlite_path(url: str, rest: str) -> str:
    """The path, in SQLAlchemy's form: a third slash ends the (empty) host, a fourth begins an absolute path."""
    if not rest.startswith("/"):
        raise UsageError(
            f"{url!r} names a host, which SQLite has not: write three slashes for a relative path (sqlite:///{rest}), "
            f"four for an absolute one."
        )
    path = rest[1:]
    if not path or path == ":memory:":
        raise UsageError(f"{url!r} names no file. For a store that lives only as long as the process, use memory://")
    if "?" in path:
        raise UsageError(f"{url!r} has options after '?', and the SQLite store takes none but namespace")
    return path


def _create_sqlite_store(path: str, namespace: str, clock: Callable[[], float] | None) -> Store:
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(path, namespace=namespace, clock=clock or time.time)


def _create_temporal_store(url: str, clock: Callable[[], float] | None, encryption: Encryption | None) -> Store:
    target = targets.parse_target(url)
    try:
        from holdfast.stores.temporal.store import TemporalStore
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] != "temporalio":
            raise
        raise UsageError(
            f"{target.url} needs Temporal's own package, which is not installed: "
            'pip install "holdfast-agents[temporal]"'
        ) from None
    return TemporalStore(target, clock=clock or time.time, encryption=encryption)


# Namespaces


def validate_namespace(name: str) -> str:
    """The name of a namespace, ``default`` for an empty one. Raises ``UsageError`` for an invalid name."""
    if not name:
        return DEFAULT_NAMESPACE
    if not _NAMESPACE_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a namespace: it is made of at most 41 small letters (a to z), digits and "
            f"underscores, and begins with a letter or a digit"
        )
    return name


def split_namespace(url: str) -> tuple[str, str | None]:
    """The URL without its namespace, and the namespace, if the URL has one."""
    if targets.is_temporal_url(url):
        return targets.split_namespace(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url, None
    userinfo_end = _find_userinfo_end(rest)
    location, mark, query = rest[userinfo_end:].partition("?")
    namespaces: set[str] = set()
    others: list[str] = []
    for part in query.split("&") if mark else []:
        name, _, value = part.partition("=")
        if unquote(name) == "namespace":
            namespaces.add(validate_namespace(unquote(value)))
        else:
            others.append(part)
    if not namespaces:
        return url, None
    if len(namespaces) > 1:
        raise UsageError(f"the URL {redact_url(url)} names several namespaces: {', '.join(sorted(namespaces))}")
    return f"{scheme}://{rest[:userinfo_end]}{location}{'?' if others else ''}{'&'.join(others)}", namespaces.pop()


def with_namespace(url: str, namespace: str) -> str:
    """A URL without a namespace, with this namespace added unless it is the default."""
    return url if namespace == DEFAULT_NAMESPACE else _append_namespace(url, namespace)


def _append_namespace(url: str, namespace: str) -> str:
    if targets.is_temporal_url(url):
        return targets.with_namespace(url, namespace)
    scheme, separator, rest = url.partition("://")
    if not separator:  # a bare path
        scheme, separator, rest = "sqlite", "://", f"/{url}"
    mark = "&" if "?" in rest[_find_userinfo_end(rest) :] else "?"
    return f"{scheme}{separator}{rest}{mark}namespace={namespace}"


def _find_userinfo_end(rest: str) -> int:
    """Where user and password end: after the first ``@``, unless a slash comes before it."""
    found = re.match(r"[^@/]*@", rest)
    return found.end() if found else 0


# Secrets


def redact_url(url: str) -> str:
    """The URL for display, with ``***`` for a password. In doubt it hides too much."""
    if url.startswith("sqlite://"):
        return url  # it has none, and a path may look like one
    if targets.is_temporal_url(url):
        return targets.redact_temporal_url(url)
    url = _SECRET_PATTERN.sub(rf"\1{REDACTED}", url)
    password = find_password(url)
    return url.replace(f":{password}@", f":{REDACTED}@", 1) if password else url


def find_secrets(url: str) -> list[str]:
    """The secrets that ``redact_url`` hides."""
    if targets.is_temporal_url(url):
        return targets.find_secrets(url)
    return [secret for secret in (find_password(url), *(found[2] for found in _SECRET_PATTERN.finditer(url))) if secret]


def find_password(url: str) -> str:
    """Everything that may belong to the password, even if it contains unescaped special characters."""
    scheme, separator, rest = url.partition("://")
    location, mark, query = (rest if separator else scheme).partition("?")
    if "@" not in location and "@" in query:
        location += mark + query
    return location.rpartition("@")[0].partition(":")[2]
