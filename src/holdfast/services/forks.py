"""Forks: a new run that shares the recorded beginning of another one, up to a step.

The fork's journal is a copy of the records that its origin had before that step's outcome. So the code is replayed to
exactly the same point. From there the fork continues on its own: the step runs again, or returns ``with_output``.

A fork has the same budget as its origin, and has used nothing yet. If the shared records end with a model call that
was refused because of the budget, the fork gets a signal to try again at once.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.codec.run_ids import NOT_GIVEN as NOT_GIVEN
from holdfast.core.records import Record, RecordKind
from holdfast.core.seeded_random import SEED_BYTES, make_fork_seed
from holdfast.errors import RunConflict, UsageError
from holdfast.services.approvals import APPROVAL_START_STEP, Answer, get_os_user
from holdfast.services.lookup import find_run, make_run_not_found
from holdfast.services.run_start import validate_run_id
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.erasure import is_erased
from holdfast.stores.operations import ForkRun, NewRun, Op, OpStatus, Run, SendSignal, StartResult
from holdfast.stores.rules import count_refused_calls
from holdfast.stores.run_errors import make_disabled_error, make_erased_error
from holdfast.trace_context import get_current_trace_parent


async def fork_run(
    store: Store,
    run_id: str,
    *,
    at: int | str | None,
    with_output: Any = NOT_GIVEN,
    new_id: str | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
    entropy: bytes | None = None,
    by: str | None = None,
) -> Run:
    """Create the fork, for any worker to claim.

    ``entropy`` is the fork's own part of the seed: random bytes. ``by`` is who answers if ``with_output`` is an answer
    to an approval; default: the user of the operating system.
    """
    source = await find_run(store, run_id)
    if is_erased(source):
        raise make_erased_error(run_id)
    [history] = await store.get_histories([source.key])
    usage = (await store.get_usages([run_id])).get(run_id)
    now = store.now()
    keep, record = _plan_fork(
        history.records, run_id, at, with_output, get_os_user() if by is None else by, now, max_value
    )
    seed = make_fork_seed(source.seed, keep, entropy or secrets.token_bytes(SEED_BYTES))
    new = _build_fork(source, _generate_id(run_id) if new_id is None else validate_run_id(new_id), seed, usage, now)
    ops: list[Op] = [ForkRun(run_id, new, keep, record)]
    refused_count = count_refused_calls(one for one in history.records if one.seq < keep)
    if refused_count and await store.get_run(new.id) is not None:  # the signals below would go to another run
        raise _make_id_conflict(new.id)
    ops += [SendSignal(new.id, BUDGET_SIGNAL, b"null", f"fork {new.seed.hex()} {n}", now) for n in range(refused_count)]
    [result, *_] = await store.commit(ops)
    if result is OpStatus.WORKFLOW_DISABLED:
        raise make_disabled_error(source.workflow, f"run {run_id!r} was not forked")
    if result is OpStatus.ERASED:
        raise make_erased_error(run_id)
    if not isinstance(result, StartResult):
        raise make_run_not_found(store, run_id)
    if not result.is_new:
        raise _make_id_conflict(new.id)
    return result.run


def _plan_fork(
    records: Sequence[Record], run_id: str, at: int | str | None, with_output: Any, by: str, now: float, max_value: int
) -> tuple[int, Record | None]:
    """How many records the fork shares, and the step's outcome in it, if one is given."""
    if at is None:
        if with_output is not NOT_GIVEN:
            raise UsageError("fork: with_output is the output of a step: say which with `at`")
        return _get_next_seq(records), None
    old = find_step(records, at, run_id)
    cut = _find_step_start(records, old) if with_output is NOT_GIVEN else old.seq
    # Not the step's own seq: a retry may have left a gap before it, which the fork's own records fill.
    keep = _get_next_seq([one for one in records if one.seq < cut])
    if with_output is NOT_GIVEN:
        return keep, None
    subject = f"the output of step {old.name!r}"
    is_answer = old.kind is RecordKind.APPROVAL
    payload = (
        Answer.from_value(with_output, by, now).encode() if is_answer else codec_for(Any).encode(with_output, subject)
    )
    payload = validate_size(payload, subject, max_value)
    return keep, Record(keep, old.kind, old.position, old.name, True, payload, max(now, old.at), now)


def _build_fork(source: Run, id: str, seed: bytes, usage: RunUsage | None, now: float) -> NewRun:
    return NewRun(
        id=id,
        workflow=source.workflow,
        inputs=source.inputs,
        digest=source.digest,
        seed=seed,
        created_at=now,
        queue=source.queue,
        queue_key=source.queue_key,
        priority=source.priority,
        deadline=None if source.deadline is None else now + source.deadline - source.created_at,
        max_deliveries=source.max_deliveries,
        tags=source.tags,
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        clock_started_at=source.clock_started_at,
        forked_from=source.id,
        rewind_points=source.rewind_points,
        budget=None if usage is None else usage.budget,
        previous_run=source.previous_run,
        version=source.version,
        is_delivery=source.is_delivery,
        trace_parent=get_current_trace_parent(),
    )


def _generate_id(run_id: str) -> str:
    """An id for a fork of this run. It stays within the maximum length, even for forks of forks."""
    end = f"-fork-{secrets.token_hex(3)}"
    return run_id[: MAX_ID_LENGTH - len(end)] + end


def _make_id_conflict(run_id: str) -> RunConflict:
    return RunConflict(f"the id {run_id!r} is taken: give the fork another one", run_id)


def _get_next_seq(records: Sequence[Record]) -> int:
    """The ``seq`` after the last record."""
    return records[-1].seq + 1 if records else 0


def _find_step_start(records: Sequence[Record], old: Record) -> int:
    """The ``seq`` from which a step runs again: an approval starts before its answer, and so does its timeout."""
    if old.kind is RecordKind.APPROVAL:
        for record in records:
            if record.name == APPROVAL_START_STEP and record.position > old.position and record.seq < old.seq:
                return record.seq
    return old.seq


def find_step(records: Sequence[Record], at: int | str, run_id: str) -> Record:
    """The record of the step with this number (as in ``holdfast show``) or name. Raises ``UsageError``."""
    steps = [
        record
        for record in records
        if record.kind in (RecordKind.STEP, RecordKind.CHILD, RecordKind.SIGNAL, RecordKind.APPROVAL)
    ]
    if isinstance(at, int):
        found = [record for record in steps if record.position + 1 == at]
    else:
        found = [record for record in steps if record.name == at]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{record.position + 1} ({record.name})" for record in steps[:20]) or "none"
    if found:
        numbers = ", ".join(str(record.position + 1) for record in found[:20])
        raise UsageError(
            f"run {run_id!r} has {len(found)} steps named {at!r}: say which by its number, one of {numbers}"
        )
    raise UsageError(f"run {run_id!r} has no recorded step {at!r}; recorded: {known}{' …' if len(steps) > 20 else ''}")
