"""Parses ``temporal://`` URLs: the server, the namespace, and how to connect.

``temporal://host[:7233]/namespace?option=value&…``, with these options:

- ``tls=true``: encrypt the connection. An API key and TLS files imply it;
- ``tls_ca``, ``tls_cert``, ``tls_key``: paths of PEM files: the trusted CA, and the client's certificate and key;
- ``server_name``: the name in the server's certificate, if it differs from the host;
- ``api_key``: the API key for Temporal Cloud. Better kept in the environment than in a URL;
- ``memory``: the URL of a store for memories, which Temporal has no place for;
- ``payloads``: where to store payloads that are too large for a history: a folder that all processes share, or a URL
  with a storage of its own (see ``payload_storage``);
- ``plugins``: plugins of Temporal's SDK for the client and its workers, as ``module:name``, separated by commas. They
  bring interceptors, for example.

Secrets that are not in the URL come from the environment: ``HOLDFAST_TEMPORAL_API_KEY`` (or ``TEMPORAL_API_KEY``),
``HOLDFAST_TEMPORAL_TLS_CA``, ``…_TLS_CERT`` and ``…_TLS_KEY``; unless the URL says ``tls=false``. Plugins may come from
``HOLDFAST_TEMPORAL_PLUGINS``.

The namespace is a Temporal namespace. This module does not import the SDK.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from holdfast.errors import UsageError

SCHEME = "temporal"
DEFAULT_PORT = 7233
DEFAULT_NAMESPACE = "default"
"""The default namespace of Temporal's own tools."""
REDACTED = "***"
OPTIONS = ("tls", "tls_ca", "tls_cert", "tls_key", "server_name", "api_key", "memory", "payloads", "plugins")

_NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_HOST_PATTERN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_TRUE_VALUES = frozenset({"true", "1", "yes", "on"})
_FALSE_VALUES = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Target:
    """A namespace of a Temporal server, and how to connect to it."""

    address: str
    """``host:port``."""
    namespace: str = DEFAULT_NAMESPACE
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    server_name: str = ""
    api_key: str = field(default="", repr=False)
    memory_url: str = field(default="", repr=False)
    """It may contain a password, like the next one."""
    payload_location: str = field(default="", repr=False)
    plugin_paths: tuple[str, ...] = ()
    """``module:name`` of the SDK's plugins."""

    @property
    def url(self) -> str:
        """The URL of the namespace, without options and secrets."""
        return f"{SCHEME}://{self.address}/{self.namespace}"


def is_temporal_url(url: str) -> bool:
    """Whether this is the URL of a Temporal server."""
    return url.partition("://")[0] == SCHEME and "://" in url


def parse_target(url: str, environment: Mapping[str, str] | None = None) -> Target:
    """Parse a URL. Raises ``UsageError``, without secrets in its message."""
    environment = os.environ if environment is None else environment
    host, namespace, options = _split_url(url)
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise UsageError(
            f"{redact_temporal_url(url)} has an option {unknown[0]!r}, which is none of those that there are: "
            f"{', '.join(OPTIONS)}"
        )
    return _make_target(url, _parse_address(url, host), namespace or DEFAULT_NAMESPACE, options, environment)


def _make_target(
    url: str, address: str, namespace: str, options: dict[str, str], environment: Mapping[str, str]
) -> Target:
    plugins = options.get("plugins") or environment.get("HOLDFAST_TEMPORAL_PLUGINS", "")
    refuses_tls = "tls" in options and not _parse_bool(url, options["tls"])
    if refuses_tls:
        environment = {}  # its secrets are only for encrypted connections
    files = {
        name: options.get(name) or environment.get(f"HOLDFAST_TEMPORAL_{name.upper()}", "")
        for name in ("tls_ca", "tls_cert", "tls_key")
    }
    if bool(files["tls_cert"]) != bool(files["tls_key"]):
        present, missing = ("tls_cert", "tls_key") if files["tls_cert"] else ("tls_key", "tls_cert")
        raise UsageError(
            f"{redact_temporal_url(url)}: there is a {present}, and no {missing}: a certificate and its key go "
            f"together (in the URL, or as HOLDFAST_TEMPORAL_TLS_CERT and HOLDFAST_TEMPORAL_TLS_KEY)"
        )
    api_key = (
        options.get("api_key")
        or environment.get("HOLDFAST_TEMPORAL_API_KEY")
        or environment.get("TEMPORAL_API_KEY", "")
    )
    if api_key == REDACTED:
        raise UsageError(
            f"the API key in {redact_temporal_url(url)} is hidden: that is a URL for people to read. Use the one that "
            f"was given where it comes from, or set HOLDFAST_TEMPORAL_API_KEY."
        )
    needs_tls = bool(api_key or any(files.values()) or options.get("server_name"))
    if needs_tls and refuses_tls:
        raise UsageError(
            f"{redact_temporal_url(url)} says tls={options['tls']}, and has an API key, a TLS file or a server_name, "
            f"which are for encrypted connections only: leave tls= out, or leave those out"
        )
    return Target(
        address, namespace, needs_tls or ("tls" in options and not refuses_tls), **files,
        server_name=options.get("server_name", ""), api_key=api_key, memory_url=options.get("memory", ""),
        payload_location=options.get("payloads", ""),
        plugin_paths=tuple(path.strip() for path in plugins.split(",") if path.strip()),
    )  # fmt: skip


