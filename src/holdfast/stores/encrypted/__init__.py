"""Stores in which what users' code handed in or got out is sealed: see ``store``, and ``encrypted_fields`` for what."""

from __future__ import annotations

from holdfast.stores.encrypted.encrypted_fields import check_archive_decrypted
from holdfast.stores.encrypted.store import EncryptedStore, unwrap_store

__all__ = ["EncryptedStore", "check_archive_decrypted", "unwrap_store"]
