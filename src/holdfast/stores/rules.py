"""What every store decides alike: the fence, harmless repeats, requests, links, budgets, and worker deaths.

A store reads a row and asks here what the contract says about it, so the stores cannot drift apart.

**Suspects.** When a worker dies that held several runs, it is unknown which of them killed it. So the death counts
against none of them. It raises the *suspicion* of each that has recorded nothing since. After the first death the runs
are claimed at once and together, as if nothing had happened: most deaths are deploys and machines that fail. After the
next one they are *isolated*: a claim takes only a group of the most suspicious ones, then a smaller group, and in the
end one run alone (``get_group_size``). A death counts only if the worker held a single run, and ``max_deliveries`` of
these make the run ``dead``. The store knows from its rows how many runs a worker held, whatever the worker intended. A
record, a park, or a retry sets a run's suspicion back to 0. So the harmless runs leave the groups one by one, and the
run that kills its workers remains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.admission.usage import BUDGET_SIGNAL, BudgetLimits
from holdfast.core.records import Record, RecordKind, Rewind, RewindPoint
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.errors import BudgetExceeded, StepOutcomeUnknown, WorkflowDisabled
from holdfast.stores import live_events
from holdfast.stores.approvals import ANSWER_PREFIX, ApprovalState, RemindApproval, RequestApproval, is_answer
from holdfast.stores.operations import CancelState, FinishRun, LiveEvent, NewRun, OpStatus, ParkRun, ReopenRun, Run

REOPENABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.DEAD})


class LinkState(IntEnum):
    """What a link knows of the end that its run waits for. The numbers are stored."""

    NOTIFIED = 0
    """It has been put into the mailbox."""
    PENDING = 1
    LATE = 2
    """There was nobody to tell: the other run had ended before it was asked for, or the one that waits had. A command
    that asks again is answered with the end; the link only remembers for a retry which run it was."""


# The fence, and harmless repeats


def can_write(state: str, epoch: int, fence: int) -> bool:
    """Whether an operation under ``fence`` may still change a run that is in ``state`` under ``epoch``."""
    return epoch == fence and state == "running"


def is_finish_repeat(state: str, epoch: int, op: FinishRun) -> bool:
    """Whether ``op`` had been carried out before.

    The state must agree: ``Workers.reap_dead`` can have ended the run as ``dead`` under the same epoch.
    """
    return epoch == op.epoch and state == op.state and op.state in TERMINAL_STATES


def is_park_repeat(state: str, epoch: int, fence: int) -> bool:
    """Whether the run is parked already, under the same epoch."""
    return epoch == fence and state == "waiting"


def is_waiting_for(op: ParkRun, name: str, position: int | None) -> bool:
    """Whether a run that parks waits for this: a signal, the end of a run, or an answer."""
    if position is None:
        return name in op.signal_names
    return name.removeprefix(ANSWER_PREFIX) in op.approval_ids if is_answer(name) else position in op.awaited_positions


# Starting


def make_run(
    new: NewRun, key: int, owner: int | None, now: float, previous: str, has_budget: bool, is_limited: bool = False
) -> Run:
    """The row of a run that is created, held by ``owner`` if that is given."""
    held = owner is not None
    return Run(
        key=key, id=new.id, workflow=new.workflow, queue=new.queue,
        state=RunState.RUNNING if held else RunState.PENDING, epoch=1 if held else 0, owner=owner,
        starter=new.starter, delivery_count=0, max_deliveries=new.max_deliveries,
        wake_at=None if held else get_first_wake_at(new, now), waits_for="", priority=new.priority,
        deadline=new.deadline, inputs=new.inputs, digest=new.digest, seed=new.seed, output=None, error=None,
        tags=new.tags, python_version=new.python_version, created_at=new.created_at, finished_at=None,
        clock_started_at=new.created_at if new.clock_started_at is None else new.clock_started_at, parent=new.parent,
        forked_from=new.forked_from, rewind_points=new.rewind_points, session=new.session,
        previous_run=previous, has_budget=has_budget, version=new.version, queue_key=new.queue_key,
        is_limited=is_limited, is_delivery=new.is_delivery,
    )  # fmt: skip


def get_first_wake_at(run: NewRun, now: float) -> float:
    """The ``wake_at`` of a run that is created ``pending``: a start time in the past means now."""
    return max(run.available_at, min(run.created_at, now))


def can_inputs_differ(new: NewRun) -> bool:
    """Whether a run found under the id of ``new`` may have other inputs: a debounced start can have replaced them."""
    return new.max_debounce_s is not None


def get_debounced_wake_at(new: NewRun, created_at: float, now: float) -> float:
    """The ``wake_at`` of a run that was created then, and is joined by a start that debounces."""
    latest = get_first_wake_at(new, now)
    return latest if new.max_debounce_s is None else min(latest, created_at + new.max_debounce_s)


def is_linked(link_state: LinkState | None, state: str) -> bool:
    """Whether a run that waits for one in ``state`` will find, or has found, its end in the mailbox.

    ``link_state`` is what the link between the two knows, if there is one.
    """
    return link_state in (LinkState.NOTIFIED, LinkState.PENDING) or state not in TERMINAL_STATES


def make_end_payload(output: bytes | None, error: bytes | None) -> bytes:
    """What the mailbox of a run that waits is told of an end."""
    return output if output is not None else error if error is not None else b"null"


def encode_child_failure(run_id: str, state: RunState, error: bytes | None) -> bytes:
    """What is recorded of a run that ended without a result: enough to raise what its own caller would have seen."""
    return json.dumps({"child": run_id, "state": state, "error": None if error is None else error.decode()}).encode()


def is_child_failure(payload: bytes | None) -> bool:
    """Whether this was recorded of such a run, and not of one that could not be started, or is not the one meant."""
    return (payload or b"").startswith(b'{"child": ')


# Requests


def decide_cancel(state: str, cancel_state: str, *, is_paused: bool, has_same_seed: bool) -> OpStatus:
    """Whether a cancel is to be carried out (``DONE``), and what else its answer is."""
    if not has_same_seed:
        return OpStatus.REFUSED
    if state in TERMINAL_STATES:
        return (
            OpStatus.DUPLICATE if state == RunState.CANCELLED and cancel_state != CancelState.NONE else OpStatus.ENDED
        )
    return OpStatus.DUPLICATE if cancel_state != CancelState.NONE and not is_paused else OpStatus.DONE


def is_cancelled_at_once(state: str, epoch: int, *, is_delivery: bool = False) -> bool:
    """Whether there is nothing to be undone by the run's code: nobody has ever claimed it, or it has none."""
    return is_delivery or (state == "pending" and epoch == 0)


