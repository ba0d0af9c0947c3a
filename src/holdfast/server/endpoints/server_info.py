"""Information about the server, and about the caller."""

from __future__ import annotations

import functools
import hashlib
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from holdfast import __version__
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.openapi import build_document
from holdfast.server.http.response import Response
from holdfast.server.http.router import Router
from holdfast.services.api_keys import DOCUMENT_KIND
from holdfast.services.json_form import to_json_bytes
from holdfast.services.timestamps import to_datetime

router = Router()


class ServerHealth(BaseModel):
    """The health of the server and its store."""

    ok: bool
    version: str
    now: datetime
    """The time of its clock."""


class CallerInfo(BaseModel):
    """The caller's key."""

    key_id: str | None
    name: str
    namespace: str
    scopes: list[str]


@router("GET", "/v1/health", scope=None)
async def get_health(call: Call) -> ServerHealth:
    """Whether the server and its store respond.

    For load balancers: 503 while the store cannot be reached.
    """
    await call.store.documents.list(DOCUMENT_KIND, limit=1)
    now = to_datetime(call.platform.settings.now())
    return ServerHealth(ok=True, version=__version__, now=now)


@router(
    "GET",
    "/v1/openapi.json",
    scope=None,
    extra_responses={304: "The document has the `ETag` that was sent as `If-None-Match`."},
)
async def get_openapi(call: Call) -> dict[str, Any] | Response:
    """This API, as an OpenAPI document."""
    content, etag = _build_document()
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = call.request.headers.get("if-none-match", "")
    if etag in known or known.strip() == "*":
        return Response(status=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


@functools.cache  # no key is needed to ask for it, and building it takes a while
def _build_document() -> tuple[bytes, str]:
    """The document, and its ``ETag``."""
    from holdfast.server.endpoints import ENDPOINTS

    content = to_json_bytes(build_document(ENDPOINTS, version=__version__))
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@router("GET", "/v1/whoami", scope=Scope.ANY)
async def whoami(call: Call) -> CallerInfo:
    """The caller's key, namespace, and scopes."""
    caller = call.caller
    return CallerInfo(
        key_id=caller.key_id or None,
        name=caller.name,
        namespace=caller.namespace,
        scopes=sorted(map(str, caller.scopes)),
    )
