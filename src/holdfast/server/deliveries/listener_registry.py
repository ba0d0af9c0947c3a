"""Listeners: external processes that take deliveries, as the store knows them, and whether they are alive.

A listener is registered when it connects, or when there is a delivery for it. It gets an id that it sends with every
later request. A process that is restarted has no id, so it cannot keep alive what its predecessor held. The id is
signed, so no process can act as a listener of another address.

When a listener's last stream breaks, its lease is shortened to ``RECONNECT_GRACE_S``. So the deliveries of a listener
that was killed go to others quickly.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.server.caches.lru_dict import LruDict
from holdfast.services.addresses import AddressInfo, declare_address, find_address
from holdfast.stores.clocks import monotonic
from holdfast.stores.contract import Store
from holdfast.stores.leases import LeaseWindowTracker
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.workers import NewWorker

if TYPE_CHECKING:
    from holdfast.server.auth.authenticator import Caller

RECONNECT_GRACE_S = 2.0
"""Seconds that a listener has to reconnect when its connection breaks, before its deliveries go to others."""
RENEW_FRACTION = 1 / 6
"""Part of a lease after which it is renewed: not every call on a delivery is worth a write."""
MAX_CACHED_LISTENERS = 10_000
MAX_NAME_CHARS = 100
MAX_SWEEP_GAP_S = 5.0
"""Seconds between two sweeps after which leases count anew; they are a second apart."""
SETTINGS_TTL_S = 2.0
"""Seconds for which the server remembers the settings of an address."""
_SECRET_DOCUMENT = ("secret", "listeners")


class ListenerRegistry:
    """What a server knows about the listeners of one namespace. It may forget all of it."""

    def __init__(self, namespace: str, store: Store, get_default_store: Callable[[], Awaitable[Store]]) -> None:
        self._namespace = namespace
        self._store = store
        self._get_default_store = get_default_store
        self._secret: bytes | None = None
        self._renewed_at: LruDict[int, float] = LruDict(MAX_CACHED_LISTENERS)
        """By worker id: when this server last renewed the lease. If that is forgotten, it is renewed once more."""
        self._stream_counts: Counter[int] = Counter()
        """By worker id: open streams. A listener may reconnect before the server sees that the old stream broke."""
        self._settings: dict[str, tuple[AddressInfo, float]] = {}
        """By address: its settings, and until when they are remembered."""
        self._declared: LruDict[str, tuple[AddressInfo, float]] = LruDict(MAX_CACHED_LISTENERS)
        """The same for addresses that are known to exist, without their webhooks."""
        self.lease_tracker = LeaseWindowTracker(store.now, monotonic, max_gap_s=MAX_SWEEP_GAP_S)
        """Since when this server has been able to renew leases."""

    # Ids

    async def make_listener_id(self, address: str, worker_id: int) -> str:
        """The id of a listener, which names its worker and is signed."""
        return f"{worker_id}.{await self._sign(address, worker_id)}"

    async def parse_listener_id(self, address: str, listener_id: str | None) -> int | None:
        """The worker id of a listener; ``None`` if it is not the id of a listener of this address."""
        number, _, signature = (listener_id or "").partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        expected = await self._sign(address, int(number))
        return int(number) if hmac.compare_digest(signature.encode(), expected.encode()) else None

    async def _sign(self, address: str, worker_id: int) -> str:
        message = "\0".join((self._namespace, address, str(worker_id))).encode()
        return hmac.new(await self._load_secret(), message, hashlib.sha256).hexdigest()[:32]

    async def _load_secret(self) -> bytes:
        """The secret that all servers of a database share, so that each accepts ids that others have signed."""
        if self._secret is None:
            home = await self._get_default_store()
            await home.documents.put(*_SECRET_DOCUMENT, f'"{secrets.token_hex(32)}"'.encode(), if_version=0)
            [document] = await home.documents.list(_SECRET_DOCUMENT[0], [_SECRET_DOCUMENT[1]])
            self._secret = bytes.fromhex(document.load_json())
        return self._secret

    # Leases

    async def register(self, caller: Caller, address: AddressInfo, name: str) -> int:
        """Register a new listener, which lives for the lease of its address from now."""
        printable_name = "".join(character for character in name if character.isprintable())[:MAX_NAME_CHARS]
        worker = NewWorker(
            name=printable_name or caller.name or "listener",
            host=caller.remote_address,
            pid=0,
            workflows=(make_served_name(address.name, ""),),
            is_listener=True,
        )
        worker_id = await self._store.workers.register(worker, address.lease)
        self._renewed_at[worker_id] = self._store.now()
        return worker_id

    async def keep_alive(self, worker_id: int, lease: float) -> bool:
        """Renew the lease of a listener if that is due; false if it was declared dead before."""
        now = self._store.now()
        if now - self._renewed_at.get(worker_id, float("-inf")) < lease * RENEW_FRACTION:
            return True
        # Set before the write and not after it: what shortens the lease meanwhile is written later, and removes this.
        self._renewed_at[worker_id] = now
        is_alive = False
        try:
            is_alive = await self.renew_lease(worker_id, lease)
        finally:
            if not is_alive:
                self._renewed_at.pop(worker_id, None)
        return is_alive

    async def renew_lease(self, worker_id: int, lease: float) -> bool:
        """Renew the lease of a listener; false if it was declared dead before."""
        try:
            return await self._store.workers.renew_listener_lease(worker_id, lease)
        except StoreError:
            self.lease_tracker.note_failure()  # other leases could not be renewed either
            raise

    async def keep_holder_alive(self, run: Run) -> float:
        """The listener that holds a run is alive. Returns its lease."""
        lease = (await self.get_settings(run.workflow)).lease
        if run.owner is not None:
            await self.keep_alive(run.owner, lease)
        return lease

    async def handle_disconnect(self, worker_id: int) -> None:
        """The last stream of a listener broke: one that holds a delivery has a few seconds to reconnect, others retire.

        The listener may reconnect at the same time: a new stream renews the lease, or finds out that it has retired.
        """
        self._renewed_at.pop(worker_id, None)
        if await self._store.workers.retire(worker_id, only_if_idle=True) or worker_id in self._stream_counts:
            return
        self._renewed_at.pop(worker_id, None)
        await self.renew_lease(worker_id, RECONNECT_GRACE_S)

    async def retire(self, worker_id: int) -> None:
        """A listener has left."""
        self._renewed_at.pop(worker_id, None)
        await self._store.workers.retire(worker_id)

    # Streams

    def open_stream(self, worker_id: int) -> None:
        """Count a stream of a listener."""
        self._stream_counts[worker_id] += 1

    def close_stream(self, worker_id: int) -> bool:
        """A stream of a listener is closed. Returns whether it was the last one."""
        self._stream_counts[worker_id] -= 1
        if self._stream_counts[worker_id] > 0:
            return False
        del self._stream_counts[worker_id]
        return True

    # Addresses

    async def declare_address(self, name: str) -> AddressInfo:
        """The address with this name, created if it does not exist; its settings are at most ``SETTINGS_TTL_S`` old."""
        known, now = self._declared.get(name), self._store.now()
        if known is None or not now <= known[1] <= now + SETTINGS_TTL_S:
            known = self._declared[name] = (await declare_address(self._store, name), now + SETTINGS_TTL_S)
        return known[0]

    def forget_settings(self, address: str) -> None:
        """Read the settings of an address anew: they were changed."""
        self._settings.pop(address, None)
        self._declared.pop(address, None)

    async def get_settings(self, address: str) -> AddressInfo:
        """The settings of an address, at most ``SETTINGS_TTL_S`` old."""
        known, now = self._settings.get(address), self._store.now()
        if known is None or known[1] < now:
            if known is not None:  # other requests use it meanwhile
                self._settings[address] = (known[0], now + SETTINGS_TTL_S)
            found = await find_address(self._store, address)
            known = self._settings[address] = (found or AddressInfo(address), now + SETTINGS_TTL_S)
        return known[0]
