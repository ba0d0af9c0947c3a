"""An attempt of a transactional step: begin, let the step work, encode what it returned, commit both together.

What went wrong because of the database, and not because of the step (a connection that was cut, a full disk), is no
failed attempt: ``Interrupted`` is raised, nothing of it stays, and the step is run again without using up a retry. The
same holds for a commit of which nobody knows the outcome, once it is found that nothing was committed; until then,
the step waits.

Once the commit is on its way, it is not stopped any more: whoever gives up the step at that moment leaves it to end by
itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import check_size
from holdfast.core.records import Attempt
from holdfast.engine.journal_writer import FIRST_PAUSE, LONGEST_PAUSE
from holdfast.errors import StepTimedOut, StoreError, StoreUnavailable
from holdfast.stores.operations import Verdict
from holdfast.stores.step_transactions import StepTransaction

if TYPE_CHECKING:
    from holdfast.engine.step_context import StepContext
    from holdfast.engine.step_run import StepRun

log = logging.getLogger("holdfast.engine")

MOST_INTERRUPTIONS = 8
"""So often a step is run again because of the database; then that counts as its failure."""


class Interrupted(Exception):
    """The database has ended an attempt, and nothing of it stays. The cause tells why."""


async def in_transaction(
    run: StepRun, context: StepContext, number: int, call: Callable[[], Coroutine[Any, Any, Any]]
) -> tuple[bytes, Any]:
    """Make an attempt, and return the encoded value, which is committed, and the value decoded from it."""
    transaction = await _begun(run, number)
    context.lend(transaction.connection)
    try:
        value = await call()
        what = f"the output of step {context.name!r}"
        payload, decoded = run.call.step.output.record(value, what)
        check_size(payload, what, run.host.max_value)
        await forget_cancel_requests()
        if run.is_called_off:
            raise asyncio.CancelledError
    except (asyncio.CancelledError, StepTimedOut):
        # A plain function may still be at work in its thread.
        await transaction.abandon()
        raise
    except BaseException as error:
        was_lost = transaction.is_lost and isinstance(error, Exception)
        await transaction.roll_back()
        if was_lost:
            raise Interrupted from error
        raise
    finally:
        context.lend(None)
    await _committed(run, context, transaction, payload)
    return payload, decoded


async def _begun(run: StepRun, number: int) -> StepTransaction:
    """The transaction; a store that cannot be had is waited for, as by everything that a run does."""
    host, step = run.host, run.call.step
    pause = 0.0
    while True:
        attempt = Attempt(run.command.position, number, at=host.clock.now(), name=step.name)
        try:
            transaction = await host.store.begin_step(
                run.driver.run, attempt, plain=not step.is_async, limit=step.timeout
            )
        except StoreError as error:
            if not pause:
                log.warning("step %r of run %r waits for its transaction: %s", step.name, run.driver.run.id, error)
            pause = min(LONGEST_PAUSE, pause * 2 or FIRST_PAUSE)
            await host.clock.sleep(pause)
            continue
        if transaction is None:
            run.lose()
        return transaction


async def _committed(run: StepRun, context: StepContext, transaction: StepTransaction, payload: bytes) -> None:
    """See to it that it is committed, or known not to be."""
    host = run.host
    committing = host.loop.create_task(_commit(run, transaction, payload))
    host.stragglers.add(committing)
    committing.add_done_callback(host.stragglers.discard)
    run.is_committing = True
    try:
        while not committing.done():
            try:
                await asyncio.shield(committing)
            except asyncio.CancelledError:
                if run.is_called_off:
                    raise
                await forget_cancel_requests()  # it may be committed: what the step left behind does not stop that
    finally:
        run.is_committing = False
    verdict = committing.result()
    if verdict is Verdict.FENCED:
        run.lose()
    if verdict is not Verdict.DONE:
        raise Interrupted from StoreUnavailable(
            f"the database has ended the transaction of step {context.name!r} of run {run.driver.run.id!r} when it was "
            f"to be committed; nothing of it stays"
        )


async def _commit(run: StepRun, transaction: StepTransaction, payload: bytes) -> Verdict:
    pause = 0.0
    while True:
        try:
            return await transaction.commit(payload)
        except StoreError as error:
            if run.driver.gone or (run.withdrawn and not run.call.is_undoable):
                await transaction.roll_back()  # it may not even have been tried, and be open
                return Verdict.FENCED  # nobody waits for the outcome; whoever takes the run up finds it
            if not pause:
                log.warning(
                    "whether step %r of run %r was committed will be known when the store answers: %s",
                    run.call.step.name, run.driver.run.id, error,
                )  # fmt: skip
            pause = min(LONGEST_PAUSE, pause * 2 or FIRST_PAUSE)
            await run.host.clock.sleep(pause)
