"""What every store decides alike: the fence, harmless repeats, requests, links, budgets, and what a death leaves.

A store reads a row and asks here what the contract says about it, so that the stores cannot drift apart.

**Suspects.** When a worker dies that held several runs, nobody can tell which of them killed it. So that death is not
counted against any of them; it raises the *suspicion* of each that has recorded nothing since. After the first death
the runs are claimed at once and all together, as if nothing had happened: most deaths are deploys and machines that
fail. After the next one they are *isolated*: a claim takes only a group of them, then a smaller one, and in the end one
alone. A death counts only if the worker held a single run; ``max_deliveries`` of these make the run dead. Any record
makes a run unsuspicious again, so the innocent ones leave the groups one by one and the run that kills remains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.admission.usage import BUDGET_SIGNAL, Limits
from holdfast.core.records import Kind, Record, Rewind
from holdfast.core.states import TERMINAL, RunState
from holdfast.errors import BudgetExceeded, StepOutcomeUnknown, WorkflowSwitchedOff
from holdfast.stores import live_events
from holdfast.stores.approvals import ANSWER, ApprovalState, AskApproval, RemindApproval, is_answer
from holdfast.stores.operations import Cancel, FinishRun, NewRun, Notice, ParkRun, ReopenRun, Run, Verdict

REOPENABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.DEAD})


class Told(IntEnum):
    """What a link knows of the end that its run waits for. The numbers are stored."""

    YES = 0
    """It has been put into the mailbox."""
    NOT_YET = 1
    LATE = 2
    """There was nobody to tell: the other run had ended before it was asked for, or the one that waits had. A command
    that asks again is answered with the end; the link only remembers for a retry which run it was."""


# The fence, and harmless repeats


def holds(state: str, epoch: int, fence: int) -> bool:
    """Whether an operation under ``fence`` may still change a run that is in ``state`` under ``epoch``."""
    return epoch == fence and state == "running"


def is_finish_repeat(state: str, epoch: int, op: FinishRun) -> bool:
    """Whether ``op`` had been carried out before.

    The state must agree: ``reap`` can have ended the run as ``dead`` under the same epoch.
    """
    return epoch == op.epoch and state == op.state and op.state in TERMINAL


def is_park_repeat(state: str, epoch: int, fence: int) -> bool:
    """Whether the run is parked already, under the same epoch."""
    return epoch == fence and state == "waiting"


def waits_for(op: ParkRun, name: str, position: int | None) -> bool:
    """Whether a run that parks waits for this: a signal, the end of a run, or an answer."""
    if position is None:
        return name in op.signals
    return name.removeprefix(ANSWER) in op.answers if is_answer(name) else position in op.awaited


# Starting


def new_row(
    new: NewRun, key: int, owner: int | None, now: float, previous: str, has_budget: bool, limited: bool = False
) -> Run:
    """The row of a run that is created, held by ``owner`` if that is given."""
    held = owner is not None
    return Run(
        key=key, id=new.id, workflow=new.workflow, queue=new.queue,
        state=RunState.RUNNING if held else RunState.PENDING, epoch=1 if held else 0, owner=owner,
        starter=new.starter, deliveries=0, max_deliveries=new.max_deliveries,
        wake_at=None if held else first_wake(new, now), waits_for="", priority=new.priority, deadline=new.deadline,
        inputs=new.inputs, digest=new.digest, seed=new.seed, output=None, error=None, tags=new.tags,
        python=new.python, created_at=new.created_at, finished_at=None,
        began_at=new.created_at if new.began_at is None else new.began_at, parent=new.parent,
        forked_from=new.forked_from, rewound=new.rewound, session=new.session, previous=previous,
        has_budget=has_budget, version=new.version, queue_key=new.queue_key, limited=limited,
        by_delivery=new.by_delivery,
    )  # fmt: skip


def first_wake(run: NewRun, now: float) -> float:
    """The ``wake_at`` of a run that is created ``pending``: a start time in the past means now."""
    return max(run.available_at, min(run.created_at, now))


def inputs_may_differ(new: NewRun) -> bool:
    """Whether a run found under the id of ``new`` may have other inputs: a debounced start can have replaced them."""
    return new.put_off_most is not None


def put_off_until(new: NewRun, created_at: float, now: float) -> float:
    """The ``wake_at`` of a run that was created then, and is joined by a start that debounces."""
    latest = first_wake(new, now)
    return latest if new.put_off_most is None else min(latest, created_at + new.put_off_most)


def becomes_linked(told: Told | None, state: str) -> bool:
    """Whether a run that waits for one in ``state`` will find, or has found, its end in the mailbox.

    ``told`` is what the link between the two knows, if there is one.
    """
    return told in (Told.YES, Told.NOT_YET) or state not in TERMINAL


def end_payload(output: bytes | None, error: bytes | None) -> bytes:
    """What the mailbox of a run that waits is told of an end."""
    return output if output is not None else error if error is not None else b"null"


def child_failure(run_id: str, state: RunState, error: bytes | None) -> bytes:
    """What is recorded of a run that ended without a result: enough to raise what its own caller would have seen."""
    return json.dumps({"child": run_id, "state": state, "error": None if error is None else error.decode()}).encode()


def is_child_failure(payload: bytes | None) -> bool:
    """Whether this was recorded of such a run, and not of one that could not be started, or is not the one meant."""
    return (payload or b"").startswith(b'{"child": ')


# Requests


def answer_to_cancel(state: str, cancel: str, *, paused: bool, same_seed: bool) -> Verdict:
    """Whether a cancel is to be carried out (``DONE``), and what else its answer is."""
    if not same_seed:
        return Verdict.REFUSED
    if state in TERMINAL:
        return Verdict.DUPLICATE if state == RunState.CANCELLED and cancel != Cancel.NO else Verdict.ENDED
    return Verdict.DUPLICATE if cancel != Cancel.NO and not paused else Verdict.DONE


def is_cancelled_at_once(state: str, epoch: int, *, by_delivery: bool = False) -> bool:
    """Whether there is nothing to be undone by the run's code: nobody has ever claimed it, or it has none."""
    return by_delivery or (state == "pending" and epoch == 0)


