"""The dashboard: pages for people, which use the same API as every other client.

All of it is in ``site``: one HTML file, style sheets, and modules that browsers load as they are. Nothing is built, and
nothing comes from elsewhere. The pages know no more than their reader's key allows: everything they show comes from
``/v1``, with that key, so scopes, namespaces, limits, and the audit log apply to them as to any program. The server has
no session, no cookie, and no template for them.

**Modules** (``site/js``). ``api`` sends requests and follows streams, ``data`` decides when to refresh, ``router`` and
``shortcuts`` handle the address and the keyboard, and ``components``, ``forms``, and ``form-controls`` are shared by
pages. Each page has a file, and the page of a run has a folder. What needs no browser (the time axis, rows, trees,
lists, forms, formats) is pure code, tested in Node. Elements are Preact's, written with htm; both are in
``site/vendor``.

**Refresh.** One stream for each tab, ``/v1/changes``, says at most once a second that something in the store has
changed, and lists are then read again. The page of a run follows the run's own events, reads its report after the last
record that it has, and adds what is in flight from the events. A hidden tab closes its streams, since a browser has few
connections for all of its tabs.

**A million runs.** No page requests anything whose cost grows with the number of ended runs: lists use indexes, one
search request examines a few thousand rows and says how far back it has come, and counts stop at a limit.

**What payloads cannot do.** These pages show what agents, tools, and models say. They show it as text, never as markup.
Should some of it ever get past that, the policy below lets a browser run nothing that is not a file of this folder,
load nothing from elsewhere, send nothing elsewhere, and make no markup of texts (trusted types).

**Addresses** are after the ``#``, so the ids of runs reach no server and no log on the way. ``/`` is the page,
``/ui/...`` its files.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from holdfast.server.http.response import Response

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What a browser may do with the pages: load files of this server, and send requests to it."""

_URL_PREFIX = "/ui/"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # A browser may cache a file, but must check each time whether it has changed: pages of an old server must not be
    # used with a new one.
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def serve_page(method: str, path: str, headers: Mapping[str, str]) -> Response | None:
    """The page or the file at a path; ``None``: the path may belong to the API."""
    if method not in ("GET", "HEAD"):
        return None
    if path != "/" and not path.startswith(_URL_PREFIX):
        return None
    found = _load_site().get("index.html" if path == "/" else path.removeprefix(_URL_PREFIX))
    if found is None:
        return None
    response_headers = {**_PAGE_HEADERS, "ETag": found.etag}
    if found.etag in headers.get("if-none-match", ""):
        return Response(status=304, headers=response_headers)
    response = Response(found.content, media_type=found.media_type, headers=response_headers)
    if method == "HEAD":
        response.body = b""  # the Content-Length header stays
    return response


@functools.cache
def _load_site() -> dict[str, _File]:
    """All files by path. Only these are ever served, whatever the path of a request."""
    return dict(_load_folder(files("holdfast.server.dashboard") / "site", ""))


def _load_folder(folder: Traversable, prefix: str) -> list[tuple[str, _File]]:
    found: list[tuple[str, _File]] = []
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            found += _load_folder(entry, f"{path}/")
        elif media_type := _MEDIA_TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            found.append((path, _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')))
    return found
