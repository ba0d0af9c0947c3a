"""An attempt of a transactional step: begin, call the step, encode its output, commit the output and the changes.

A failure of the database, and not of the step (a lost connection, a full disk), is not a failed attempt:
``TransactionAborted`` is raised, nothing of the attempt is kept, and the step runs again without using up a retry. The
same holds for a commit with an unknown outcome, when it turns out that nothing was committed; until then, the step
waits.

A commit that has started is never stopped: if the step is cancelled meanwhile, the commit ends by itself.
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
"""How often a step runs again because of the database; after that, it is a failure of the step."""


class TransactionAborted(Exception):
    """The database has ended an attempt, and nothing of it is kept. The cause says why."""


async def run_in_transaction(
    step_run: StepRun, context: StepContext, attempt_number: int, call: Callable[[], Coroutine[Any, Any, Any]]
) -> tuple[bytes, Any]:
    """Make an attempt, and return the committed output: encoded, and decoded again."""
    transaction = await _begin_transaction(step_run, attempt_number)
    set_connection(context, transaction.connection)
    try:
        value = await call()
        subject = f"the output of step {context.name!r}"
        payload, decoded = step_run.call.step.output_codec.round_trip(value, subject)
        validate_size(payload, subject, step_run.host.max_value)
        await forget_cancel_requests()
        if step_run.is_cancelled:
            raise asyncio.CancelledError
    except (asyncio.CancelledError, StepTimedOut):
        # A plain function may still be running in its thread.
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
    """Begin the transaction; waits for a store that is unavailable, like everything that a run does."""
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
    """Commit, and wait until the outcome of the commit is known."""
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
                await forget_cancel_requests()  # a cancel request that the step left behind does not stop the commit
    finally:
        step_run.is_committing = False
    status = committing.result()
    if status is OpStatus.FENCED:
        step_run.raise_claim_lost()
    if status is not OpStatus.DONE:
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
                await transaction.roll_back()  # it may be open still, if the commit was not even tried
                return OpStatus.FENCED  # the outcome is not wanted here; the next worker that holds the run finds it
            if not pause:
                log.warning(
                    "whether step %r of run %r was committed will be known when the store answers: %s",
                    step_run.call.step.name, step_run.driver.run.id, error,
                )  # fmt: skip
            pause = min(MAX_PAUSE_S, pause * 2 or MIN_PAUSE_S)
            await step_run.host.clock.sleep(pause)