def answer_to_pause(state: str, *, paused: bool, wanted: bool) -> Verdict:
    """Whether a pause (``wanted``) or its end is to be carried out (``DONE``), and what else its answer is."""
    if state in TERMINAL:
        return Verdict.ENDED
    return Verdict.DUPLICATE if paused is wanted else Verdict.DONE


def keeps_its_time(state: str, epoch: int) -> bool:
    """Whether a run that is resumed has still to wait for the time that it was started for."""
    return state == "pending" and epoch == 0


def answer_to_reopen(state: str, rewind: Rewind | None, *, run_again: bool) -> Verdict:
    """Whether a run can be reopened (``DONE``), and why not."""
    if state not in REOPENABLE:
        return Verdict.ENDED
    if rewind is not None and rewind.undone:
        return Verdict.UNDONE
    if rewind is not None and rewind.once and not run_again:
        return Verdict.REFUSED
    return Verdict.DONE


def is_settled_too_late(op: ReopenRun, epoch: int) -> bool:
    """Whether somebody has taken the run up since the person looked who settles a step of it."""
    return op.settles is not None and op.settles.epoch != epoch


def cancel_after(is_recorded: bool) -> Cancel:
    """Whether a reopened run is to be cancelled: if the record of that stays, its code is cancelled by it again."""
    return Cancel.RECORDED if is_recorded else Cancel.NO


class Redo(Enum):
    """What becomes of the link to a run whose end is not in the journal of a run that is reopened."""

    LEAVE = "leave"
    AWAIT = "await"
    """It is awaited as if it had just been started."""
    DROP = "drop"
    """There is no link any more, nor an end in the mailbox."""


def rewound_by(rewound: tuple[int, ...], rewind: Rewind | None) -> tuple[int, ...]:
    """The positions that retries have gone back to, after one more."""
    return (*rewound, rewind.positions) if rewind is not None and rewind.failed else rewound


def redo_link(*, is_later: bool, is_taken: bool, is_reopened: bool, has_ended: bool) -> Redo:
    """What becomes of a link.

    ``is_later``: the command that awaits was issued because of what the retry takes back. ``is_taken``: the end was
    recorded, and is taken back. ``is_reopened``: the other run is reopened with this one.
    """
    if is_later:
        return Redo.DROP
    if is_reopened or not has_ended:
        return Redo.AWAIT
    return Redo.DROP if is_taken else Redo.LEAVE


