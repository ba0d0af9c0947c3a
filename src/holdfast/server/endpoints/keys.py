"""API keys of the caller's own namespace: an admin of one namespace cannot see or change another."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import MAX_DURATION_S, Changed, Items, Text, UtcDatetime
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.api_keys import ApiKey, CreatedApiKey, UnknownApiKey, create_key, list_keys, revoke_key
from holdfast.services.problems import Problem

router = Router()


class CreateKeyBody(RequestModel):
    """A new key."""

    name: Text
    """Its name, for people to read."""
    scopes: list[Text] = Field(max_length=200)
    """Of ``read``, ``submit``, ``operate``, ``admin``, ``listen:<address>`` and ``listen:*``."""
    expires_at: UtcDatetime | None = None
    expires_in: float | None = Field(default=None, gt=0, le=MAX_DURATION_S)
    """The same, in seconds from now."""


@router("POST", "/v1/keys", scope=Scope.ADMIN, status=201, location="/v1/keys/{id}")
async def create_api_key(call: Call, body: CreateKeyBody) -> CreatedApiKey:
    """Make a key for the caller's namespace. Only this response has its token."""
    if body.expires_at is not None and body.expires_in is not None:
        raise Problem(422, "bad-input", "The values do not fit", "Give one of expires_at and expires_in.")
    now = call.platform.settings.now()
    expires_at = body.expires_at
    if body.expires_in is not None:
        expires_at = datetime.fromtimestamp(now + body.expires_in, UTC)
    key, token = await create_key(
        await call.platform.tenants.get_default_store(),
        body.name,
        body.scopes,
        call.caller.namespace,
        expires_at=expires_at,
        created_by=call.caller.key_id,
        now=now,
    )
    call.platform.authenticator.invalidate(key.id)
    return CreatedApiKey.from_key(key, token)


@router("GET", "/v1/keys", scope=Scope.ADMIN)
async def list_api_keys(call: Call) -> Items[ApiKey]:
    """The keys of the caller's namespace, oldest first, including revoked and expired ones."""
    return Items[ApiKey](items=await list_keys(await call.platform.tenants.get_default_store(), call.caller.namespace))


@router("DELETE", "/v1/keys/{id}", scope=Scope.ADMIN)
async def revoke_api_key(call: Call, id: str) -> Changed:
    """Revoke a key: at once on this server, within two seconds on others."""
    now = call.platform.settings.now()
    try:
        changed = await revoke_key(await call.platform.tenants.get_default_store(), id, now, call.caller.namespace)
    except UnknownApiKey as error:
        raise Problem(404, "key-not-found", "There is no such key", str(error)) from None
    call.platform.authenticator.invalidate(id)
    return Changed(changed=changed)
