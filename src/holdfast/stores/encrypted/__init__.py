"""Stores in which what users' code handed in or got out is sealed: see ``store``."""

from __future__ import annotations

from holdfast.stores.encrypted.encrypted_fields import check_that_it_is_open
from holdfast.stores.encrypted.store import SealedStore, beneath

__all__ = ["SealedStore", "beneath", "check_that_it_is_open"]
