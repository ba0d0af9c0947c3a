"""What the server tells of itself, and of the caller."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from holdfast import __version__
from holdfast.client.keys import KIND
from holdfast.client.moments import moment
from holdfast.server.api import Api
from holdfast.server.calls import Call
from holdfast.server.openapi import document
from holdfast.server.scopes import Scope

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


@api("GET", "/v1/openapi.json", scope=None)
async def openapi(call: Call) -> dict[str, Any]:
    """This API, as an OpenAPI document."""
    return _document()


@functools.cache  # anybody may ask, and it is some work
def _document() -> dict[str, Any]:
    from holdfast.server.endpoints import ENDPOINTS

    return document(ENDPOINTS, version=__version__)


@api("GET", "/v1/whoami", scope=Scope.ANY)
async def whoami(call: Call) -> WhoAmI:
    """Who the server takes the caller for."""
    caller = call.caller
    return WhoAmI(
        key=caller.key or None, name=caller.name, namespace=caller.namespace, scopes=sorted(map(str, caller.scopes))
    )
