"""Reading and changing the store's documents: addresses, webhooks, policies, and API keys."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.contract import Store
from holdfast.stores.documents import Document


async def list_documents(store: Store, kind: str) -> list[Document]:
    """All documents of a kind, in the order of their names, read page by page."""
    found: list[Document] = []
    while page := await store.documents.list(kind, after=found[-1].name if found else ""):
        found += page
    return found


async def find_document(store: Store, kind: str, name: str) -> Document | None:
    """The document with this name, if there is one."""
    found = await store.documents.list(kind, [name])
    return found[0] if found else None


async def update_document(
    store: Store, kind: str, name: str, update: Callable[[Document | None], bytes | None]
) -> bool:
    """Write what ``update`` makes of the current document; false if it returns ``None``, to change nothing.

    If another process changes the document meanwhile, ``update`` is called again with the new one.
    """
    while True:
        current = await find_document(store, kind, name)
        data = update(current)
        if data is None:
            return False
        version = 0 if current is None else current.version
        if await store.documents.put(kind, name, data, if_version=version) is not None:
            return True
