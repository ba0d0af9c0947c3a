"""The webhooks of addresses, as the store keeps them: where deliveries are sent to, and the secrets that sign them.

A secret must sign, so it is kept as it is, in a document of its own that is never shown: what is told of an address is
``AddressInfo``, which has no place for it. It is shown once, to whoever sets the webhook or exchanges the secret. For a
while after an exchange both secrets sign, so that the receiver can be told the new one in peace.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.documents import list_documents
from holdfast.services.json_form import from_json, to_json_bytes
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.webhooks import SECRET_PREFIX

DOCUMENT_KIND = "webhook"
"""The kind of document that holds a webhook, under the name of its address."""
SECRET_OVERLAP_S = 86400.0
"""Seconds for which the old secret signs as well, unless it is said otherwise."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the deliveries of an address are sent to."""

    address: str
    url: str
    secret: str = field(repr=False)
    old_secret: str | None = field(default=None, repr=False)
    old_secret_until: float | None = None
    """When the old one ceases to sign."""
    disabled_reason: str | None = None
    """Why nothing is sent any more."""

    def get_signing_secrets(self, now: float) -> list[str]:
        """The secrets that sign at this time, the newest first."""
        old = self.old_secret if self.old_secret_until is not None and now < self.old_secret_until else None
        return [self.secret] if old is None else [self.secret, old]


async def find_webhook(store: Store, address: str) -> Webhook | None:
    """The webhook of an address."""
    found = await store.documents.list(DOCUMENT_KIND, [address])
    return _webhook_from_document(found[0]) if found else None


async def list_webhooks(store: Store) -> dict[str, Webhook]:
    """All webhooks, by address."""
    return {one.name: _webhook_from_document(one) for one in await list_documents(store, DOCUMENT_KIND)}


async def set_webhook(store: Store, address: str, url: str) -> str | None:
    """Let deliveries be sent there. The secret, if it is a new one: it is made when there was no webhook before."""
    while True:
        found = await store.documents.list(DOCUMENT_KIND, [address])
        if not found:
            new = Webhook(address, url, _generate_secret())
            if await store.documents.put(DOCUMENT_KIND, address, _encode_webhook(new), if_version=0) is not None:
                return new.secret
        else:
            kept: dict[str, Any] = found[0].load_json() | {"url": url, "disabled_reason": None}
            data = json.dumps(kept).encode()
            if await store.documents.put(DOCUMENT_KIND, address, data, if_version=found[0].version) is not None:
                return None


async def remove_webhook(store: Store, address: str) -> bool:
    """Send nothing any more, and forget the secret."""
    return await store.documents.delete(DOCUMENT_KIND, address)


async def rotate_secret(store: Store, address: str, overlap_s: float = SECRET_OVERLAP_S) -> Webhook:
    """Make a new secret; the one before it signs as well for so many seconds. Raises ``UsageError``."""
    while True:
        found = await store.documents.list(DOCUMENT_KIND, [address])
        if not found:
            raise UsageError(f"address {address!r} has no webhook, and so no secret: set one first")
        old = _webhook_from_document(found[0])
        new = Webhook(address, old.url, _generate_secret(), old.secret, store.now() + overlap_s, old.disabled_reason)
        if (
            await store.documents.put(DOCUMENT_KIND, address, _encode_webhook(new), if_version=found[0].version)
            is not None
        ):
            return new


async def disable_webhook(store: Store, hook: Webhook, reason: str) -> None:
    """Send nothing any more until somebody sets it again; unless it has become another one meanwhile."""
    while found := await store.documents.list(DOCUMENT_KIND, [hook.address]):
        kept: dict[str, Any] = found[0].load_json()
        if kept["url"] != hook.url:
            return
        data = json.dumps(kept | {"disabled_reason": reason}).encode()
        if await store.documents.put(DOCUMENT_KIND, hook.address, data, if_version=found[0].version) is not None:
            return


def _generate_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _encode_webhook(hook: Webhook) -> bytes:
    return to_json_bytes(hook)


def _webhook_from_document(document: Document) -> Webhook:
    return from_json(Webhook, {**document.load_json(), "address": document.name})
