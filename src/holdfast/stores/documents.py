"""Documents: what a server keeps that belongs to no run, such as API keys, addresses and policies.

Each is a small JSON object under a kind and a name. A document has a version that rises with every change, so that two
who change the same one at the same time do not undo each other's work: whoever says which version it has read is
refused when that is not the one that is there. They go into no archive: export, import and copies are about runs.
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
    """One of them."""

    kind: str
    name: str
    data: bytes
    """JSON."""
    version: int
    """1 for a new one."""
    created_at: float
    updated_at: float

    def load_json(self) -> Any:
        """What is in it. Raises ``UndecryptableValue``."""
        check_decrypted(self.data, f"what the server keeps of {self.kind} {self.name!r}")
        return json.loads(self.data)


def check_document_name(kind: str, name: str) -> None:
    """Raises ``UsageError`` for a place that no store can keep a document in."""
    if not kind or not name:
        raise UsageError(f"a document needs a kind and a name that are not empty, and this has {kind!r} and {name!r}")
    check_encodable(kind, "the kind of a document")
    check_encodable(name, f"the name of a document ({kind})")


class Documents(ABC):
    """The documents of servers."""

    @abstractmethod
    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        """Keep a document, in place of the one that is there, and tell it as it is then.

        ``if_version``: only if that is its version now (0: only if there is none); ``None`` if it is not.
        """

    @abstractmethod
    async def delete(self, kind: str, name: str) -> bool:
        """Forget a document. False: it is not there."""

    @abstractmethod
    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        """Documents of a kind, or those of these names, in the order of their names, those behind ``after``."""
