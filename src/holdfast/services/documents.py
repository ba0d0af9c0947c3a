"""Documents of the store, as those read them who want all of a kind: addresses, webhooks, policies and keys."""

from __future__ import annotations

from holdfast.stores.contract import Store
from holdfast.stores.documents import Document


async def list_documents(store: Store, kind: str) -> list[Document]:
    """All documents of a kind, in the order of their names; a store gives them page by page."""
    found: list[Document] = []
    while page := await store.documents.list(kind, after=found[-1].name if found else ""):
        found += page
    return found
