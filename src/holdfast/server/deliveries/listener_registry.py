"""Listeners: processes elsewhere that take deliveries, as the store knows them, and whether they live.

A listener is registered when it connects, or when there is something for it to take. It gets an id that it sends with
every later request. A process that is restarted has no id, so it cannot keep alive what its predecessor held. The id is
signed, so no process can act as a listener of another address.

When a listener's last stream breaks, its lease is shortened to ``RECONNECT_GRACE_S``. So the deliveries of a listener
that was killed go to others quickly.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.server.calls import Call
from holdfast.services.addresses import AddressInfo, find_address
from holdfast.stores.clocks import monotonic
from holdfast.stores.contract import Store
from holdfast.stores.leases import LeaseWindowTracker
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.workers import NewWorker

if TYPE_CHECKING:
    from holdfast.server.tenants import Tenant, Tenants

RECONNECT_GRACE_S = 2.0
"""Seconds that a listener has to come back when its connection breaks, before its deliveries go to others."""
RENEW_FRACTION = 1 / 6
"""Part of a lease after which it is renewed: not every call on a delivery is worth a write."""
MAX_CACHED_LISTENERS = 10_000
"""Listeners of which it is remembered when they were heard of; what is forgotten is written once more."""
MAX_NAME_CHARS = 100
MAX_SWEEP_GAP_S = 5.0
"""Seconds between two sweeps after which leases count anew; they are a second apart."""
SETTINGS_TTL_S = 2.0
"""Seconds for which the settings of an address need not be read again."""
_SECRET_DOCUMENT = ("secret", "listeners")


class ListenerRegistry:
    """What a server knows of them. All of it may be forgotten."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._secret: bytes | None = None
        self._renewed_at: OrderedDict[tuple[str, int], float] = OrderedDict()
        """When this server has last renewed the lease of a listener; the latest last."""
        self._stream_counts: Counter[tuple[str, int]] = Counter()
        """How many streams of a listener are open: it may be back before the old one is seen to be broken."""
        self._settings: dict[tuple[str, str], tuple[AddressInfo, float]] = {}
        """By namespace and address: its settings, and until when they are known."""
        self._contacts: dict[str, LeaseWindowTracker] = {}
        """By namespace: since when this server could renew leases there."""

    # Names

    async def make_listener_id(self, tenant: Tenant, address: str, worker_id: int) -> str:
        """What a listener is called."""
        return f"{worker_id}.{self._sign(await self._load_secret(), tenant.namespace, address, worker_id)}"

    async def parse_listener_id(self, tenant: Tenant, address: str, listener_id: str | None) -> int | None:
        """The worker that is called so; ``None``: it is none of this address."""
        number, _, signature = (listener_id or "").partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        expected = self._sign(await self._load_secret(), tenant.namespace, address, int(number))
        return int(number) if hmac.compare_digest(signature.encode(), expected.encode()) else None

    @staticmethod
    def _sign(key: bytes, namespace: str, address: str, worker: int) -> str:
        told = "\0".join((namespace, address, str(worker))).encode()
        return hmac.new(key, told, hashlib.sha256).hexdigest()[:32]

    async def _load_secret(self) -> bytes:
        """All servers of a database have the same, so that each understands the names that others have given."""
        if self._secret is None:
            home = await self._tenants.get_home_store()
            await home.documents.put(*_SECRET_DOCUMENT, f'"{secrets.token_hex(32)}"'.encode(), if_version=0)
            [kept] = await home.documents.list(_SECRET_DOCUMENT[0], [_SECRET_DOCUMENT[1]])
            self._secret = bytes.fromhex(kept.load_json())
        return self._secret

    # Life

    async def register(self, call: Call, store: Store, address: AddressInfo, name: str) -> int:
        """A new listener, which lives for the lease of its address from now."""
        shown = "".join(character for character in name if character.isprintable())[:MAX_NAME_CHARS]
        worker = NewWorker(
            name=shown or call.caller.name or "listener",
            host=call.caller.remote_address,
            pid=0,
            workflows=(make_served_name(address.name, ""),),
            is_listener=True,
        )
        number = await store.workers.register(worker, address.lease)
        self._note_renewal((call.tenant.namespace, number), store.now())
        return number

    async def keep_alive(self, tenant: Tenant, store: Store, worker: int, lease: float) -> bool:
        """The listener lives; false when it was declared dead before. Not every time is written down."""
        place, now = (tenant.namespace, worker), store.now()
        if now - self._renewed_at.get(place, float("-inf")) < lease * RENEW_FRACTION:
            return True
        if not await self.renew_lease(tenant, store, worker, lease):
            self._renewed_at.pop(place, None)
            return False
        self._note_renewal(place, now)
        return True

    async def renew_lease(self, tenant: Tenant, store: Store, worker: int, lease: float) -> bool:
        """Write down that the listener lives; false when it was declared dead before."""
        try:
            return await store.workers.renew_listener_lease(worker, lease)
        except StoreError:
            self.get_contact(tenant, store).note_failure()  # others could not be renewed either
            raise

    def get_contact(self, tenant: Tenant, store: Store) -> LeaseWindowTracker:
        """Since when leases of listeners could be renewed through this server."""
        found = self._contacts.get(tenant.namespace)
        if found is None:
            found = self._contacts[tenant.namespace] = LeaseWindowTracker(
                store.now, monotonic, max_gap_s=MAX_SWEEP_GAP_S
            )
        return found

    def _note_renewal(self, key: tuple[str, int], now: float) -> None:
        self._renewed_at[key] = now
        self._renewed_at.move_to_end(key)
        if len(self._renewed_at) > MAX_CACHED_LISTENERS:
            self._renewed_at.popitem(last=False)

    def open_stream(self, tenant: Tenant, worker: int) -> None:
        """A stream of this listener is open."""
        self._stream_counts[tenant.namespace, worker] += 1

    def close_stream(self, tenant: Tenant, worker: int) -> bool:
        """A stream of this listener is not open any more; whether it was the last one."""
        place = (tenant.namespace, worker)
        self._stream_counts[place] -= 1
        if self._stream_counts[place] > 0:
            return False
        del self._stream_counts[place]
        return True

    async def shorten_lease(self, tenant: Tenant, store: Store, worker: int) -> None:
        """The connection to a listener is broken: it has a few seconds to be heard of again."""
        self._renewed_at.pop((tenant.namespace, worker), None)
        await self.renew_lease(tenant, store, worker, RECONNECT_GRACE_S)

    async def get_settings(self, tenant: Tenant, address: str) -> AddressInfo:
        """The settings of an address, as they were a moment ago."""
        store, place = await tenant.store(), (tenant.namespace, address)
        known, now = self._settings.get(place), store.now()
        if known is None or known[1] < now:
            found = await find_address(store, address)
            known = self._settings[place] = (AddressInfo(address) if found is None else found, now + SETTINGS_TTL_S)
        return known[0]

    async def get_lease(self, tenant: Tenant, address: str) -> float:
        """The lease of an address, as it was a moment ago."""
        return (await self.get_settings(tenant, address)).lease


async def renew_listener_lease(call: Call, run: Run) -> float:
    """Whoever holds this run lives: for how long that is believed."""
    listeners, tenant = call.platform.listeners, call.tenant
    lease = await listeners.get_lease(tenant, run.workflow)
    if run.owner is not None:
        await listeners.keep_alive(tenant, await call.store(), run.owner, lease)
    return lease
