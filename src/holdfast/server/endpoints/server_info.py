"""What the server tells of itself, and of the caller."""

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
from holdfast.server.http.router import PreparedResponse, Router
from holdfast.services.api_keys import DOCUMENT_KIND
from holdfast.services.json_form import to_json_bytes
from holdfast.services.timestamps import to_datetime

router = Router()


class ServerHealth(BaseModel):
    """That the server answers, and its store."""

    ok: bool
    version: str
    now: datetime
    """By its clock."""


class CallerInfo(BaseModel):
    """Who the server takes the caller for."""

    key_id: str | None
    name: str
    namespace: str
    scopes: list[str]


@router("GET", "/v1/health", scope=None)
async def get_health(call: Call) -> ServerHealth:
    """Whether the server answers, and its store.

    For load balancers: 503 while the store cannot be reached.
    """
    await (await call.store()).documents.list(DOCUMENT_KIND, limit=1)
    now = to_datetime(call.platform.settings.now())
    return ServerHealth(ok=True, version=__version__, now=now)


@router(
    "GET",
    "/v1/openapi.json",
    scope=None,
    extra_responses={304: "It is the one whose `ETag` was sent as `If-None-Match`."},
)
async def get_openapi(call: Call) -> dict[str, Any] | PreparedResponse:
    """This API, as an OpenAPI document."""
    content, tag = _build_document()
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    known = call.request.headers.get("if-none-match", "")
    if tag in known or known.strip() == "*":
        return PreparedResponse(status_code=304, headers=headers)
    return PreparedResponse(content, headers=headers, media_type="application/json")


@functools.cache  # anybody may ask, and it is some work
def _build_document() -> tuple[bytes, str]:
    """The document, and what stands for it."""
    from holdfast.server.endpoints import ENDPOINTS

    content = to_json_bytes(build_document(ENDPOINTS, version=__version__))
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@router("GET", "/v1/whoami", scope=Scope.ANY)
async def whoami(call: Call) -> CallerInfo:
    """Who the server takes the caller for."""
    caller = call.caller
    return CallerInfo(
        key_id=caller.key_id or None,
        name=caller.name,
        namespace=caller.namespace,
        scopes=sorted(map(str, caller.scopes)),
    )