def decide_pause(state: str, *, is_paused: bool, should_pause: bool) -> OpStatus:
    """Whether a pause (``should_pause``) or its end is to be carried out (``DONE``), and what else its answer is."""
    if state in TERMINAL_STATES:
        return OpStatus.ENDED
    return OpStatus.DUPLICATE if is_paused is should_pause else OpStatus.DONE


def should_keep_wake_at(state: str, epoch: int) -> bool:
    """Whether a run that is resumed has still to wait for the time that it was started for."""
    return state == "pending" and epoch == 0


def decide_reopen(state: str, rewind: Rewind | None, *, rerun_once_steps: bool) -> OpStatus:
    """Whether a run can be reopened (``DONE``), and why not."""
    if state not in REOPENABLE:
        return OpStatus.ENDED
    if rewind is not None and rewind.is_compensated:
        return OpStatus.COMPENSATED
    if rewind is not None and rewind.once_seqs and not rerun_once_steps:
        return OpStatus.REFUSED
    return OpStatus.DONE


def is_settlement_stale(op: ReopenRun, epoch: int) -> bool:
    """Whether somebody has taken the run up since the person looked who settles a step of it."""
    return op.settlement is not None and op.settlement.epoch != epoch


def get_reopened_cancel_state(is_recorded: bool) -> CancelState:
    """Whether a reopened run is to be cancelled: if the record of that stays, its code is cancelled by it again."""
    return CancelState.RECORDED if is_recorded else CancelState.NONE


