"""Listeners: processes elsewhere that take deliveries, as the store knows them, and whether they live.

A listener is registered when it connects, or when there is something for it to take. It is given an id that it hands in
with everything it asks for from then on: a process that is started anew has none, and so cannot keep alive what its
predecessor held. The id is signed, so that nobody can speak for a listener of another address.
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
from holdfast.stores.clocks import elapsed
from holdfast.stores.contract import NewWorker, Store
from holdfast.stores.leases import Contact
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import served_name

if TYPE_CHECKING:
    from holdfast.server.tenants import Tenant, Tenants

GRACE = 2.0
"""Seconds that a listener has to come back when its connection breaks, before its deliveries go to others."""
RENEWED_AFTER = 1 / 6
"""Part of a lease after which it is renewed: not every call on a delivery is worth a write."""
MOST_KNOWN = 10_000
"""Listeners of which it is remembered when they were heard of; what is forgotten is written once more."""
LONGEST_NAME = 100
MAX_GAP = 5.0
"""Seconds between two sweeps after which leases count anew; they are a second apart."""
KNOWN_FOR = 2.0
"""Seconds for which the settings of an address need not be read again."""
_SECRET = ("secret", "listeners")


class Listeners:
    """What a server knows of them. All of it may be forgotten."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._secret: bytes | None = None
        self._renewed: OrderedDict[tuple[str, int], float] = OrderedDict()
        """When this server has last renewed the lease of a listener; the latest last."""
        self._streams: Counter[tuple[str, int]] = Counter()
        """How many streams of a listener are open: it may be back before the old one is seen to be broken."""
        self._settings: dict[tuple[str, str], tuple[AddressInfo, float]] = {}
        """By namespace and address: its settings, and until when they are known."""
        self._contacts: dict[str, Contact] = {}
        """By namespace: since when this server could renew leases there."""

    # Names

    async def name(self, tenant: Tenant, address: str, worker: int) -> str:
        """What a listener is called."""
        return f"{worker}.{self._signature(await self._key(), tenant.namespace, address, worker)}"

    async def read(self, tenant: Tenant, address: str, name: str | None) -> int | None:
        """The worker that is called so; ``None``: it is none of this address."""
        number, _, signature = (name or "").partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        expected = self._signature(await self._key(), tenant.namespace, address, int(number))
        return int(number) if hmac.compare_digest(signature.encode(), expected.encode()) else None

    @staticmethod
    def _signature(key: bytes, namespace: str, address: str, worker: int) -> str:
        told = "\0".join((namespace, address, str(worker))).encode()
        return hmac.new(key, told, hashlib.sha256).hexdigest()[:32]

    async def _key(self) -> bytes:
        """All servers of a database have the same, so that each understands the names that others have given."""
        if self._secret is None:
            home = await self._tenants.home()
            await home.put_document(*_SECRET, f'"{secrets.token_hex(32)}"'.encode(), if_version=0)
            [kept] = await home.documents(_SECRET[0], [_SECRET[1]])
            self._secret = bytes.fromhex(kept.content())
        return self._secret

    # Life

    async def register(self, call: Call, store: Store, address: AddressInfo, name: str) -> int:
        """A new listener, which lives for the lease of its address from now."""
        shown = "".join(character for character in name if character.isprintable())[:LONGEST_NAME]
        worker = NewWorker(
            name=shown or call.caller.name or "listener",
            host=call.caller.remote,
            pid=0,
            workflows=(served_name(address.name, ""),),
            by_lease=True,
        )
        number = await store.register_worker(worker, address.lease)
        self._note((call.tenant.namespace, number), store.now())
        return number

    async def keep(self, tenant: Tenant, store: Store, worker: int, lease: float) -> bool:
        """The listener lives; false when it was declared dead before. Not every time is written down."""
        place, now = (tenant.namespace, worker), store.now()
        if now - self._renewed.get(place, float("-inf")) < lease * RENEWED_AFTER:
            return True
        if not await self.renew(tenant, store, worker, lease):
            self._renewed.pop(place, None)
            return False
        self._note(place, now)
        return True

    async def renew(self, tenant: Tenant, store: Store, worker: int, lease: float) -> bool:
        """Write down that the listener lives; false when it was declared dead before."""
        try:
            return await store.keep_worker(worker, lease)
        except StoreError:
            self.contact(tenant, store).lost()  # others could not be renewed either
            raise

    def contact(self, tenant: Tenant, store: Store) -> Contact:
        """Since when leases of listeners could be renewed through this server."""
        found = self._contacts.get(tenant.namespace)
        if found is None:
            found = self._contacts[tenant.namespace] = Contact(store.now, elapsed, max_gap=MAX_GAP)
        return found

    def _note(self, place: tuple[str, int], now: float) -> None:
        self._renewed[place] = now
        self._renewed.move_to_end(place)
        if len(self._renewed) > MOST_KNOWN:
            self._renewed.popitem(last=False)

    def begins(self, tenant: Tenant, worker: int) -> None:
        """A stream of this listener is open."""
        self._streams[tenant.namespace, worker] += 1

    def ends(self, tenant: Tenant, worker: int) -> bool:
        """A stream of this listener is not open any more; whether it was the last one."""
        place = (tenant.namespace, worker)
        self._streams[place] -= 1
        if self._streams[place] > 0:
            return False
        del self._streams[place]
        return True

    async def shorten(self, tenant: Tenant, store: Store, worker: int) -> None:
        """The connection to a listener is broken: it has a few seconds to be heard of again."""
        self._renewed.pop((tenant.namespace, worker), None)
        await self.renew(tenant, store, worker, GRACE)

    async def settings_of(self, tenant: Tenant, address: str) -> AddressInfo:
        """The settings of an address, as they were a moment ago."""
        store, place = await tenant.store(), (tenant.namespace, address)
        known, now = self._settings.get(place), store.now()
        if known is None or known[1] < now:
            found = await find_address(store, address)
            known = self._settings[place] = (AddressInfo(address) if found is None else found, now + KNOWN_FOR)
        return known[0]

    async def lease_of(self, tenant: Tenant, address: str) -> float:
        """The lease of an address, as it was a moment ago."""
        return (await self.settings_of(tenant, address)).lease


async def hear_of(call: Call, run: Run) -> float:
    """Whoever holds this run lives: for how long that is believed."""
    listeners, tenant = call.platform.listeners, call.tenant
    lease = await listeners.lease_of(tenant, run.workflow)
    if run.owner is not None:
        await listeners.keep(tenant, await call.store(), run.owner, lease)
    return lease
