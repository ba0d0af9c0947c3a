"""An attempt of a transactional step: begin, let the step work, encode what it returned, commit both together.

What went wrong because of the database, and not because of the step (a connection that was cut, a full disk), is no
failed attempt: ``TransactionAborted`` is raised, nothing of it stays, and the step is run again without using up a
retry. The same holds for a commit of which nobody knows the outcome, once it is found that nothing was committed; until
then, the step waits.

Once the commit is on its way, it is not stopped any more: whoever gives up the step at that moment leaves it to end by
itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.background_tasks import forget_cancel_requests
from holdfast.codec import validate_size
from holdfast.core.records import Attempt
from holdfast.engine.journal_writer import MAX_PAUSE_S, MIN_PAUSE_S
from holdfast.engine.step_context import StepContext, set_connection
from holdfast.errors import StepTimedOut, StoreError, StoreUnavailable, UsageError
from holdfast.stores.contract import Store
from holdfast.stores.operations import OpStatus
from holdfast.stores.step_transactions import StepTransaction

if TYPE_CHECKING:
    from holdfast.engine.step_run import StepRun

log = logging.getLogger("holdfast.engine")

MAX_INTERRUPTIONS = 8
"""So often a step is run again because of the database; then that counts as its failure."""


class TransactionAborted(Exception):
    """The database has ended an attempt, and nothing of it stays. The cause tells why."""


async def run_in_transaction(
    step_run: StepRun, context: StepContext, attempt_number: int, call: Callable[[], Coroutine[Any, Any, Any]]
) -> tuple[bytes, Any]:
    """Make an attempt, and return the encoded value, which is committed, and the value decoded from it."""
    transaction = await _begin_transaction(step_run, attempt_number)
    set_connection(context, transaction.connection)
    try:
        value = await call()
        what = f"the output of step {context.name!r}"
        payload, decoded = step_run.call.step.output_codec.round_trip(value, what)
        validate_size(payload, what, step_run.host.max_value)
        await forget_cancel_requests()
        if step_run.is_cancelled:
            raise asyncio.CancelledError
    except (asyncio.CancelledError, StepTimedOut):
        # A plain function may still be at work in its thread.
        await transaction.abandon()
        raise
    except BaseException as error:
        was_lost = transaction.is_lost and isinstance(error, Exception)
        await transaction.roll_back()
        if was_lost:
            raise TransactionAborted from error
        raise
    finally:
        set_connection(context, None)
    await _commit_shielded(step_run, context, transaction, payload)
    return payload, decoded


async def _begin_transaction(step_run: StepRun, attempt_number: int) -> StepTransaction:
    """The transaction; a store that cannot be had is waited for, as by everything that a run does."""
    host, step = step_run.host, step_run.call.step
    if not host.store.supports(Store.step_transactions):
        raise UsageError(
            f"step {step.name!r} has transaction=True, and {host.store.url} has no database that could commit what it "
            f"does together with its outcome. Use a store that has one (sqlite:///… or postgresql://…). In a test, "
            f"replace the step by a mock, or run the workflow on a SQLite file of the test's own."
        )
    pause = 0.0
    while True:
        attempt = Attempt(step_run.command.position, attempt_number, at=host.clock.now(), name=step.name)
        try:
            transaction = await host.store.step_transactions.begin(
                step_run.driver.run, attempt, is_sync=not step.is_async, timeout_s=step.timeout_s
            )
        except StoreError as error:
            if not pause:
                log.warning("step %r of run %r waits for its transaction: %s", step.name, step_run.driver.run.id, error)
            pause = min(MAX_PAUSE_S, pause * 2 or MIN_PAUSE_S)
            await host.clock.sleep(pause)
            continue
        if transaction is None:
            step_run.raise_claim_lost()
        return transaction


async def _commit_shielded(
    step_run: StepRun, context: StepContext, transaction: StepTransaction, payload: bytes
) -> None:
    """See to it that it is committed, or known not to be."""
    host = step_run.host
    committing = host.loop.create_task(_commit_with_retries(step_run, transaction, payload))
    host.lingering_tasks.add(committing)
    committing.add_done_callback(host.lingering_tasks.discard)
    step_run.is_committing = True
    try:
        while not committing.done():
            try:
                await asyncio.shield(committing)
            except asyncio.CancelledError:
                if step_run.is_cancelled:
                    raise
                await forget_cancel_requests()  # it may be committed: what the step left behind does not stop that
    finally:
        step_run.is_committing = False
    verdict = committing.result()
    if verdict is OpStatus.FENCED:
        step_run.raise_claim_lost()
    if verdict is not OpStatus.DONE:
        raise TransactionAborted from StoreUnavailable(
            f"the database has ended the transaction of step {context.name!r} of run {step_run.driver.run.id!r} when "
            "it was to be committed; nothing of it stays"
        )


async def _commit_with_retries(step_run: StepRun, transaction: StepTransaction, payload: bytes) -> OpStatus:
    pause = 0.0
    while True:
        try:
            return await transaction.commit(payload)
        except StoreError as error:
            if step_run.driver.is_closed or (step_run.is_withdrawn and not step_run.call.has_compensation):
                await transaction.roll_back()  # it may not even have been tried, and be open
                return OpStatus.FENCED  # nobody waits for the outcome; whoever takes the run up finds it
            if not pause:
                log.warning(
                    "whether step %r of run %r was committed will be known when the store answers: %s",
                    step_run.call.step.name, step_run.driver.run.id, error,
                )  # fmt: skip
            pause = min(MAX_PAUSE_S, pause * 2 or MIN_PAUSE_S)
            await step_run.host.clock.sleep(pause)
