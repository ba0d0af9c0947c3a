"""External storage for payloads that are too large for a history.

Temporal refuses payloads of more than 2 MB, and histories of more than 50 MB. So payloads of at least
``MIN_EXTERNAL_BYTES`` bytes can be stored elsewhere, and the history holds a reference. ``?payloads=`` in the URL says
where: a folder that all workers and clients share, or a URL such as ``s3://bucket/runs``. For a URL, an installed
package provides the storage under the entry point group ``holdfast.payload_storages``, as a function from the URL to a
``PayloadStorage``.

The key of a payload is the hash of its content: it is written once, never changed, and checked when it is read.
Holdfast never deletes payloads, because only Temporal knows when it deletes a history. The operator of the storage lets
objects expire that are older than the namespace's retention plus the longest run.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from holdfast.errors import StoreCorrupt, StoreError, UsageError

MIN_EXTERNAL_BYTES = 256 * 1024
"""The size from which payloads are stored externally."""
ENTRY_POINT_GROUP = "holdfast.payload_storages"
"""The entry points of packages that provide a storage. Their names are URL schemes."""

_KEY_PATTERN = re.compile(r"[0-9a-f]{64}")


class PayloadStorage(ABC):
    """Stores bytes under keys of 64 hexadecimal digits. The value of a key never changes."""

    @abstractmethod
    async def put(self, key: str, data: bytes) -> None:
        """Store a value durably. If the key exists, it already has this value."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """The value of a key; ``None`` if there is none."""


class FolderStorage(PayloadStorage):
    """A folder with a file for each key."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).expanduser().absolute()

    async def put(self, key: str, data: bytes) -> None:
        """Write a temporary file, and rename it when it is complete."""
        await asyncio.to_thread(self._write, key, data)

    async def get(self, key: str) -> bytes | None:
        return await asyncio.to_thread(self._read, key)

    def _path(self, key: str) -> Path:
        if not _KEY_PATTERN.fullmatch(key):
            raise StoreCorrupt(
                f"{key[:80]!r} is no key of a payload in {self._folder}: somebody has changed the reference"
            )
        return self._folder / key[:2] / key[2:]

    def _write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            if path.exists():
                return
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(draft, path)
            except BaseException:
                Path(draft).unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)
            _sync_folder(self._folder)
        except OSError as error:
            raise StoreError(
                f"a payload of {len(data):,} bytes cannot be kept in {self._folder} ({error}): check that the folder "
                f"of `?payloads=` is there, may be written to, and has room"
            ) from error

    def _read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None


def _sync_folder(folder: Path) -> None:
    """Make the file names in a folder survive a power failure, where the system supports it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _PayloadStorageDriver(StorageDriver):
    """The SDK's interface to a storage."""

    def __init__(self, storage: PayloadStorage) -> None:
        self._storage = storage

    def name(self) -> str:
        return "holdfast"

    def type(self) -> str:
        return "holdfast.content-addressed"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return list(await asyncio.gather(*(self._store_payload(payload) for payload in payloads)))

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._retrieve_payload(claim) for claim in claims)))

    async def _store_payload(self, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        key = hashlib.sha256(data).hexdigest()
        await self._storage.put(key, data)
        return StorageDriverClaim({"key": key})

    async def _retrieve_payload(self, claim: StorageDriverClaim) -> Payload:
        key = claim.claim_data.get("key", "")
        if not _KEY_PATTERN.fullmatch(key):
            raise StoreCorrupt(f"a history refers to a payload that is kept apart under no proper key ({key[:80]!r})")
        data = await self._storage.get(key)
        if data is None:
            raise StoreCorrupt(
                f"a payload that a history refers to is not where large payloads are kept (key {key}): it was removed, "
                f"or `?payloads=` names another place than when it was written"
            )
        if hashlib.sha256(data).hexdigest() != key:
            raise StoreCorrupt(f"a payload that is kept apart was changed since it was written (key {key})")
        return Payload.FromString(data)


def open_storage(location: str) -> PayloadStorage:
    """The storage that ``?payloads=`` names. Raises ``UsageError``."""
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return FolderStorage(rest if separator else location)
    offered = entry_points(group=ENTRY_POINT_GROUP, name=scheme)
    if not offered:
        raise UsageError(
            f"payloads={scheme}://…: no package that is installed offers a storage for {scheme}:// (entry point group "
            f"{ENTRY_POINT_GROUP!r}). Name a folder, or write a "
            f"holdfast.stores.temporal.payload_storage.PayloadStorage: see docs/temporal.md"
        )
    factory = cast("Callable[[str], object]", next(iter(offered)).load())
    storage = factory(location)
    if not isinstance(storage, PayloadStorage):
        raise UsageError(
            f"payloads={scheme}://…: {factory!r} gave a {type(storage).__name__}, which is no PayloadStorage"
        )
    return storage


def to_external_storage(storage: PayloadStorage) -> ExternalStorage:
    """A storage for the SDK's data converter."""
    return ExternalStorage(drivers=[_PayloadStorageDriver(storage)], payload_size_threshold=MIN_EXTERNAL_BYTES)
