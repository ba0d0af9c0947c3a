"""What a ``temporal://`` URL says: where the server is, which of its namespaces is meant, and how it is reached.

``temporal://host[:7233]/namespace?option=value&…``, with these options:

- ``tls=true``: encrypt the connection. An API key and TLS files imply it;
- ``tls_ca``, ``tls_cert``, ``tls_key``: paths of PEM files: whom to trust, and who we are;
- ``server_name``: the name that the server's certificate is for, if it is another than that of the host;
- ``api_key``: who we are, to Temporal Cloud. Better kept in the environment than in a URL;
- ``memory``: the URL of a store that keeps memories, which Temporal has no place for;
- ``payloads``: where payloads are kept that are too large for a history: a folder that all processes share, or a URL
  that somebody has made a storage for (see ``payload_storage``).

What a URL does not say of secrets is looked for in the environment: ``HOLDFAST_TEMPORAL_API_KEY`` (else
``TEMPORAL_API_KEY``), ``HOLDFAST_TEMPORAL_TLS_CA``, ``…_TLS_CERT`` and ``…_TLS_KEY``; unless it says ``tls=false``.

The namespace is one of Temporal's. Nothing of the SDK is imported here.
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
"""The namespace that Temporal's own tools use if none is given."""
REDACTED = "***"
OPTIONS = ("tls", "tls_ca", "tls_cert", "tls_key", "server_name", "api_key", "memory", "payloads")

_NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_HOST_PATTERN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_TRUE_VALUES = frozenset({"true", "1", "yes", "on"})
_FALSE_VALUES = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Target:
    """A namespace of a Temporal server, and the way there."""

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
    """It may hold a password."""
    payload_location: str = field(default="", repr=False)
    """It may hold one as well."""

    @property
    def url(self) -> str:
        """As people may see it: the way to the namespace, without anything secret."""
        return f"{SCHEME}://{self.address}/{self.namespace}"


def is_temporal_url(url: str) -> bool:
    """Whether this is the URL of a Temporal server."""
    return url.partition("://")[0] == SCHEME and "://" in url


def parse_target(url: str, environment: Mapping[str, str] | None = None) -> Target:
    """What a URL says. Raises ``UsageError``, without anything secret."""
    around = os.environ if environment is None else environment
    place, options = _split_options(url)
    host, namespace = _split_location(url, place)
    given = options.pop("namespace", None)
    if given is not None:
        namespace = _merge_namespaces(url, namespace, validate_namespace(given))
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise UsageError(
            f"{redact_temporal_url(url)} has an option {unknown[0]!r}, which is none of those that there are: "
            f"{', '.join(OPTIONS)}"
        )
    return _make_target(url, _parse_address(url, host), namespace or DEFAULT_NAMESPACE, options, around)


def _make_target(
    url: str, address: str, namespace: str, options: dict[str, str], environment: Mapping[str, str]
) -> Target:
    refuses_tls = "tls" in options and not _parse_bool(url, options["tls"])
    if refuses_tls:
        environment = {}  # secrets of the environment are for encrypted connections, and this one is to be none
    files = {
        name: options.get(name) or environment.get(f"HOLDFAST_TEMPORAL_{name.upper()}", "")
        for name in ("tls_ca", "tls_cert", "tls_key")
    }
    if bool(files["tls_cert"]) != bool(files["tls_key"]):
        there, missing = ("tls_cert", "tls_key") if files["tls_cert"] else ("tls_key", "tls_cert")
        raise UsageError(
            f"{redact_temporal_url(url)}: there is a {there}, and no {missing}: a certificate and its key go together "
            "(in the URL, "
            f"or as HOLDFAST_TEMPORAL_TLS_CERT and HOLDFAST_TEMPORAL_TLS_KEY)"
        )
    api_key = (
        options.get("api_key")
        or environment.get("HOLDFAST_TEMPORAL_API_KEY")
        or environment.get("TEMPORAL_API_KEY", "")
    )
    if api_key == REDACTED:
        raise UsageError(
            f"the API key in {redact_temporal_url(url)} is hidden: that is a URL for people to read. Use the one that "
            "was given "
            f"where it comes from, or set HOLDFAST_TEMPORAL_API_KEY."
        )
    needs_tls = bool(api_key or any(files.values()) or options.get("server_name"))
    if needs_tls and refuses_tls:
        raise UsageError(
            f"{redact_temporal_url(url)} says tls={options['tls']}, and has an API key, a TLS file or a server_name, "
            "which are for "
            f"encrypted connections only: leave tls= out, or leave those out"
        )
    return Target(
        address, namespace, needs_tls or ("tls" in options and not refuses_tls), **files,
        server_name=options.get("server_name", ""), api_key=api_key, memory_url=options.get("memory", ""),
        payload_location=options.get("payloads", ""),
    )  # fmt: skip