class LinkAction(Enum):
    """What becomes of the link to a run whose end is not in the journal of a run that is reopened."""

    KEEP = "leave"
    AWAIT = "await"
    """It is awaited as if it had just been started."""
    DROP = "drop"
    """There is no link any more, nor an end in the mailbox."""


def add_rewind_point(points: tuple[RewindPoint, ...], rewind: Rewind | None) -> tuple[RewindPoint, ...]:
    """Where retries have gone back to, after one more."""
    return points if rewind is None or not rewind.failed_seqs else (*points, rewind.point)


def choose_link_action(
    *, is_after_rewind: bool, is_end_rewound: bool, is_reopened: bool, has_ended: bool
) -> LinkAction:
    """What becomes of a link.

    ``is_after_rewind``: the command that awaits was issued because of what the retry takes back. ``is_end_rewound``:
    the end was recorded, and is taken back. ``is_reopened``: the other run is reopened with this one.
    """
    if is_after_rewind:
        return LinkAction.DROP
    if is_reopened or not has_ended:
        return LinkAction.AWAIT
    return LinkAction.DROP if is_end_rewound else LinkAction.KEEP


# Approvals


def should_request_again(state: ApprovalState, withdrawn_epoch: int, epoch: int) -> bool:
    """Whether a question that is there already, and is asked once more, is open again as if it had never been asked.

    ``withdrawn_epoch`` is the epoch under which its run has withdrawn it, if that was it.
    """
    return state is ApprovalState.WITHDRAWN and epoch > withdrawn_epoch


def decide_reminder(state: ApprovalState, reminder_count: int, op: RemindApproval) -> tuple[OpStatus, bool]:
    """What a reminder is answered with, and whether it is to be carried out: it may have been before."""
    if state is not ApprovalState.OPEN:
        return OpStatus.REFUSED, False
    return OpStatus.DONE, op.reminder_count > reminder_count


def decide_withdrawal(state: ApprovalState) -> tuple[OpStatus, bool]:
    """What a withdrawal is answered with, and whether it is to be carried out: it may have been before."""
    return OpStatus.REFUSED if state is ApprovalState.ANSWERED else OpStatus.DONE, state is ApprovalState.OPEN


def decide_answer(state: ApprovalState, run_state: str) -> OpStatus:
    """Whether an answer is taken (``DONE``), and why not."""
    if state is ApprovalState.ANSWERED:
        return OpStatus.DUPLICATE
    return OpStatus.ENDED if state is ApprovalState.WITHDRAWN or run_state in TERMINAL_STATES else OpStatus.DONE


# Notices that a store leaves itself: (kind, data)


def make_requested_event(op: RequestApproval) -> tuple[str, bytes]:
    """That a question was asked."""
    return live_events.APPROVAL_REQUESTED, json.dumps(op.id).encode()


def make_reminded_event(op: RemindApproval) -> tuple[str, bytes]:
    """That people were reminded of it."""
    told = {"id": op.id, "assignee": op.assignee, "reminder_count": op.reminder_count}
    return live_events.APPROVAL_REMINDED, json.dumps(told).encode()


def make_withdrawn_event(approval: str) -> tuple[str, bytes]:
    """That it is open no more, or that its answer does not count any more."""
    return live_events.APPROVAL_WITHDRAWN, json.dumps(approval).encode()


def make_reopened_event(last_kept_seq: int) -> tuple[str, bytes]:
    """That a run was reopened, and the ``seq`` of the last record that was kept."""
    return live_events.REOPENED, json.dumps(last_kept_seq).encode()


