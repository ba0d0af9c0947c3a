"""The next delivery of a listener that completes one, in the response to that request.

The run is claimed in the commit that ends the last one, where the store can (``Store.commit_and_claim``), so a listener
that works on one run after the other needs no other request, and no event of its stream. The stream counts the new
delivery in place of the old one, so the listener never holds more than it can.

If nothing is due, the next delivery comes over the stream. So does one whose response was lost: the listener
reconnects, and does not name it (see ``listener_session``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreError
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import ClaimedDelivery, Delivery, build_delivery, get_delivery_id
from holdfast.server.deliveries.delivery_operations import complete
from holdfast.server.deliveries.delivery_watcher import ConnectedListener
from holdfast.server.deliveries.steps import StepBody
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.contract import History
from holdfast.stores.operations import LiveEvent, Run
from holdfast.stores.served_versions import make_served_name

log = logging.getLogger("holdfast.server")


async def complete_and_take_next(call: Call, id: str, output: Any, steps: Sequence[StepBody]) -> Delivery | None:
    """End the run of a delivery with a result, and take the next delivery for the listener whose stream has it."""
    watcher = call.tenant.dispatcher.watcher
    listener = watcher.get_listener(id)
    if listener is None or not await _can_take_next(call, id, listener):
        await complete(call, id, output, steps)
        return None
    session = listener.session

    def make_event(run: Run) -> LiveEvent:
        return session.make_delivered_event(run.epoch)

    request = ClaimNext(await session.ensure_registered(), make_served_name(session.address.name, ""), make_event)
    with watcher.ending(id) as ending:
        _, claimed = await complete(call, id, output, steps, request)
        ending.next_delivery = found = None if claimed is None else await _read_delivery(call, claimed)
    if found is None:
        return None
    call.platform.delivery_cache[call.tenant.namespace, get_delivery_id(found.run)] = found
    return await build_delivery(call, found, session.listener_id, session.address.lease)


async def _can_take_next(call: Call, id: str, listener: ConnectedListener) -> bool:
    session, dispatcher = listener.session, call.tenant.dispatcher
    if listener.unacknowledged or len(listener.delivery_ids) > listener.max_active or call.platform.closing.is_set():
        return False
    if dispatcher.has_nothing_due(session.address.name) or session.is_isolated(listener.delivery_ids - {id}):
        return False
    return await call.tenant.listeners.keep_alive(await session.ensure_registered(), session.address.lease)


async def _read_delivery(call: Call, claimed: ClaimedRun) -> ClaimedDelivery | None:
    run = claimed.run
    if claimed.is_new:
        return ClaimedDelivery(run, History([], {}, []))
    try:
        [history] = await call.store.get_histories([run.key])
    except StoreError as error:
        log.warning("run %r was claimed, and could not be handed over: %s", run.id, error)
        await call.tenant.dispatcher.release(run)
        return None
    return ClaimedDelivery(run, history)