def _split_url(url: str) -> tuple[str, str | None, dict[str, str]]:
    """The host, the namespace if the URL names one, and the other options."""
    location, _, query = url.partition("://")[2].partition("?")
    options: dict[str, str] = {}
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        name = unquote(name)
        if name in options and options[name] != unquote(value):
            raise UsageError(f"{redact_temporal_url(url)} says {name}= twice: say it once")
        options[name] = unquote(value)
    if "@" in location:
        raise UsageError(
            f"{redact_temporal_url(url)} names a user, which Temporal has not: who we are is told by an API key "
            f"(HOLDFAST_TEMPORAL_API_KEY) or a certificate (tls_cert, tls_key)"
        )
    host, _, path = location.partition("/")
    path = path.removesuffix("/")
    in_path = validate_namespace(unquote(path)) if path else None
    option = options.pop("namespace", None)
    namespace = in_path if option is None else validate_namespace(option)
    if in_path not in (None, namespace):
        raise UsageError(
            f"{redact_temporal_url(url)} names two namespaces: {in_path!r} in its path, and namespace={namespace!r}. "
            f"On Temporal there are only Temporal's own: say it once"
        )
    return host, namespace, options


def _parse_address(url: str, host: str) -> str:
    match = _HOST_PATTERN.fullmatch(host)
    if match is None or int(match["port"] or DEFAULT_PORT) > 65535:
        raise UsageError(
            f"{redact_temporal_url(url)} names no Temporal server: it looks like "
            f"temporal://host:{DEFAULT_PORT}/namespace, such as "
            f"temporal://localhost:{DEFAULT_PORT}/{DEFAULT_NAMESPACE}"
        )
    return f"{match['host']}:{match['port'] or DEFAULT_PORT}"


def _parse_bool(url: str, text: str) -> bool:
    if text.lower() not in _TRUE_VALUES | _FALSE_VALUES:
        raise UsageError(f"{redact_temporal_url(url)} says tls={text!r}: it is true or false")
    return text.lower() in _TRUE_VALUES


# Namespaces


def validate_namespace(name: str) -> str:
    """A valid name of a Temporal namespace. Raises ``UsageError``."""
    if not name:
        return DEFAULT_NAMESPACE
    if not _NAMESPACE_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Temporal namespace: it is made of letters, digits, dots, dashes "
            f"and underscores, and begins with a letter or a digit"
        )
    return name


def split_namespace(url: str) -> tuple[str, str | None]:
    """The URL without its namespace, and the namespace, if it names one."""
    host, namespace, _ = _split_url(url)
    query = "&".join(part for part in url.partition("?")[2].split("&") if part and not part.startswith("namespace="))
    return f"{SCHEME}://{host}{'?' if query else ''}{query}", namespace


def with_namespace(url: str, namespace: str) -> str:
    """A URL without a namespace, with this one added."""
    location, mark, query = url.partition("://")[2].partition("?")
    return f"{SCHEME}://{location.rstrip('/')}/{quote(namespace, safe='')}{mark}{query}"


# Secrets


def redact_temporal_url(url: str) -> str:
    """The URL without its secrets. When in doubt, it hides too much."""
    location, mark, query = url.partition("://")[2].partition("?")
    user, at, host = location.rpartition("@")
    parts = [_redact_option(part) for part in query.split("&")] if query else []
    return f"{SCHEME}://{REDACTED if user else ''}{at}{host}{mark}{'&'.join(parts)}"


def _redact_option(part: str) -> str:
    name, equals, value = part.partition("=")
    plain = unquote(name)
    if plain in ("memory", "payloads") and "://" in unquote(value):
        from holdfast.stores.urls import redact_url

        return f"{name}{equals}{quote(redact_url(unquote(value)), safe=':/*?=@')}"
    is_open = plain in OPTIONS and plain != "api_key"
    return part if is_open or plain == "namespace" or not value else f"{name}{equals}{REDACTED}"


def find_secrets(url: str) -> list[str]:
    """The values that ``redact_temporal_url`` hides."""
    query = url.partition("://")[2].partition("?")[2]
    return [unquote(part.partition("=")[2]) for part in query.split("&") if _redact_option(part) != part]