# Usage and budgets


def has_budget(new: NewRun, inherits_budget: bool) -> bool:
    """Whether the model calls of a new run must be reserved: ``inherits_budget``: the run that starts it has one."""
    return inherits_budget or new.budget is not None


def can_be_parent(key: int, child_key: int) -> bool:
    """Whether the run that is said to have started another one can have done so: it was there before."""
    return key < child_key


def should_release_reservation(record: Record) -> bool:
    """Whether what was reserved for the position of this record is given back when it is appended."""
    return record.kind.has_position


def decide_budget(state: str, budget: BudgetLimits | None) -> OpStatus:
    """Whether a run with this budget of its own can be given another one (``DONE``), and why not."""
    if state in TERMINAL_STATES:
        return OpStatus.ENDED
    return OpStatus.REFUSED if budget is None else OpStatus.DONE


def encode_budget(budget: BudgetLimits) -> bytes:
    """What a run is told that was short, and may ask again because of this budget."""
    return json.dumps(budget._asdict()).encode()


def count_short_calls(records: Iterable[Record]) -> int:
    """How many model calls were refused, by these records, that have not been told since that they may ask again."""
    refused = f"{BudgetExceeded.__module__}.{BudgetExceeded.__qualname__}"
    short = 0
    for record in records:
        if record.kind is RecordKind.SIGNAL and record.name == BUDGET_SIGNAL:
            short = max(0, short - 1)
        elif record.kind is RecordKind.STEP and not record.ok and get_error_text(record.payload).startswith(refused):
            short += 1
    return short


# Workers


