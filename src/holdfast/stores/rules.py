"""Decisions that every store makes alike: the fence, harmless repeats, requests, links, approvals, and budgets.

A store reads a row and asks here what the contract says about it, so the stores cannot drift apart. The rules for
worker deaths are in ``worker_deaths``, those for limited queues in ``admission``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum, IntEnum

from holdfast.admission.usage import BUDGET_SIGNAL, BudgetLimits
from holdfast.core.records import Record, RecordKind, Rewind, RewindPoint
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.errors import BudgetExceeded
from holdfast.stores import live_events
from holdfast.stores.approvals import ANSWER_PREFIX, ApprovalState, RemindApproval, RequestApproval, is_answer
from holdfast.stores.operations import CancelState, FinishRun, NewRun, OpStatus, ParkRun, ReopenRun, Run
from holdfast.stores.run_errors import get_error_text

REOPENABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.DEAD})


class LinkState(IntEnum):
    """Whether the awaited end of a run has reached the run that waits for it. The numbers are stored."""

    NOTIFIED = 0
    """The end is, or was, in the mailbox."""
    PENDING = 1
    LATE = 2
    """The end was not delivered: the other run had ended before the link was made, or the waiting run had ended. A
    command that asks again gets the end as its answer. The link only tells a retry which run was awaited."""


# The fence, and harmless repeats


def can_write(state: str, epoch: int, op_epoch: int) -> bool:
    """Whether an operation under ``op_epoch`` may still change a run that is in ``state`` under ``epoch``."""
    return epoch == op_epoch and state == "running"  # on the hot path: comparing with a member takes longer


def is_finish_repeat(state: str, epoch: int, op: FinishRun) -> bool:
    """Whether ``op`` was applied before.

    The state must match too: ``Workers.reap_dead`` may have ended the run as ``dead`` under the same epoch.
    """
    return epoch == op.epoch and state == op.state and op.state in TERMINAL_STATES


def is_park_repeat(state: str, epoch: int, op_epoch: int) -> bool:
    """Whether the run is already parked under the same epoch."""
    return epoch == op_epoch and state == RunState.WAITING


def is_waiting_for(op: ParkRun, name: str, position: int | None) -> bool:
    """Whether a parking run waits for this signal, end of a run, or answer."""
    if position is None:
        return name in op.signal_names
    return name.removeprefix(ANSWER_PREFIX) in op.approval_ids if is_answer(name) else position in op.awaited_positions


# Starting


def make_run(
    new: NewRun, key: int, owner: int | None, now: float, previous: str, has_budget: bool, is_limited: bool = False
) -> Run:
    """The row of a new run, held by ``owner`` if there is one."""
    is_held = owner is not None
    return Run(
        key=key, id=new.id, workflow=new.workflow, queue=new.queue,
        state=RunState.RUNNING if is_held else RunState.PENDING, epoch=1 if is_held else 0, owner=owner,
        starter=new.starter, delivery_count=0, max_deliveries=new.max_deliveries,
        wake_at=None if is_held else get_first_wake_at(new, now), waits_for="", priority=new.priority,
        deadline=new.deadline, inputs=new.inputs, digest=new.digest, seed=new.seed, output=None, error=None,
        tags=new.tags, python_version=new.python_version, created_at=new.created_at, finished_at=None,
        clock_started_at=new.created_at if new.clock_started_at is None else new.clock_started_at, parent=new.parent,
        forked_from=new.forked_from, rewind_points=new.rewind_points, session=new.session,
        previous_run=previous, has_budget=has_budget, version=new.version, queue_key=new.queue_key,
        is_limited=is_limited, is_delivery=new.is_delivery, trace_parent=new.trace_parent,
    )  # fmt: skip


def get_first_wake_at(run: NewRun, now: float) -> float:
    """The ``wake_at`` of a run created as ``pending``. A start time in the past means now."""
    return max(run.available_at, min(run.created_at, now))


def can_inputs_differ(new: NewRun) -> bool:
    """Whether an existing run with the same id may have other inputs: a debounced start may have replaced them."""
    return new.max_debounce_s is not None


def get_debounced_wake_at(new: NewRun, created_at: float, now: float) -> float:
    """The ``wake_at`` of a run created at ``created_at`` after a debounced start joins it."""
    latest = get_first_wake_at(new, now)
    return latest if new.max_debounce_s is None else min(latest, created_at + new.max_debounce_s)


def is_linked(link_state: LinkState | None, state: str) -> bool:
    """Whether the end of an awaited run in ``state`` is or will be in the mailbox of the run that waits.

    ``link_state`` is the state of the link between the two, if there is one.
    """
    return link_state in (LinkState.NOTIFIED, LinkState.PENDING) or state not in TERMINAL_STATES


def make_end_payload(output: bytes | None, error: bytes | None) -> bytes:
    """The payload of the signal that brings the end of a run to the run that waits for it."""
    return output if output is not None else error if error is not None else b"null"


# Requests


def decide_cancel(state: str, cancel_state: str, *, is_paused: bool, has_same_seed: bool) -> OpStatus:
    """``DONE`` if a cancel takes effect; otherwise the answer to it."""
    if not has_same_seed:
        return OpStatus.REFUSED
    if state in TERMINAL_STATES:
        return (
            OpStatus.DUPLICATE if state == RunState.CANCELLED and cancel_state != CancelState.NONE else OpStatus.ENDED
        )
    return OpStatus.DUPLICATE if cancel_state != CancelState.NONE and not is_paused else OpStatus.DONE


def is_cancelled_at_once(state: str, epoch: int, *, is_delivery: bool) -> bool:
    """Whether a cancel ends the run without its code: no worker ever claimed it, or it has no code."""
    return is_delivery or (state == RunState.PENDING and epoch == 0)


def decide_pause(state: str, *, is_paused: bool, should_pause: bool) -> OpStatus:
    """``DONE`` if a pause (``should_pause``) or a resume takes effect; otherwise the answer to it."""
    if state in TERMINAL_STATES:
        return OpStatus.ENDED
    return OpStatus.DUPLICATE if is_paused is should_pause else OpStatus.DONE


def should_keep_wake_at(state: str, epoch: int) -> bool:
    """Whether a resumed run still waits for the time for which it was started."""
    return state == RunState.PENDING and epoch == 0


def decide_reopen(state: str, rewind: Rewind | None, *, rerun_once_steps: bool) -> OpStatus:
    """``DONE`` if a run can be reopened; otherwise why not."""
    if state not in REOPENABLE:
        return OpStatus.ENDED
    if rewind is not None and rewind.is_compensated:
        return OpStatus.COMPENSATED
    if rewind is not None and rewind.once_seqs and not rerun_once_steps:
        return OpStatus.REFUSED
    return OpStatus.DONE


def is_settlement_stale(op: ReopenRun, epoch: int) -> bool:
    """Whether the run was claimed after the person who settles one of its steps looked at it."""
    return op.settlement is not None and op.settlement.epoch != epoch


def get_reopened_cancel_state(is_recorded: bool) -> CancelState:
    """The cancel state of a reopened run: if the record of a cancel stays, it cancels the run's code again."""
    return CancelState.RECORDED if is_recorded else CancelState.NONE


