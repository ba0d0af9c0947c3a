"""The webhooks of addresses: the URLs that deliveries are sent to, and the secrets that sign them.

A secret must sign, so it is stored as it is, in a document of its own that is never shown: ``AddressInfo`` has no field
for it. Only the caller that sets the webhook or rotates the secret gets it, once. For a while after a rotation both
secrets sign, so that the receiver has time to change to the new one.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.documents import find_document, list_documents, update_document
from holdfast.services.json_form import from_json, to_json_bytes
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.webhooks import SECRET_PREFIX

DOCUMENT_KIND = "webhook"
"""The kind of document that holds a webhook, under the name of its address."""
SECRET_OVERLAP_S = 86400.0
"""Default of how long the old secret signs as well."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook of an address."""

    address: str
    url: str
    secret: str = field(repr=False)
    old_secret: str | None = field(default=None, repr=False)
    old_secret_until: float | None = None
    """When the old secret stops signing."""
    disabled_reason: str | None = None
    """Why nothing is sent, if it is disabled."""

    def get_signing_secrets(self, now: float) -> list[str]:
        """The secrets that sign at this time, the newest first."""
        old = self.old_secret if self.old_secret_until is not None and now < self.old_secret_until else None
        return [self.secret] if old is None else [self.secret, old]


async def find_webhook(store: Store, address: str) -> Webhook | None:
    """The webhook of an address."""
    found = await find_document(store, DOCUMENT_KIND, address)
    return None if found is None else _webhook_from_document(found)


async def list_webhooks(store: Store) -> dict[str, Webhook]:
    """All webhooks, by address."""
    return {one.name: _webhook_from_document(one) for one in await list_documents(store, DOCUMENT_KIND)}


async def set_webhook(store: Store, address: str, url: str) -> str | None:
    """Send deliveries to ``url``. Returns the secret if it is new, which is so if there was no webhook before."""
    new_secret: str | None = None

    def change(document: Document | None) -> bytes:
        nonlocal new_secret
        if document is not None:
            new_secret = None
            return json.dumps(document.load_json() | {"url": url, "disabled_reason": None}).encode()
        new_secret = _generate_secret()
        return to_json_bytes(Webhook(address, url, new_secret))

    await update_document(store, DOCUMENT_KIND, address, change)
    return new_secret


async def remove_webhook(store: Store, address: str) -> bool:
    """Stop sending, and delete the secret."""
    return await store.documents.delete(DOCUMENT_KIND, address)


async def rotate_secret(store: Store, address: str, overlap_s: float = SECRET_OVERLAP_S) -> Webhook:
    """Create a new secret. The old one signs as well for another ``overlap_s`` seconds. Raises ``UsageError``."""
    new: Webhook | None = None

    def change(document: Document | None) -> bytes:
        nonlocal new
        if document is None:
            raise UsageError(f"address {address!r} has no webhook, and so no secret: set one first")
        old = _webhook_from_document(document)
        new = Webhook(address, old.url, _generate_secret(), old.secret, store.now() + overlap_s, old.disabled_reason)
        return to_json_bytes(new)

    await update_document(store, DOCUMENT_KIND, address, change)
    assert new is not None
    return new


async def disable_webhook(store: Store, hook: Webhook, reason: str) -> None:
    """Stop sending until the webhook is set again; unless it has another URL by now."""

    def change(document: Document | None) -> bytes | None:
        fields: dict[str, Any] = {} if document is None else document.load_json()
        if fields.get("url") != hook.url:
            return None
        return json.dumps(fields | {"disabled_reason": reason}).encode()

    await update_document(store, DOCUMENT_KIND, hook.address, change)


def _generate_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _webhook_from_document(document: Document) -> Webhook:
    return from_json(Webhook, {**document.load_json(), "address": document.name})