# Approvals


def asks_anew(state: ApprovalState, withdrawn_in: int, epoch: int) -> bool:
    """Whether a question that is there already, and is asked once more, is open again as if it had never been asked.

    ``withdrawn_in`` is the epoch under which its run has withdrawn it, if that was it.
    """
    return state is ApprovalState.WITHDRAWN and epoch > withdrawn_in


def answer_to_reminder(state: ApprovalState, reminders: int, op: RemindApproval) -> tuple[Verdict, bool]:
    """What a reminder is answered with, and whether it is to be carried out: it may have been before."""
    if state is not ApprovalState.OPEN:
        return Verdict.REFUSED, False
    return Verdict.DONE, op.reminders > reminders


def answer_to_withdrawal(state: ApprovalState) -> tuple[Verdict, bool]:
    """What a withdrawal is answered with, and whether it is to be carried out: it may have been before."""
    return Verdict.REFUSED if state is ApprovalState.ANSWERED else Verdict.DONE, state is ApprovalState.OPEN


def answer_to_answer(state: ApprovalState, run_state: str) -> Verdict:
    """Whether an answer is taken (``DONE``), and why not."""
    if state is ApprovalState.ANSWERED:
        return Verdict.DUPLICATE
    return Verdict.ENDED if state is ApprovalState.WITHDRAWN or run_state in TERMINAL else Verdict.DONE


# Notices that a store leaves itself: (kind, data)


def asked_notice(op: AskApproval) -> tuple[str, bytes]:
    """That a question was asked."""
    return live_events.ASKED, json.dumps(op.id).encode()


def reminded_notice(op: RemindApproval) -> tuple[str, bytes]:
    """That people were reminded of it."""
    told = {"id": op.id, "asked_of": op.asked_of, "reminders": op.reminders}
    return live_events.REMINDED, json.dumps(told).encode()


def withdrawn_notice(approval: str) -> tuple[str, bytes]:
    """That it is open no more, or that its answer does not count any more."""
    return live_events.WITHDRAWN, json.dumps(approval).encode()


def reopened_notice(last_kept: int) -> tuple[str, bytes]:
    """That a run was reopened, and the ``seq`` of the last record that was kept."""
    return live_events.REOPENED, json.dumps(last_kept).encode()


# Usage and budgets


def has_budget(new: NewRun, inherits: bool) -> bool:
    """Whether the model calls of a new run must be reserved: it ``inherits`` that from the run that starts it."""
    return inherits or new.budget is not None


def is_above(key: int, of: int) -> bool:
    """Whether the run that is said to have started another one can have done so: it was there before."""
    return key < of


def gives_back(record: Record) -> bool:
    """Whether what was reserved for the position of this record is given back when it is appended."""
    return record.kind.has_position


def answer_to_budget(state: str, budget: Limits | None) -> Verdict:
    """Whether a run with this budget of its own can be given another one (``DONE``), and why not."""
    if state in TERMINAL:
        return Verdict.ENDED
    return Verdict.REFUSED if budget is None else Verdict.DONE


def budget_payload(budget: Limits) -> bytes:
    """What a run is told that was short, and may ask again because of this budget."""
    return json.dumps(budget._asdict()).encode()


def calls_short(records: Iterable[Record]) -> int:
    """How many model calls were refused, by these records, that have not been told since that they may ask again."""
    refused = f"{BudgetExceeded.__module__}.{BudgetExceeded.__qualname__}"
    short = 0
    for record in records:
        if record.kind is Kind.SIGNAL and record.name == BUDGET_SIGNAL:
            short = max(0, short - 1)
        elif record.kind is Kind.STEP and not record.ok and error_words(record.payload).startswith(refused):
            short += 1
    return short


# Workers


