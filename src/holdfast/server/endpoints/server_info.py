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
from holdfast.server.http.openapi import document
from holdfast.server.http.problems import to_text
from holdfast.server.http.router import Api, Prepared
from holdfast.services.api_keys import KIND
from holdfast.services.timestamps import moment

api = Api()


class ServerHealth(BaseModel):
    """That the server answers, and its store."""

    ok: bool
    version: str
    now: datetime
    """By its clock."""


class WhoAmI(BaseModel):
    """Who the server takes the caller for."""

    key: str | None
    name: str
    namespace: str
    scopes: list[str]


@api("GET", "/v1/health", scope=None)
async def health(call: Call) -> ServerHealth:
    """Whether the server answers, and its store.

    For load balancers: 503 while the store cannot be reached.
    """
    await (await call.store()).documents(KIND, limit=1)
    now = moment(call.platform.settings.now())
    return ServerHealth(ok=True, version=__version__, now=now)


@api("GET", "/v1/openapi.json", scope=None, more={304: "It is the one whose `ETag` was sent as `If-None-Match`."})
async def openapi(call: Call) -> dict[str, Any] | Prepared:
    """This API, as an OpenAPI document."""
    content, tag = _document()
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    known = call.request.headers.get("if-none-match", "")
    if tag in known or known.strip() == "*":
        return Prepared(status_code=304, headers=headers)
    return Prepared(content, headers=headers, media_type="application/json")


@functools.cache  # anybody may ask, and it is some work
def _document() -> tuple[bytes, str]:
    """The document, and what stands for it."""
    from holdfast.server.endpoints import ENDPOINTS

    content = to_text(document(ENDPOINTS, version=__version__))
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@api("GET", "/v1/whoami", scope=Scope.ANY)
async def whoami(call: Call) -> WhoAmI:
    """Who the server takes the caller for."""
    caller = call.caller
    return WhoAmI(
        key=caller.key or None, name=caller.name, namespace=caller.namespace, scopes=sorted(map(str, caller.scopes))
    )