class LinkAction(Enum):
    """What to do with a link of a reopened run.

    Only for links to runs whose end is not in its journal, or will not be after the rewind.
    """

    KEEP = "keep"
    AWAIT = "await"
    """Wait for the linked run as if it had just been started."""
    DROP = "drop"
    """Remove the link, and the end from the mailbox."""


def add_rewind_point(points: tuple[RewindPoint, ...], rewind: Rewind | None) -> tuple[RewindPoint, ...]:
    """The rewind points of a run after another retry."""
    return points if rewind is None or not rewind.failed_seqs else (*points, rewind.point)


def choose_link_action(
    *, is_after_rewind: bool, is_end_rewound: bool, is_reopened: bool, has_ended: bool
) -> LinkAction:
    """Choose what a retry does with a link.

    ``is_after_rewind``: the waiting command was issued because of records that the retry removes. ``is_end_rewound``:
    the end was recorded, and the retry removes that record. ``is_reopened``: the linked run is reopened with this one.
    """
    if is_after_rewind:
        return LinkAction.DROP
    if is_reopened or not has_ended:
        return LinkAction.AWAIT
    return LinkAction.DROP if is_end_rewound else LinkAction.KEEP


# Approvals


def should_request_again(state: ApprovalState, withdrawn_epoch: int, epoch: int) -> bool:
    """Whether requesting an existing approval again opens it anew.

    ``withdrawn_epoch`` is the epoch under which its run withdrew it, if it did.
    """
    return state is ApprovalState.WITHDRAWN and epoch > withdrawn_epoch