def joined(workflows: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """The workflows of a worker that has announced some more."""
    return tuple(dict.fromkeys((*workflows, *more)))


def place_of_worker(name: str, host: str, pid: int, *, by_lease: bool = False) -> str:
    """``host:pid``, after the worker's name if it has another one; one by lease has no process that we know of."""
    place = host if by_lease else f"{host}:{pid}"
    return place if name in ("", place) else f"{name} at {place}" if place else name


def describe_worker(name: str, host: str, pid: int, *, by_lease: bool = False) -> str:
    """A worker in words."""
    place = place_of_worker(name, host, pid, by_lease=by_lease)
    return f"listener {place}".rstrip() if by_lease else place


LISTENERS_KEPT = 24 * 3600.0
"""Seconds for which a worker by lease that has left or is dead is known at least."""


WORKERS_KEPT = 24 * 3600.0
"""Seconds for which any other worker that has left or is dead is known at least, and by which it must have been gone
before the oldest run was created: clocks differ, and a worker writes until somebody declares it dead."""


def workers_kept_from(oldest: float | None, now: float) -> float:
    """Workers whose lease ended before this time are forgotten, once they are live no more.

    ``oldest`` is when the oldest run was created. Nothing that is still there was started or recorded by a worker that
    was gone before that, so no report can name it.
    """
    return (now if oldest is None else min(now, oldest)) - WORKERS_KEPT


def listeners_kept_from(oldest: float | None, now: float) -> float:
    """Workers by lease whose lease ended before this time are forgotten, once they are live no more.

    ``oldest`` is when the oldest run by delivery was created. Whoever was gone before that has recorded nothing of any
    that is still there: whatever a server hears of a worker by lease prolongs its lease.
    """
    return min(now - LISTENERS_KEPT, now if oldest is None else oldest)


def may_be_delivered_again(deliveries: int, most: int) -> bool:
    """Whether a run that has failed with its holder so often before may be taken up once more."""
    return deliveries + 1 < most


# Suspects

ISOLATED = 2
"""The suspicion from which on a run is isolated."""
ALONE = 4
"""The suspicion from which on a run is claimed alone."""
_GROUPS = {2: 50, 3: 10}
WAIT_LEASES = 3
"""Leases for which a worker that holds other runs leaves isolated ones to workers that hold none."""
_ISOLATION_LEASES = 6
_MAX_DOUBLINGS = 6
"""With a lease of 10 seconds, that is isolation for about an hour."""


class Aftermath(NamedTuple):
    """What the death of its worker makes of a run."""

    deliveries: int
    suspicion: int
    is_dead: bool = False


class Suspicious(Protocol):
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


S = TypeVar("S", bound=Suspicious)


def is_isolated(suspicion: int) -> bool:
    """Whether a run is claimed apart from those that are not suspected."""
    return suspicion >= ISOLATED


def group_size(suspicion: int) -> int:
    """How many isolated runs a worker may claim together."""
    return _GROUPS.get(suspicion, 1)


def isolation_leases(suspicion: int) -> int:
    """Leases for which a worker takes nothing else while an isolated run has not recorded anything."""
    return _ISOLATION_LEASES * 2 ** min(_MAX_DOUBLINGS, max(0, suspicion - ALONE))


def raise_suspicion(suspicion: int, held: int) -> int:
    """The suspicion of a run whose worker died while it held so many runs, this one included.

    A group that is not much smaller than what the worker held would tell nobody anything: it is skipped.
    """
    raised = suspicion + 1
    while is_isolated(raised) and group_size(raised) > 1 and 2 * group_size(raised) > held:
        raised += 1
    return raised


def after_death(deliveries: int, most: int, suspicion: int, held: int) -> Aftermath:
    """What the death of its worker, which held so many runs, makes of one of them."""
    raised = raise_suspicion(suspicion, held)
    if held > 1:
        return Aftermath(deliveries, raised)
    return Aftermath(deliveries + 1, raised, not may_be_delivered_again(deliveries, most))


def _suspect_order(run: Suspicious) -> tuple[int, int, int]:
    order = (-run.priority, run.key)
    return (-run.suspicion, *order) if run.suspicion % 2 == 0 else (-run.suspicion, -order[0], -order[1])


def choose_suspects(due: Iterable[S], limit: int, take_place: Callable[[S], bool]) -> list[S]:
    """The isolated runs that a claim takes: a group with the highest suspicion that there is.

    ``take_place`` takes a place for a run in its queue, if there is one. Every other suspicion reverses the order. Of
    runs that a worker tried one after another until it died, the last one is the most likely to have killed it; if it
    came last again, behind a run in a very long step, it would never be tried alone.
    """
    chosen: list[S] = []
    for run in sorted(due, key=_suspect_order):
        first = chosen[0].suspicion if chosen else run.suspicion
        if run.suspicion != first or len(chosen) == min(limit, group_size(first)):
            break
        if take_place(run):
            chosen.append(run)
    return chosen


# Errors that are recorded, and how they are searched


def in_flight(told: Iterable[Notice]) -> list[dict[str, Any]]:
    """The steps of a run whose beginning was told, and whose outcome was not recorded: the last attempt of each.

    A step that has taken its worker down within a tenth of a second may not be among them.
    """
    found: dict[int, dict[str, Any]] = {}
    for notice in told:
        if notice.kind != live_events.BEGUN:
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


ONLY_RUN = "this was the only run it held"


def death_error(
    run_id: str, deliveries: int, worker: str = "", told: Iterable[Notice] = (), *, alone: str = ONLY_RUN
) -> bytes:
    """The encoded error of a run whose worker died too often.

    ``told`` is what was told of its steps, ``alone`` is why these deaths count against this run.
    """
    doing = in_flight(told)
    steps = ", ".join(f"step {step['position'] + 1} ({step['name']}, attempt {step['attempt']})" for step in doing[:3])
    more = f" and {len(doing) - 3} more" if len(doing) > 3 else ""
    what = f"In flight: {steps}{more}. Look at what that" if doing else "Look at what its next step"
    times = "once" if deliveries == 1 else f"{deliveries} times"
    last = f" (last worker {worker})" if worker else ""
    message = (
        f"the worker of run {run_id!r} died {times} while {alone}, with nothing new recorded in between"
        f"{last}. {what} does to the process (memory, a crash in native code, os._exit, a blocked "
        f"event loop), then let it go on with: holdfast retry {run_id}"
    )
    attributes = {"run_id": run_id, "state": "dead", "error": ""}
    return _encoded("RunDead", message, attributes, worker=worker, in_flight=doing)


def deadline_error(run_id: str) -> bytes:
    """The encoded error of a run by delivery whose deadline has passed."""
    return _encoded("RunTimedOut", f"run {run_id!r} did not end within its deadline", {})


def unknown_outcome(run_id: str, step: str) -> StepOutcomeUnknown:
    """What is recorded of a ``once`` step that was in flight when its worker died."""
    return StepOutcomeUnknown(
        f"step {step!r} of run {run_id!r} was in flight when its worker died. Its effect is `once`, so it is "
        f"not run again: it may or may not have happened. Check first, then act on what you find.",
        step,
    )


def corrupt_error(message: str) -> bytes:
    """The encoded error of a run whose row cannot be read."""
    return _encoded("StoreCorrupt", message, {})


def _encoded(name: str, message: str, attributes: dict[str, Any], **more: Any) -> bytes:
    """One of Holdfast's errors in the codec's shape, and what else is to be known of it."""
    error: dict[str, Any] = {
        "type": f"holdfast.errors.{name}",
        "qualname": name,
        "message": message,
        "args": None,
        "attributes": attributes,
        "traceback": "",
        "cause": None,
        **more,
    }
    return json.dumps(error, ensure_ascii=False, separators=(",", ":")).encode()


def error_words(error: bytes | None) -> str:
    """What a search finds in an encoded error: its type and its message."""
    try:
        told: Any = json.loads(error or b"")
        return f"{told['type']} {told['message']}"
    except (ValueError, TypeError, KeyError):
        return ""


def mentions(run: Run, text: str) -> bool:
    """Whether a search for a text finds this run: see ``RunFilter.text``."""
    wanted = text.casefold()
    return any(wanted in words.casefold() for words in (run.id, run.workflow, *run.tags, error_words(run.error)))


def switched_off(workflow: str, so: str) -> WorkflowSwitchedOff:
    """What to raise when a run is not started for that reason; ``so`` tells what did not happen."""
    return WorkflowSwitchedOff(
        f"workflow {workflow!r} is switched off: {so}. `holdfast kill {workflow} --lift` switches it on again."
    )
