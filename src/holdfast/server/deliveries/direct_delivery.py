"""Runs that are delivered as they are started: to a listener that waits, in the commit that starts them.

This saves the search for the run, and its claim. ``Dispatcher.choose_listener`` chooses only listeners that no other
run waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import ClaimedDelivery
from holdfast.stores.contract import History
from holdfast.stores.operations import Op, OpResult, StartResult, StartRun

FIRST_EPOCH = 1


async def commit_start(call: Call, ops: Sequence[Op]) -> list[OpResult]:
    """Commit the start of a run by delivery. Listeners get it now, or look for it."""
    [op] = ops
    assert isinstance(op, StartRun)
    dispatcher = call.tenant.dispatcher
    is_delayed = op.run.available_at > call.store.now() or op.run.max_debounce_s is not None
    listener = None if is_delayed else await dispatcher.choose_listener(op.run.workflow)
    if listener is None:
        answers = await call.commit(ops)
        dispatcher.notify_start(op.run.workflow)
        return answers
    try:
        worker = await listener.session.ensure_registered()
        event = listener.session.make_delivered_event(FIRST_EPOCH)
        [answer] = await call.commit([op._replace(claim_as=worker, claim_event=event)])
    except BaseException:
        dispatcher.rejoin(listener)
        raise
    run = answer.run if isinstance(answer, StartResult) and answer.is_new else None
    if run is not None and (run.owner, run.epoch) == (worker, FIRST_EPOCH):
        await dispatcher.hand_over(listener, ClaimedDelivery(run, History([], {}, [])))
    else:
        dispatcher.rejoin(listener)
        dispatcher.notify_start(op.run.workflow)
    return [answer]