def _split_options(url: str) -> tuple[str, dict[str, str]]:
    """What is before the question mark, and the options behind it."""
    place, _, query = url.partition("://")[2].partition("?")
    options: dict[str, str] = {}
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        name = unquote(name)
        if name in options and options[name] != unquote(value):
            raise UsageError(f"{redact_temporal_url(url)} says {name}= twice: say it once")
        options[name] = unquote(value)
    return place, options


def _split_location(url: str, location: str) -> tuple[str, str | None]:
    """The host, and the namespace if the path tells it."""
    if "@" in location:
        raise UsageError(
            f"{redact_temporal_url(url)} names a user, which Temporal has not: who we are is told by an API key "
            f"(HOLDFAST_TEMPORAL_API_KEY) or a certificate (tls_cert, tls_key)"
        )
    host, _, path = location.partition("/")
    path = path.removesuffix("/")
    return host, validate_namespace(unquote(path)) if path else None


def _parse_address(url: str, host: str) -> str:
    found = _HOST_PATTERN.fullmatch(host)
    if found is None or int(found["port"] or DEFAULT_PORT) > 65535:
        raise UsageError(
            f"{redact_temporal_url(url)} names no Temporal server: it looks like "
            f"temporal://host:{DEFAULT_PORT}/namespace, such as "
            f"temporal://localhost:{DEFAULT_PORT}/{DEFAULT_NAMESPACE}"
        )
    return f"{found['host']}:{found['port'] or DEFAULT_PORT}"


def _parse_bool(url: str, text: str) -> bool:
    if text.lower() not in _TRUE_VALUES | _FALSE_VALUES:
        raise UsageError(f"{redact_temporal_url(url)} says tls={text!r}: it is true or false")
    return text.lower() in _TRUE_VALUES


# Namespaces


def validate_namespace(name: str) -> str:
    """The name of one of Temporal's namespaces. Raises ``UsageError``."""
    if not name:
        return DEFAULT_NAMESPACE
    if not _NAMESPACE_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Temporal namespace: it is made of letters, digits, dots, dashes "
            f"and underscores, and begins with a letter or a digit"
        )
    return name


def _merge_namespaces(url: str, in_path: str | None, other: str) -> str:
    if in_path is not None and in_path != other:
        raise UsageError(
            f"{redact_temporal_url(url)} names two namespaces: {in_path!r} in its path, and namespace={other!r}. On "
            "Temporal there "
            f"are only Temporal's own: say it once"
        )
    return other


def split_namespace(url: str) -> tuple[str, str | None]:
    """The URL without its namespace, and the namespace; ``None`` if it says nothing about that."""
    place, options = _split_options(url)
    host, namespace = _split_location(url, place)
    if "namespace" in options:
        namespace = _merge_namespaces(url, namespace, validate_namespace(options["namespace"]))
    query = "&".join(part for part in url.partition("?")[2].split("&") if part and not part.startswith("namespace="))
    return f"{SCHEME}://{host}{'?' if query else ''}{query}", namespace


def with_namespace(url: str, namespace: str) -> str:
    """``url``, which says nothing about it, with this namespace."""
    place, mark, query = url.partition("://")[2].partition("?")
    return f"{SCHEME}://{place.rstrip('/')}/{quote(namespace, safe='')}{mark}{query}"


# Secrets


def redact_temporal_url(url: str) -> str:
    """The URL as people may see it. In doubt it hides too much."""
    place, mark, query = url.partition("://")[2].partition("?")
    user, at, host = place.rpartition("@")
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
    """What ``redact_temporal_url`` hides."""
    query = url.partition("://")[2].partition("?")[2]
    return [unquote(part.partition("=")[2]) for part in query.split("&") if _redact_option(part) != part]