def merge_workflows(workflows: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """The workflows of a worker that has announced some more."""
    return tuple(dict.fromkeys((*workflows, *more)))


def format_worker_location(name: str, host: str, pid: int, *, is_listener: bool = False) -> str:
    """``host:pid``, after the worker's name if it has another one; one by lease has no process that we know of."""
    place = host if is_listener else f"{host}:{pid}"
    return place if name in ("", place) else f"{name} at {place}" if place else name


def describe_worker(name: str, host: str, pid: int, *, is_listener: bool = False) -> str:
    """A worker in words."""
    place = format_worker_location(name, host, pid, is_listener=is_listener)
    return f"listener {place}".rstrip() if is_listener else place


LISTENER_RETENTION_S = 24 * 3600.0
"""Seconds for which a worker by lease that has left or is dead is known at least."""


WORKER_RETENTION_S = 24 * 3600.0
"""Seconds for which any other worker that has left or is dead is known at least, and by which it must have been gone
before the oldest run was created: clocks differ, and a worker writes until somebody declares it dead."""


def get_worker_cutoff(oldest_created_at: float | None, now: float) -> float:
    """Workers whose lease ended before this time are forgotten, once they are live no more.

    ``oldest_created_at`` is when the oldest run was created. Nothing that is still there was started or recorded by a
    worker that was gone before that, so no report can name it.
    """
    return (now if oldest_created_at is None else min(now, oldest_created_at)) - WORKER_RETENTION_S


def get_listener_cutoff(oldest_created_at: float | None, now: float) -> float:
    """Workers by lease whose lease ended before this time are forgotten, once they are live no more.

    ``oldest_created_at`` is when the oldest run by delivery was created. Whoever was gone before that has recorded
    nothing of any that is still there: whatever a server hears of a worker by lease prolongs its lease.
    """
    return min(now - LISTENER_RETENTION_S, now if oldest_created_at is None else oldest_created_at)


def can_redeliver(delivery_count: int, max_deliveries: int) -> bool:
    """Whether a run that has failed with its holder so often before may be taken up once more."""
    return delivery_count + 1 < max_deliveries


# Suspects

MIN_ISOLATED_SUSPICION = 2
"""The suspicion from which on a run is isolated."""
MIN_SOLO_SUSPICION = 4
"""The suspicion from which on a run is claimed alone."""
_GROUP_SIZES = {2: 50, 3: 10}
ISOLATED_WAIT_LEASES = 3
"""Leases for which a worker that holds other runs leaves isolated ones to workers that hold none."""
_MIN_ISOLATION_LEASES = 6
_MAX_DOUBLINGS = 6
"""With a lease of 10 seconds, that is isolation for about an hour."""


class WorkerDeathEffect(NamedTuple):
    """What the death of its worker makes of a run."""

    delivery_count: int
    suspicion: int
    is_dead: bool = False


class Suspect(Protocol):
    """A run that may be suspected."""

    @property
    def key(self) -> int:
        """Its key."""
        ...

    @property
    def priority(self) -> int:
        """Higher goes first."""
        ...

    @property
    def suspicion(self) -> int:
        """How much it is suspected."""
        ...


SuspectT = TypeVar("SuspectT", bound=Suspect)


def is_isolated(suspicion: int) -> bool:
    """Whether a run is claimed apart from those that are not suspected."""
    return suspicion >= MIN_ISOLATED_SUSPICION


def get_group_size(suspicion: int) -> int:
    """How many isolated runs a worker may claim together."""
    return _GROUP_SIZES.get(suspicion, 1)


def get_isolation_leases(suspicion: int) -> int:
    """Leases for which a worker takes nothing else while an isolated run has not recorded anything."""
    return _MIN_ISOLATION_LEASES * 2 ** min(_MAX_DOUBLINGS, max(0, suspicion - MIN_SOLO_SUSPICION))


def raise_suspicion(suspicion: int, claimed_count: int) -> int:
    """The suspicion of a run whose worker died while it held so many runs, this one included.

    A group that is not much smaller than what the worker held would tell nobody anything: it is skipped.
    """
    raised = suspicion + 1
    while is_isolated(raised) and get_group_size(raised) > 1 and 2 * get_group_size(raised) > claimed_count:
        raised += 1
    return raised


def get_worker_death_effect(
    delivery_count: int, max_deliveries: int, suspicion: int, claimed_count: int
) -> WorkerDeathEffect:
    """What the death of its worker, which held so many runs, makes of one of them."""
    raised = raise_suspicion(suspicion, claimed_count)
    if claimed_count > 1:
        return WorkerDeathEffect(delivery_count, raised)
    return WorkerDeathEffect(delivery_count + 1, raised, not can_redeliver(delivery_count, max_deliveries))


def _get_suspect_sort_key(run: Suspect) -> tuple[int, int, int]:
    order = (-run.priority, run.key)
    return (-run.suspicion, *order) if run.suspicion % 2 == 0 else (-run.suspicion, -order[0], -order[1])


def choose_suspects(due: Iterable[SuspectT], limit: int, take_slot: Callable[[SuspectT], bool]) -> list[SuspectT]:
    """The isolated runs that a claim takes: a group with the highest suspicion that there is.

    ``take_slot`` takes a place for a run in its queue, if there is one. Every other suspicion reverses the order. Of
    runs that a worker tried one after another until it died, the last one is the most likely to have killed it; if it
    came last again, behind a run in a very long step, it would never be tried alone.
    """
    chosen: list[SuspectT] = []
    for run in sorted(due, key=_get_suspect_sort_key):
        first = chosen[0].suspicion if chosen else run.suspicion
        if run.suspicion != first or len(chosen) == min(limit, get_group_size(first)):
            break
        if take_slot(run):
            chosen.append(run)
    return chosen


# Errors that are recorded, and how they are searched


def list_steps_in_flight(events: Iterable[LiveEvent]) -> list[dict[str, Any]]:
    """The steps of a run whose beginning was told, and whose outcome was not recorded: the last attempt of each.

    A step that has taken its worker down within a tenth of a second may not be among them.
    """
    found: dict[int, dict[str, Any]] = {}
    for notice in events:
        if notice.kind != live_events.STARTED:
            continue
        try:
            data: Any = json.loads(notice.data)
            found[notice.position] = {
                "position": notice.position,
                "name": str(data["name"]),
                "attempt": int(data.get("attempt") or 0),
                "at": notice.at,
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return [found[position] for position in sorted(found)]


ONLY_CLAIMED_RUN = "this was the only run it held"


def encode_death_error(
    run_id: str,
    delivery_count: int,
    worker: str = "",
    events: Iterable[LiveEvent] = (),
    *,
    circumstance: str = ONLY_CLAIMED_RUN,
) -> bytes:
    """The encoded error of a run whose worker died too often.

    ``events`` is what was told of its steps, ``circumstance`` is why these deaths count against this run.
    """
    doing = list_steps_in_flight(events)
    steps = ", ".join(f"step {step['position'] + 1} ({step['name']}, attempt {step['attempt']})" for step in doing[:3])
    more = f" and {len(doing) - 3} more" if len(doing) > 3 else ""
    what = f"In flight: {steps}{more}. Look at what that" if doing else "Look at what its next step"
    times = "once" if delivery_count == 1 else f"{delivery_count} times"
    last = f" (last worker {worker})" if worker else ""
    message = (
        f"the worker of run {run_id!r} died {times} while {circumstance}, with nothing new recorded in between"
        f"{last}. {what} does to the process (memory, a crash in native code, os._exit, a blocked "
        f"event loop), then let it go on with: holdfast retry {run_id}"
    )
    attributes = {"run_id": run_id, "state": "dead", "error": ""}
    return _encode_error("RunDead", message, attributes, worker=worker, in_flight=doing)


def encode_deadline_error(run_id: str) -> bytes:
    """The encoded error of a run by delivery whose deadline has passed."""
    return _encode_error("RunTimedOut", f"run {run_id!r} did not end within its deadline", {})


def make_unknown_outcome_error(run_id: str, step: str) -> StepOutcomeUnknown:
    """What is recorded of a ``once`` step that was in flight when its worker died."""
    return StepOutcomeUnknown(
        f"step {step!r} of run {run_id!r} was in flight when its worker died. Its effect is `once`, so it is "
        f"not run again: it may or may not have happened. Check first, then act on what you find.",
        step,
    )


def encode_corrupt_error(message: str) -> bytes:
    """The encoded error of a run whose row cannot be read."""
    return _encode_error("StoreCorrupt", message, {})


def _encode_error(name: str, message: str, attributes: dict[str, Any], **extra: Any) -> bytes:
    """One of Holdfast's errors in the codec's shape, and what else is to be known of it."""
    error: dict[str, Any] = {
        "type": f"holdfast.errors.{name}",
        "qualname": name,
        "message": message,
        "args": None,
        "attributes": attributes,
        "traceback": "",
        "cause": None,
        **extra,
    }
    return json.dumps(error, ensure_ascii=False, separators=(",", ":")).encode()


def get_error_text(error: bytes | None) -> str:
    """What a search finds in an encoded error: its type and its message."""
    try:
        told: Any = json.loads(error or b"")
        return f"{told['type']} {told['message']}"
    except (ValueError, TypeError, KeyError):
        return ""


def has_text(run: Run, text: str) -> bool:
    """Whether a search for a text finds this run: see ``RunFilter.text``."""
    wanted = text.casefold()
    return any(wanted in words.casefold() for words in (run.id, run.workflow, *run.tags, get_error_text(run.error)))


def make_disabled_error(workflow: str, consequence: str) -> WorkflowDisabled:
    """What to raise when a run is not started for that reason; ``consequence`` tells what did not happen."""
    return WorkflowDisabled(
        f"workflow {workflow!r} is disabled: {consequence}. `holdfast enable {workflow}` enables it again."
    )
