"""Stores that encrypt what users' code passes in or gets out: see ``store``. ``encrypted_fields`` lists the fields."""

from __future__ import annotations

from holdfast.stores.encrypted.encrypted_fields import check_archive_decrypted
from holdfast.stores.encrypted.store import EncryptedStore, unwrap_store

__all__ = ["EncryptedStore", "check_archive_decrypted", "unwrap_store"]
