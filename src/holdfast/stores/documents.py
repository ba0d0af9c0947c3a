"""Documents: data of a server that belongs to no run, such as API keys, addresses, and policies.

A document is a small JSON object under a kind and a name. Its version rises with every change, so that two concurrent
changes do not undo each other: a caller that states which version it has read is refused if there is another one now.
Archives do not contain documents: export, import, and copies are about runs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from holdfast.codec import check_decrypted
from holdfast.errors import UsageError
from holdfast.stores.utf8 import check_encodable


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document."""

    kind: str
    name: str
    data: bytes
    """JSON."""
    version: int
    """1 for a new document."""
    created_at: float
    updated_at: float

    def load_json(self) -> Any:
        """The parsed data. Raises ``UndecryptableValue``."""
        check_decrypted(self.data, f"what the server keeps of {self.kind} {self.name!r}")
        return json.loads(self.data)


def check_document_name(kind: str, name: str) -> None:
    """Raise ``UsageError`` for a kind or name that no store can keep."""
    if not kind or not name:
        raise UsageError(f"a document needs a kind and a name that are not empty, and this has {kind!r} and {name!r}")
    check_encodable(kind, "the kind of a document")
    check_encodable(name, f"the name of a document ({kind})")


class Documents(ABC):
    """The documents of servers."""

    @abstractmethod
    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        """Write a document, replacing an existing one. Returns it as it is stored.

        ``if_version``: only if this is its current version (0: only if it does not exist). Otherwise returns ``None``.
        """

    @abstractmethod
    async def delete(self, kind: str, name: str) -> bool:
        """Delete a document. False: it does not exist."""

    @abstractmethod
    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        """Documents of a kind with a name after ``after``, ordered by name; with ``names``, only these."""
