"""Documents: what a server keeps that belongs to no run, such as API keys, addresses and policies.

Each is a small JSON object under a kind and a name. A document has a version that rises with every change, so that two
who change the same one at the same time do not undo each other's work: whoever says which version it has read is
refused when that is not the one that is there. They go into no archive: export, import and copies are about runs.
"""

from __future__ import annotations

import json
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