def decide_reminder(state: ApprovalState, reminder_count: int, op: RemindApproval) -> tuple[OpStatus, bool]:
    """The answer to a reminder, and whether it changes anything: it may be a repeat."""
    if state is not ApprovalState.OPEN:
        return OpStatus.REFUSED, False
    return OpStatus.DONE, op.reminder_count > reminder_count


def decide_withdrawal(state: ApprovalState) -> tuple[OpStatus, bool]:
    """The answer to a withdrawal, and whether it changes anything: it may be a repeat."""
    return OpStatus.REFUSED if state is ApprovalState.ANSWERED else OpStatus.DONE, state is ApprovalState.OPEN


def decide_answer(state: ApprovalState, run_state: str) -> OpStatus:
    """``DONE`` if an answer is accepted; otherwise why not."""
    if state is ApprovalState.ANSWERED:
        return OpStatus.DUPLICATE
    return OpStatus.ENDED if state is ApprovalState.WITHDRAWN or run_state in TERMINAL_STATES else OpStatus.DONE


# Live events that stores write themselves: kind and data


def make_requested_event(op: RequestApproval) -> tuple[str, bytes]:
    """The event that an approval was requested."""
    return live_events.APPROVAL_REQUESTED, json.dumps(op.id).encode()


def make_reminded_event(op: RemindApproval) -> tuple[str, bytes]:
    """The event that people were reminded of an approval."""
    data = {"id": op.id, "assignee": op.assignee, "reminder_count": op.reminder_count}
    return live_events.APPROVAL_REMINDED, json.dumps(data).encode()


def make_withdrawn_event(approval: str) -> tuple[str, bytes]:
    """The event that an approval is no longer open, or that its answer no longer counts."""
    return live_events.APPROVAL_WITHDRAWN, json.dumps(approval).encode()


def make_reopened_event(last_kept_seq: int) -> tuple[str, bytes]:
    """The event that a run was reopened, with the ``seq`` of the last record that stays."""
    return live_events.REOPENED, json.dumps(last_kept_seq).encode()


# Usage and budgets


def has_budget(new: NewRun, inherits_budget: bool) -> bool:
    """Whether a new run must reserve its model calls; ``inherits_budget``: its parent must."""
    return inherits_budget or new.budget is not None


def can_be_parent(key: int, child_key: int) -> bool:
    """Whether a run can be the parent of another: it must have existed first."""
    return key < child_key


def should_release_reservation(record: Record) -> bool:
    """Whether appending this record releases the reservation for its position."""
    return record.kind.has_position


def decide_budget(state: str, budget: BudgetLimits | None) -> OpStatus:
    """``DONE`` if a run with this budget can get another one; otherwise why not."""
    if state in TERMINAL_STATES:
        return OpStatus.ENDED
    return OpStatus.REFUSED if budget is None else OpStatus.DONE


def encode_budget(budget: BudgetLimits) -> bytes:
    """The payload of ``BUDGET_SIGNAL``, which lets a run whose calls were refused reserve again under this budget."""
    return json.dumps(budget._asdict()).encode()


def count_refused_calls(records: Iterable[Record]) -> int:
    """How many refused model calls in these records have not received ``BUDGET_SIGNAL`` since."""
    error_type = f"{BudgetExceeded.__module__}.{BudgetExceeded.__qualname__}"
    refused_count = 0
    for record in records:
        if record.kind is RecordKind.SIGNAL and record.name == BUDGET_SIGNAL:
            refused_count = max(0, refused_count - 1)
        elif record.kind is RecordKind.STEP and not record.ok and get_error_text(record.payload).startswith(error_type):
            refused_count += 1
    return refused_count
