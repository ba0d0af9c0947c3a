"""What a store supports, and what it says when it is asked for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.codec import AesEncryption
from holdfast.errors import UsageError
from holdfast.stores.capabilities import Capability
from holdfast.stores.contract import Store
from holdfast.stores.encrypted import EncryptedStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PgStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store

CAPABILITIES = {name: one for name, one in vars(Store).items() if isinstance(one, Capability)}
ENCRYPTION = AesEncryption(bytes(32))
ON_TEMPORAL = {"queues", "disabled_workflows", "memories", "documents"}
"""What is there at least in part."""


def get_unsupported(store: Store) -> set[str]:
    return {name for name, capability in CAPABILITIES.items() if not store.supports(capability)}


def test_each_store_says_what_it_supports(tmp_path: Path):
    for database in (SqliteStore(tmp_path / "runs.db"), PgStore("postgresql://localhost/none")):
        assert get_unsupported(database) == get_unsupported(EncryptedStore(database, ENCRYPTION)) == set()
    memory = MemoryStore()
    assert get_unsupported(memory) == get_unsupported(EncryptedStore(memory, ENCRYPTION)) == {"step_transactions"}
    assert get_unsupported(create_store("temporal://localhost:7233/default")) == CAPABILITIES.keys() - ON_TEMPORAL


def test_using_what_a_store_lacks_says_what_it_is_and_what_to_use():
    for store in (MemoryStore(), EncryptedStore(MemoryStore(), ENCRYPTION)):
        with pytest.raises(UsageError, match=r"^step transactions: not supported by memory://\. Use a store"):
            store.step_transactions
    temporal = create_store("temporal://localhost:7233/default")
    for name in get_unsupported(temporal):
        with pytest.raises(UsageError, match=r": not on Temporal, .*\. Instead, .*\. See docs/temporal\.md\.$"):
            getattr(temporal, name)


def test_an_encrypted_store_wraps_only_what_handles_values():
    inner = MemoryStore()
    store = EncryptedStore(inner, ENCRYPTION)
    supported = CAPABILITIES.keys() - get_unsupported(inner)
    same = {name for name in supported if getattr(store, name) is getattr(inner, name)}
    assert same == {"workers", "disabled_workflows", "queues", "audit_log", "daily_usage", "retention", "erasure"}
