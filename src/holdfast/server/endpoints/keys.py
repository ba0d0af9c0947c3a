"""API keys, of the caller's own namespace: whoever administers one sees and changes nothing of the others."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import LONGEST_SPAN, Changed, Items, Moment, Text
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import Api, Body
from holdfast.services.api_keys import Key, MadeKey, UnknownKey, create_key, read_keys, revoke_key

api = Api()


class NewKey(Body):
    """A key to be made."""

    name: Text
    """What people call it."""
    scopes: list[Text] = Field(max_length=200)
    """Of ``read``, ``submit``, ``operate``, ``admin``, ``listen:<address>`` and ``listen:*``."""
    expires_at: Moment | None = None
    expires_in: float | None = Field(default=None, gt=0, le=LONGEST_SPAN)
    """The same, in seconds from now."""


@api("POST", "/v1/keys", scope=Scope.ADMIN, status=201, location="/v1/keys/{id}")
async def create_api_key(call: Call, body: NewKey) -> MadeKey:
    """Make a key for the caller's namespace. Its token is told this once."""
    if body.expires_at is not None and body.expires_in is not None:
        raise Problem(422, "bad-input", "The values do not fit", "Give one of expires_at and expires_in.")
    now = call.platform.settings.now()
    expires_at = body.expires_at
    if body.expires_in is not None:
        expires_at = datetime.fromtimestamp(now + body.expires_in, UTC)
    key, token = await create_key(
        await call.platform.tenants.home(),
        body.name,
        body.scopes,
        call.caller.namespace,
        expires_at=expires_at,
        created_by=call.caller.key,
        now=now,
    )
    call.platform.keys.forget(key.id)
    return MadeKey.of(key, token)


@api("GET", "/v1/keys", scope=Scope.ADMIN)
async def list_api_keys(call: Call) -> Items[Key]:
    """The keys of the caller's namespace, the oldest first; also those that were revoked or have expired."""
    return Items[Key](items=await read_keys(await call.platform.tenants.home(), call.caller.namespace))


@api("DELETE", "/v1/keys/{id}", scope=Scope.ADMIN)
async def revoke_api_key(call: Call, id: str) -> Changed:
    """Let a key open nothing any more: at once on this server, within two seconds on others."""
    now = call.platform.settings.now()
    try:
        changed = await revoke_key(await call.platform.tenants.home(), id, now, call.caller.namespace)
    except UnknownKey as error:
        raise Problem(404, "unknown-key", "There is no such key", str(error)) from None
    call.platform.keys.forget(id)
    return Changed(changed=changed)
