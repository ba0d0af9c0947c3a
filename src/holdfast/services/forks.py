"""Forking: a new run that shares the recorded beginning of another one, up to a step.

The fork's journal is a copy of what its origin had seen before that step's outcome. So the code is replayed to exactly
the same point; from there it goes its own way: the step runs again, or is taken to have returned ``with_output``.

A fork may use as much as its origin might, and has used nothing yet; so if what is kept ends with a model call that
was refused for want of a budget, the fork is told at once that it may ask again.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.codec import LARGEST, check_size, codec_for
from holdfast.codec.run_ids import LONGEST_ID
from holdfast.core.records import Kind, Record
from holdfast.core.seeded_random import SEED, fork_seed
from holdfast.errors import RunConflict, UsageError
from holdfast.services.approvals import BEGINS, Answer, user
from holdfast.services.lookup import find_run, no_run
from holdfast.services.run_start import checked_id
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import ForkRun, NewRun, Op, Run, SendSignal, Started, Verdict
from holdfast.stores.rules import calls_short, switched_off

NOT_GIVEN = object()
"""In place of an output that nobody has named; ``None`` is one."""


async def fork_run(
    store: Store,
    run_id: str,
    *,
    at: int | str | None,
    with_output: Any = NOT_GIVEN,
    new_id: str | None = None,
    max_value: int = LARGEST,
    fresh: bytes | None = None,
    by: str | None = None,
) -> Run:
    """Create the fork; it begins when a worker takes it up. ``fresh`` is its own part of the seed: random bytes.

    ``by`` is who says what a question is taken to have been answered with; the user of the operating system, if it is
    nobody else.
    """
    source = await find_run(store, run_id)
    [history] = await store.histories([source.key])
    usage = (await store.usages([run_id])).get(run_id)
    now = store.now()
    keep, record = _shared(history.records, run_id, at, with_output, user() if by is None else by, now, max_value)
    seed = fork_seed(source.seed, keep, fresh or secrets.token_bytes(SEED))
    new = _new(source, _made_up(run_id) if new_id is None else checked_id(new_id), seed, usage, now)
    ops: list[Op] = [ForkRun(run_id, new, keep, record)]
    short = calls_short(one for one in history.records if one.seq < keep)
    if short and await store.get(new.id) is not None:  # else somebody else would be told
        raise _taken(new.id)
    ops += [SendSignal(new.id, BUDGET_SIGNAL, b"null", f"fork {new.seed.hex()} {n}", now) for n in range(short)]
    [answer, *_] = await store.commit(ops)
    if answer is Verdict.SWITCHED_OFF:
        raise switched_off(source.workflow, f"run {run_id!r} was not forked")
    if not isinstance(answer, Started):
        raise no_run(store, run_id)
    if not answer.created:
        raise _taken(new.id)
    return answer.run


def _shared(
    records: Sequence[Record], run_id: str, at: int | str | None, with_output: Any, by: str, now: float, max_value: int
) -> tuple[int, Record | None]:
    """How many records the fork shares, and the outcome that the step is given in it, if it is given one."""
    if at is None:
        if with_output is not NOT_GIVEN:
            raise UsageError("fork: with_output is the output of a step: say which with `at`")
        return _behind(records), None
    old = find_step(records, at, run_id)
    cut = _begun(records, old) if with_output is NOT_GIVEN else old.seq
    # Not the step's own number: a retry may have left a gap in front of it, which the fork's own records fill.
    keep = _behind([one for one in records if one.seq < cut])
    if with_output is NOT_GIVEN:
        return keep, None
    what = f"the output of step {old.name!r}"
    is_answer = old.kind is Kind.APPROVAL
    payload = Answer.like(with_output, by, now).payload() if is_answer else codec_for(Any).encode(with_output, what)
    payload = check_size(payload, what, max_value)
    return keep, Record(keep, old.kind, old.position, old.name, True, payload, max(now, old.at), now)


def _new(source: Run, id: str, seed: bytes, usage: RunUsage | None, now: float) -> NewRun:
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
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        began_at=source.began_at,
        forked_from=source.id,
        rewound=source.rewound,
        budget=None if usage is None else usage.budget,
        previous=source.previous,
        version=source.version,
        by_delivery=source.by_delivery,
    )


def _made_up(run_id: str) -> str:
    """An id for a fork of this run, which is no longer than an id may be, however often a fork is forked."""
    end = f"-fork-{secrets.token_hex(3)}"
    return run_id[: LONGEST_ID - len(end)] + end


def _taken(run_id: str) -> RunConflict:
    return RunConflict(f"the id {run_id!r} is taken: give the fork another one", run_id)


def _behind(records: Sequence[Record]) -> int:
    """The ``seq`` of the next record."""
    return records[-1].seq + 1 if records else 0


def _begun(records: Sequence[Record], old: Record) -> int:
    """Where what a step does anew has begun: a question begins before its answer, and with it the time that it has."""
    if old.kind is Kind.APPROVAL:
        for record in records:
            if record.name == BEGINS and record.position > old.position and record.seq < old.seq:
                return record.seq
    return old.seq


def find_step(records: Sequence[Record], at: int | str, run_id: str) -> Record:
    """The record of the step with this number (as ``holdfast show`` tells it) or name."""
    steps = [record for record in records if record.kind in (Kind.STEP, Kind.CHILD, Kind.SIGNAL, Kind.APPROVAL)]
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
