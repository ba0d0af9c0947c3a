"""What the contract says a store does, in plain dictionaries, written down a second time.

The model shares nothing with the stores, not even ``stores.rules``: where the two disagree, one of them is wrong. It
decides what depends on the contract alone. What a store is free to choose (keys, the ids of signals and workers, the
words of a death) it takes over from the store, once the machine has checked that the choice is a legal one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.rates import Rate, RateState
from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, ApprovalFilter, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.contract import RunFilter, RunUsage
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    AwaitRun,
    CancelRun,
    CancelState,
    FinishRun,
    ForkRun,
    LiveEvent,
    Op,
    OpStatus,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ReserveUsage,
    ResumeRun,
    RunLink,
    SaveAttempt,
    SendSignal,
    SetBudget,
    StartRun,
)
from holdfast.stores.queues import QueueKeyStatus, QueueStatus
from holdfast.stores.served_versions import make_served_name

SPACES = ["ann", "bob"]
PENDING, RUNNING, WAITING = RunState.PENDING, RunState.RUNNING, RunState.WAITING
ENDED = {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.DEAD}
REOPENABLE = ENDED - {RunState.COMPLETED}

Row = dict[str, Any]


class Model:
    """A store as it should be."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.runs: dict[str, Row] = {}
        self.journals: dict[str, list[Record]] = {}
        self.attempts: dict[str, dict[int, Attempt]] = {}
        self.mailboxes: dict[str, list[Row]] = {}
        self.parked_by: dict[str, int | None] = {}
        """Who parked a run with something in its mailbox."""
        self.sent: list[Row] = []
        """Signals that the store has not been asked for the ids of yet, in the order they were sent."""
        self.dedups: set[tuple[str, str]] = set()
        self.links: dict[tuple[str, int], list[Any]] = {}
        """``[who is waited for, "waits" | "told" | "late"]``, by who waits, and the position of its command."""
        self.used: dict[str, list[Usage]] = {}
        """What each run has used itself, piece by piece."""
        self.spent: dict[tuple[int, str, str], Usage] = {}
        """What was used, without the seconds, by day (since 1970), workflow and model."""
        self.budgets: dict[str, BudgetLimits] = {}
        self.reserved: dict[tuple[str, int], Usage] = {}
        self.short: set[tuple[str, int]] = set()
        self.approvals: dict[str, Row] = {}
        self.withdrawn_in: dict[str, int] = {}
        """The epoch under which a run has last withdrawn a question."""
        self.notices: dict[str, list[LiveEvent]] = {}
        """Of each run, in the order of telling. Those of kind ``started`` and ``text`` are of steps."""
        self.memories: dict[tuple[str, str], Row] = {}
        self.switches: dict[str, float] = {}
        self.queues: dict[str, Row] = {}
        """What code has ``declared``, what was set ``by_hand``, ``paused_at``, the ``turn``, and those ``given``."""
        self.rates: dict[tuple[str, str | None, str], RateState] = {}
        """By queue, key (``None``: of the queue itself), and rate."""
        self.holders: dict[tuple[str, str], str] = {}
        """The run that has a deduplication key, by queue and key."""
        self.workers: dict[int, Row] = {}
        self.specs: dict[str, Any] = {}

    # Reading

    def by_key(self, key: int) -> Row | None:
        return next((run for run in self.runs.values() if run["key"] == key), None)

    def is_live(self, worker: int | None) -> bool:
        return worker in self.workers and self.workers[worker]["state"] == "live"

    def acting(self) -> list[int]:
        """Workers whose process is there, whatever others think of them."""
        return [worker for worker, row in self.workers.items() if row["state"] == "live" and not row["killed"]]

    def held_by(self, worker: int) -> list[Row]:
        return [run for run in self.runs.values() if run["state"] is RUNNING and run["owner"] == worker]

    def sleeping(self, workflows: Any, queues: Any) -> list[Row]:
        return [
            run
            for run in self.runs.values()
            if run["state"] in (PENDING, WAITING)
            and run["paused_at"] is None
            and run["workflow"] not in self.switches
            and run["wake_at"] is not None
            and make_served_name(run["workflow"], run["version"]) in workflows
            and (queues is None or run["queue"] in queues)
        ]

    def due(self, workflows: Any, queues: Any) -> list[Row]:
        now = self.clock()
        due = [run for run in self.sleeping(workflows, queues) if run["wake_at"] <= now]
        return sorted(due, key=lambda run: (-run["priority"], run["key"]))

    def suspects(self, workflows: Any, queues: Any) -> list[Row]:
        """Those that are claimed alone: with so few runs as here, there are no larger groups."""
        return [run for run in self.due(workflows, queues) if run["suspicion"] >= 2]

    def wakes(self, workflows: Any, queues: Any) -> list[float]:
        """When each of these may be taken, as far as limits go."""
        return [time for run in self.sleeping(workflows, queues) if (time := self._wake(run)) is not None]

    def requests(self, worker: int) -> list[tuple[int, bool, bool]]:
        asked = [
            (run["key"], run["cancel_state"] is CancelState.REQUESTED, run["paused_at"] is not None)
            for run in self.held_by(worker)
        ]
        return sorted(request for request in asked if any(request[1:]))

    def family(self, run_id: str) -> list[str]:
        """A run, and those above it."""
        above = self.runs[run_id]["above"]
        return [run_id, *([] if above is None else self.family(above))]

    def is_below(self, run_id: str, other: str) -> bool:
        return other in self.family(run_id)

    def usages(self) -> dict[str, RunUsage]:
        told = {run_id: RunUsage(self._sum(run_id), self.budgets.get(run_id)) for run_id in self.runs}
        return {run_id: usage for run_id, usage in told.items() if usage != RunUsage()}

    def _sum(self, run_id: str) -> Usage:
        pieces = [piece for one in self.runs if self.is_below(one, run_id) for piece in self.used[one]]
        return sum(pieces, Usage())

    # Operations: each returns what the store must answer

    def apply(self, op: Op) -> Any:
        match op:
            case StartRun():
                return self._start(op)
            case SendSignal():
                return self._send(op)
            case AwaitRun():
                return self._await(op)
            case CancelRun() | PauseRun() | ResumeRun():
                run = self.runs.get(op.run_id)
                return OpStatus.UNKNOWN_RUN if run is None else self._ask(run, op)
            case ReopenRun():
                return self._reopen(op)
            case SetBudget():
                return self._set_budget(op)
            case ForkRun():
                return self._fork(op)
            case AnswerApproval():
                return self._answer(op)
            case PutMemory() | DeleteMemory():
                return self._remember(op)
            case _:
                run = self.by_key(op.key)
                return OpStatus.FENCED if run is None else self._on_held(run, op)

    def _on_held(self, run: Row, op: Any) -> OpStatus | BudgetShortage:
        epoch = op.record.epoch if isinstance(op, AppendRecord) else op.epoch
        held = run["state"] is RUNNING and run["epoch"] == epoch
        match op:
            case AppendRecord():
                return self._append(run, op, held)
            case SaveAttempt() if held:
                self.attempts[run["id"]][op.attempt.position] = op.attempt
            case FinishRun() if held:
                if op.respect_cancel and run["cancel_state"] is not CancelState.NONE:
                    return OpStatus.REFUSED if run["cancel_state"] is CancelState.REQUESTED else OpStatus.FENCED
                is_awaited = [run["id"], "waits"] in self.links.values()
                self._end(run, op.state, output=op.output, error=op.error, finished_at=op.at, rewind=op.rewind)
                return OpStatus.DONE_NOTIFIED if is_awaited else OpStatus.DONE
            case FinishRun():
                return OpStatus.DONE_NOTIFIED if (run["epoch"], run["state"]) == (epoch, op.state) else OpStatus.FENCED
            case ParkRun() if held:
                if self._cannot_park(run, op):
                    return OpStatus.REFUSED
                has_mail = self.mailboxes[run["id"]] and not (op.is_pause or run["is_delivery"])
                self.parked_by[run["id"]] = run["owner"] if has_mail else None
                run.update(state=WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for, suspicion=0)
                self._let_go(run)
            case ParkRun():
                return OpStatus.DONE if (run["epoch"], run["state"]) == (epoch, WAITING) else OpStatus.FENCED
            case ReleaseRun() if held:
                self._release(run, op)
            case ReserveUsage() if held:
                return self._reserve(run, op)
            case RequestApproval() if held:
                return self._put_question(run, op)
            case RemindApproval() | WithdrawApproval() if held:
                return self._change_question(run, op)
            case AppendLiveEvents() if held:
                for notice in op.events:
                    if not any(notice[:3] == there[:3] for there in self.notices[run["id"]]):
                        self.notices[run["id"]].append(notice)
            case _:
                return OpStatus.FENCED
        return OpStatus.DONE

    def _release(self, run: Row, op: ReleaseRun) -> None:
        if op.error is not None:
            run["delivery_count"] += 1
            if run["delivery_count"] >= run["max_deliveries"]:
                self._end(run, RunState.DEAD, error=op.error, finished_at=self.clock())
                return
        self._free(run)
        if op.wake_at is not None:
            run["wake_at"] = op.wake_at

    def _append(self, run: Row, op: AppendRecord, held: bool) -> OpStatus:
        journal = self.journals[run["id"]]
        there = [record.epoch for record in journal if record.seq == op.record.seq]
        streamed = op.record.kind not in (RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL)
        if held and streamed:
            self.reserved.pop((run["id"], op.record.position), None)
        if held and op.clear_live_events:
            self._forget_steps(run, op.record.position)
        if there:
            return OpStatus.DONE if there == [op.record.epoch] else OpStatus.FENCED
        if not held:
            return OpStatus.FENCED
        journal.append(op.record)
        if op.memory is not None:
            self._remember(op.memory)
        if op.consumed_signal_id is not None:
            mailbox = self.mailboxes[run["id"]]
            mailbox[:] = [signal for signal in mailbox if signal["id"] != op.consumed_signal_id]
        if op.clear_attempt:
            self.attempts[run["id"]].pop(op.record.position, None)
        if op.reset_delivery_count:
            run["delivery_count"] = run["suspicion"] = 0
        if op.record.kind is RecordKind.CANCEL:
            run["cancel_state"] = CancelState.RECORDED
        if op.used is not None:
            self.used[run["id"]].append(op.used)
            spot = (int(op.record.at // 86_400), run["workflow"], op.model)
            self.spent[spot] = self.spent.get(spot, Usage()) + replace(op.used, seconds=0.0)
            for place, rate in self._rates_of(run):
                if rate.unit == "tokens":
                    self.rates[place] = self._rate(place, rate).charge(self.clock(), op.used.tokens)
        return OpStatus.DONE

    def _reserve(self, run: Row, op: ReserveUsage) -> OpStatus | BudgetShortage:
        if not run["has_budget"]:
            return OpStatus.DONE
        place = (run["id"], op.position)
        self.reserved.pop(place, None)
        refusals = [
            refusal
            for one in self.family(run["id"])
            if one in self.budgets
            for refusal in self._refusals(one, self.budgets[one], op.expected)
        ]
        refusals.sort(key=lambda refusal: refusal.is_temporary)  # a real one first, and the nearest
        self.short.discard(place)
        if not refusals:
            self.reserved[place] = op.expected
            return OpStatus.DONE
        if not refusals[0].is_temporary and refusals[0].limit_name != "price":
            self.short.add(place)
        return refusals[0]

    def _refusals(self, run_id: str, limits: BudgetLimits, expected: Usage) -> list[BudgetShortage]:
        used = self._sum(run_id)
        others = sum((held for (one, _), held in self.reserved.items() if self.is_below(one, run_id)), Usage())
        found: list[BudgetShortage] = []
        if limits.seconds is not None and used.seconds >= limits.seconds:
            found.append(BudgetShortage(run_id, "seconds", limits.seconds, used.seconds, 0, 0, False))
        if limits.nano_usd is not None and expected.unpriced > 0:
            found.append(BudgetShortage(run_id, "price", limits.nano_usd / 1e9, used.nano_usd / 1e9, 0, 0, False))
        for name, most, field, unit in (
            ("usd", limits.nano_usd, "nano_usd", 1e9),
            ("tokens", limits.tokens, "tokens", 1),
            ("turns", limits.calls, "calls", 1),
        ):
            has, kept, more = (getattr(usage, field) for usage in (used, others, expected))
            if most is not None and has + kept + more > most:
                passing = most - has >= more
                found.append(BudgetShortage(run_id, name, most / unit, has / unit, kept / unit, more / unit, passing))
        return found

    def _set_budget(self, op: SetBudget) -> OpStatus:
        if op.run_id not in self.runs:
            return OpStatus.UNKNOWN_RUN
        if self.runs[op.run_id]["state"] in ENDED:
            return OpStatus.ENDED
        if op.run_id not in self.budgets:
            return OpStatus.REFUSED
        self.budgets[op.run_id] = op.budget
        nano, tokens, calls, seconds = op.budget
        payload = json.dumps({"nano_usd": nano, "tokens": tokens, "calls": calls, "seconds": seconds}).encode()
        for run_id, run in self.runs.items():  # in the order of their creation
            if self.is_below(run_id, op.run_id) and run["state"] not in ENDED:
                self._ask_again(run, payload, op.at)
        return OpStatus.DONE

    def _cannot_park(self, run: Row, op: ParkRun) -> bool:
        if run["cancel_state"] is CancelState.REQUESTED:
            return True
        if op.is_pause:
            return run["paused_at"] is None
        mail = self.mailboxes[run["id"]]
        sent = {signal["name"] for signal in mail if signal["position"] is None}
        ends = {
            one["position"] for one in mail if one["position"] is not None and not one["name"].startswith("answer:")
        }
        answers = {one["name"] for one in mail if one["position"] is not None}
        return bool(
            sent & {*op.signal_names}
            or ends & {*op.awaited_positions}
            or answers & {f"answer:{id}" for id in op.approval_ids}
        )

    # People, notices, memories

    def _put_question(self, run: Row, op: RequestApproval) -> OpStatus:
        row = self.approvals.get(op.id)
        if row is not None and row["run_id"] != run["id"]:
            return OpStatus.REFUSED
        if row is not None and (row["state"] != "withdrawn" or self.withdrawn_in.get(op.id) == op.epoch):
            return OpStatus.DONE
        for other in self._questions(run):
            if other["position"] == op.position and other["id"] != op.id and other["state"] != "withdrawn":
                other["state"] = "withdrawn"
                self.withdrawn_in[other["id"]] = op.epoch
                self._leave(run, op.position, "withdrawn", other["id"], op.at)
        self._drop_answers(run["id"], {op.position})
        self.approvals[op.id] = {
            "id": op.id, "run_id": run["id"], "workflow": run["workflow"], "position": op.position,
            "request": op.request, "state": "open", "requested_at": op.at, "expires_at": op.expires_at,
            "assignee": op.request.assignee, "reminder_count": 0, "reminded_at": None, "answer": None,
            "answered_by": "", "answered_at": None,
        }  # fmt: skip
        self._leave(run, op.position, "requested", op.id, op.at)
        return OpStatus.DONE

    def _change_question(self, run: Row, op: RemindApproval | WithdrawApproval) -> OpStatus:
        row = self.approvals.get(op.id)
        if row is None or row["run_id"] != run["id"]:
            return OpStatus.UNKNOWN_APPROVAL
        if row["state"] == "answered" or (row["state"] == "withdrawn" and isinstance(op, RemindApproval)):
            return OpStatus.REFUSED
        if isinstance(op, RemindApproval):
            if op.reminder_count > row["reminder_count"]:
                row.update(
                    reminder_count=op.reminder_count, assignee=op.assignee, reminded_at=op.at, expires_at=op.expires_at
                )
                told = {"id": op.id, "assignee": op.assignee, "reminder_count": op.reminder_count}
                self._leave(run, row["position"], "reminded", told, op.at)
        elif row["state"] == "open":
            row["state"] = "withdrawn"
            self.withdrawn_in[op.id] = op.epoch
            self._leave(run, row["position"], "withdrawn", op.id, op.at)
        return OpStatus.DONE

    def _answer(self, op: AnswerApproval) -> OpStatus:
        row = self.approvals.get(op.id)
        if row is None:
            return OpStatus.UNKNOWN_APPROVAL
        if row["state"] != "open":
            return OpStatus.DUPLICATE if row["state"] == "answered" else OpStatus.ENDED
        row.update(state="answered", answer=op.payload, answered_by=op.answered_by, answered_at=op.at)
        self._deliver(self.runs[row["run_id"]], f"answer:{op.id}", op.payload, op.at, row["position"])
        return OpStatus.DONE

    def _questions(self, run: Row) -> list[Row]:
        return [row for row in self.approvals.values() if row["run_id"] == run["id"]]

    def _drop_answers(self, run_id: str, positions: Any) -> None:
        mail = self.mailboxes[run_id]
        mail[:] = [one for one in mail if not (one["name"].startswith("answer:") and one["position"] in positions)]

    def _leave(self, run: Row, position: int, kind: str, data: Any, at: float) -> None:
        left = [notice for notice in self.notices[run["id"]] if (notice.position, notice.stream) == (position, "")]
        notice = LiveEvent(position, "", len(left) + 1, kind, json.dumps(data).encode(), at)
        self.notices[run["id"]].append(notice)

    def _forget_steps(self, run: Row, *positions: int) -> None:
        told = self.notices[run["id"]]
        told[:] = [
            notice
            for notice in told
            if notice.kind not in ("started", "text") or (positions and notice.position not in positions)
        ]

    def _remember(self, op: PutMemory | DeleteMemory) -> OpStatus:
        there = self.memories.pop((op.namespace, op.key), None)
        if isinstance(op, PutMemory):
            self.memories[op.namespace, op.key] = {
                "namespace": op.namespace, "key": op.key, "value": op.value, "text": op.text,
                "created_at": there["created_at"] if there else op.at, "updated_at": op.at,
            }  # fmt: skip
        return OpStatus.DONE

    def found_by(self, namespace: str, word: str) -> set[str]:
        """The keys of the memories that have this word, which is in lower case."""
        return {
            row["key"]
            for row in self.memories.values()
            if row["namespace"] == namespace and word in f"{row['key']} {row['text']}".lower().split()
        }

    # Starting

    def _holds(self, link: RunLink | None) -> bool:
        if link is None:
            return True
        run = self.by_key(link.parent_key)
        return run is not None and run["state"] is RUNNING and run["epoch"] == link.epoch

    def _start(self, op: StartRun) -> tuple[Row, bool, bool] | OpStatus:
        if not self._holds(op.link):
            return OpStatus.FENCED
        found = self._find_or_create(op)
        return found if isinstance(found, OpStatus) else (*found, self._linked(found[0]["id"], op.link))

    def _await(self, op: AwaitRun) -> tuple[Row, bool, bool] | OpStatus:
        if not self._holds(op.link):
            return OpStatus.FENCED
        if op.run_id not in self.runs:
            return OpStatus.UNKNOWN_RUN
        return dict(self.runs[op.run_id]), False, self._linked(op.run_id, op.link)

    def _linked(self, run_id: str, link: RunLink | None) -> bool:
        if link is None or not link.is_awaited:
            return False
        waits = self.by_key(link.parent_key)
        assert waits is not None
        place = (waits["id"], link.position)
        known = self.links.get(place)
        if known is not None and known[0] != run_id:
            self._drop_ends(place)
            known = None
        if known is None or known[1] == "late":
            ended = self.runs[run_id]["state"] in ENDED
            known = self.links[place] = [run_id, "late" if ended else "waits"]
        return known[1] != "late"

    def _drop_ends(self, place: tuple[str, int]) -> None:
        mail = self.mailboxes[place[0]]
        mail[:] = [one for one in mail if one["position"] != place[1] or one["name"].startswith("answer:")]

    def _find_or_create(self, op: StartRun) -> tuple[Row, bool] | OpStatus:
        new = op.run
        if new.id in self.runs and self.runs[new.id]["seed"] == new.seed:
            return dict(self.runs[new.id]), True
        if new.id in self.runs:
            return dict(self.runs[new.id]), False
        if new.dedup_key and (new.queue, new.dedup_key) in self.holders:
            return dict(self._joined(self.runs[self.holders[new.queue, new.dedup_key]], new)), False
        if op.join_orphan and (orphans := [run for run in self.runs.values() if self._is_orphan(run, new)]):
            orphan = min(orphans, key=lambda run: run["key"])
            orphan["starter"] = new.starter
            orphan["ended_unseen"] = False
            return dict(orphan), False
        if new.workflow in self.switches:
            return OpStatus.WORKFLOW_DISABLED
        starter = None if op.link is None else self.by_key(op.link.parent_key)
        return dict(self._create(new, op.claim_as, starter)), True

    def _joined(self, run: Row, new: Any) -> Row:
        if run["put_off"] and new.max_debounce_s is not None and run["workflow"] == new.workflow:
            time = max(new.available_at, min(new.created_at, self.clock()))
            run.update(inputs=new.inputs, digest=new.digest, version=new.version, deadline=new.deadline)
            run["wake_at"] = min(time, run["created_at"] + new.max_debounce_s)
        return run

    def _create(self, new: Any, claim_as: int | None, starter: Row | None = None) -> Row:
        limited = new.queue in self.queues
        owner = claim_as if self.is_live(claim_as) and not limited else None
        talk = [
            run["id"] for run in self.runs.values() if (run["workflow"], run["session"]) == (new.workflow, new.session)
        ]
        run: Row = {
            "key": None, "id": new.id, "workflow": new.workflow, "queue": new.queue,
            "state": PENDING if owner is None else RUNNING, "epoch": 0 if owner is None else 1, "owner": owner,
            "starter": new.starter, "delivery_count": 0, "suspicion": 0, "max_deliveries": new.max_deliveries,
            "trace_parent": new.trace_parent,
            "wake_at": None if owner is not None else max(new.available_at, min(new.created_at, self.clock())),
            "waits_for": "", "priority": new.priority, "deadline": new.deadline, "inputs": new.inputs,
            "digest": new.digest, "seed": new.seed, "output": None, "error": None, "tags": new.tags,
            "python_version": new.python_version, "created_at": new.created_at, "finished_at": None,
            "clock_started_at": new.created_at if new.clock_started_at is None else new.clock_started_at,
            "cancel_state": CancelState.NONE, "paused_at": None, "rewind": None, "parent": new.parent,
            "forked_from": new.forked_from, "rewind_points": new.rewind_points,
            "session": new.session, "version": new.version,
            "previous_run": ["", *talk][-1] if new.session else new.previous_run,
            "has_budget": new.budget is not None or (starter is not None and starter["has_budget"]),
            "above": new.parent if new.parent in self.runs else None,
            "generated": new.has_generated_id, "ended_unseen": False, "queue_key": new.queue_key, "is_limited": limited,
            "put_off": new.max_debounce_s is not None, "is_delivery": new.is_delivery,
        }  # fmt: skip
        self.runs[new.id] = run
        if limited:
            self._give_turn(run)
        if new.dedup_key and (owner is None or not run["put_off"]):
            self.holders[new.queue, new.dedup_key] = new.id
        self.journals[new.id], self.attempts[new.id], self.mailboxes[new.id] = [], {}, []
        self.used[new.id], self.notices[new.id] = [], []
        if new.budget is not None:
            self.budgets[new.id] = new.budget
        return run

    def _fork(self, op: ForkRun) -> tuple[Row, bool, bool] | OpStatus:
        if op.run.id in self.runs:
            there = self.runs[op.run.id]
            return dict(there), there["seed"] == op.run.seed, False
        if op.source_run not in self.runs:
            return OpStatus.UNKNOWN_RUN
        if op.run.workflow in self.switches:
            return OpStatus.WORKFLOW_DISABLED
        run = self._create(op.run, None)
        kept = [record for record in self.journals[op.source_run] if record.seq < op.before_seq]
        self.journals[op.run.id] = kept + ([] if op.record is None else [op.record])
        return dict(run), True, False

    def _is_orphan(self, run: Row, new: Any) -> bool:
        return (
            run["generated"]
            and (run["workflow"], run["version"], run["digest"]) == (new.workflow, new.version, new.digest)
            and run["starter"] is not None
            and not self.is_live(run["starter"])
            and (run["ended_unseen"] or run["state"] not in ENDED)
        )

    def _send(self, op: SendSignal) -> OpStatus:
        run = self.runs.get(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        if op.dedup_key is not None and (op.run_id, op.dedup_key) in self.dedups:
            return OpStatus.DUPLICATE
        if run["state"] in ENDED:
            return OpStatus.ENDED
        if op.dedup_key is not None:
            self.dedups.add((op.run_id, op.dedup_key))
        self._deliver(run, op.name, op.payload, op.at)
        return OpStatus.DONE

    def _deliver(
        self, run: Row, name: str, payload: bytes, at: float, position: int | None = None, of: str | None = None
    ) -> None:
        signal = {
            "id": None, "run": run["id"], "name": name, "payload": payload, "sent_at": at, "position": position,
            "of": of,
        }  # fmt: skip
        self.mailboxes[run["id"]].append(signal)
        self.sent.append(signal)
        if run["state"] is WAITING and run["paused_at"] is None:
            run["wake_at"] = self.clock()

    def _ask(self, run: Row, op: Any) -> OpStatus:
        if isinstance(op, CancelRun) and op.seed not in (None, run["seed"]):
            return OpStatus.REFUSED
        paused, ended = run["paused_at"] is not None, run["state"] in ENDED
        unbegun = run["state"] is PENDING and run["epoch"] == 0
        if isinstance(op, CancelRun):
            before = run["cancel_state"] is not CancelState.NONE
            if ended:
                return OpStatus.DUPLICATE if before and run["state"] is RunState.CANCELLED else OpStatus.ENDED
            if before and not paused:
                return OpStatus.DUPLICATE
            run.update(cancel_state=run["cancel_state"] if before else CancelState.REQUESTED, paused_at=None)
            if unbegun or run["is_delivery"]:
                self._end(run, RunState.CANCELLED, finished_at=op.at)
            elif run["state"] is not RUNNING:
                run["wake_at"] = self.clock()
            return OpStatus.DONE
        if ended:
            return OpStatus.ENDED
        if paused is isinstance(op, PauseRun):
            return OpStatus.DUPLICATE
        run["paused_at"] = None if paused else op.at
        if paused and not unbegun and run["state"] is not RUNNING:
            run["wake_at"] = self.clock()
        return OpStatus.DONE

    def _reopen(self, op: ReopenRun) -> OpStatus:
        if op.run_id not in self.runs:
            return OpStatus.UNKNOWN_RUN
        run, settled = self.runs[op.run_id], op.settlement
        if settled is not None and settled.epoch != run["epoch"]:
            return OpStatus.ENDED
        before = run["rewind"]
        if settled is not None:
            run["rewind"] = settled.rewind
        order: list[str] = []
        verdict = self._may_reopen(op.run_id, op, order)
        if verdict is not OpStatus.DONE:
            run["rewind"] = before
        if verdict is OpStatus.DONE:
            for run_id in order:
                self._rewind(self.runs[run_id], order)
                kept = [record.seq for record in self.journals[run_id]]
                self._leave(self.runs[run_id], -1, "reopened", max(kept, default=-1), op.at)
                self._ask_again(self.runs[run_id], b"null", op.at)
            if settled is not None and settled.record is not None:
                journal = self.journals[op.run_id]
                behind = 1 + max((record.seq for record in journal), default=-1)
                journal.append(settled.record._replace(seq=behind))
            if op.version is not None:
                self.runs[op.run_id]["version"] = op.version
        return verdict

    def _ask_again(self, run: Row, payload: bytes, at: float) -> None:
        for place in [place for place in self.short if place[0] == run["id"]]:
            self.short.remove(place)
            self._deliver(run, "holdfast:budget", payload, at)

    def _may_reopen(self, run_id: str, op: ReopenRun, order: list[str]) -> OpStatus:
        run = self.runs[run_id]
        back = run["rewind"]
        if run["state"] not in REOPENABLE:
            return OpStatus.ENDED
        if back is not None and back.is_compensated:
            return OpStatus.COMPENSATED
        if back is not None and back.once_seqs and not op.rerun_once_steps:
            return OpStatus.REFUSED
        order.append(run_id)
        for place, child, was_there in self._open_ends(run):
            other = self.runs[child]
            if place >= back.command_count or child in order:
                continue
            if other["parent"] == run_id and other["state"] in REOPENABLE:
                with_it = [*order]
                verdict = self._may_reopen(child, op, with_it)
                if verdict is OpStatus.DONE:
                    order[:] = with_it
                elif was_there:
                    return verdict
        return OpStatus.DONE

    def _taken(self, run: Row) -> list[Record]:
        back, journal = run["rewind"], self.journals[run["id"]]
        if back is None or not back.failed_seqs:
            return []
        taken: list[Record] = []
        for record in journal:
            later = record.seq > min(back.failed_seqs)
            match record.kind:
                case RecordKind.DEADLINE | RecordKind.CANCEL:
                    goes = later
                case RecordKind.TIMER:
                    goes = later and record.position >= back.timer_count
                case RecordKind.PATCH | RecordKind.CALL:
                    continue  # it may have been decided before the failure was seen
                case _:
                    goes = later and record.position >= back.command_count
            if goes or record.seq in back.failed_seqs:
                taken.append(record)
        return taken

    def _open_ends(self, run: Row) -> list[tuple[int, str, bool]]:
        """The runs that a run waits for, and will have no end of: the position, whose it is, and whether it had one."""
        if run["rewind"] is None or not run["rewind"].failed_seqs:
            return []
        taken = self._taken(run)
        ends = [record for record in self.journals[run["id"]] if record.kind is RecordKind.CHILD]
        kept = {record.position for record in ends if record not in taken}
        had = {record.position for record in ends if record in taken}
        kept |= {*run["rewind"].abandoned_positions}
        places = sorted(place for parent, place in self.links if parent == run["id"] and place not in kept)
        return [(place, self.links[run["id"], place][0], place in had) for place in places]

    def _rewind(self, run: Row, reopened: list[str]) -> None:
        taken = self._taken(run)
        for place, child, was_there in self._open_ends(run):
            is_later = place >= run["rewind"].command_count
            goes_on = child in reopened or self.runs[child]["state"] not in ENDED
            if is_later or goes_on or was_there:
                self._drop_ends((run["id"], place))
                self.links[run["id"], place] = [child, "waits"]
            if is_later or (was_there and not goes_on):
                del self.links[run["id"], place]
        if run["rewind"] is not None and run["rewind"].failed_seqs:
            gone = {row["position"] for row in self._questions(run) if row["position"] >= run["rewind"].command_count}
            self._drop_answers(run["id"], gone)
            gone |= {record.position for record in taken if record.kind is RecordKind.APPROVAL}
            for row in self._questions(run):
                if row["position"] in gone:
                    row["state"] = "withdrawn"
            noted = self.attempts[run["id"]]
            for place in [place for place in noted if place >= run["rewind"].command_count and not noted[place].intent]:
                del noted[place]
        journal = self.journals[run["id"]]
        journal[:] = [record for record in journal if record not in taken]
        if run["deadline"] is not None and run["deadline"] <= self.clock():
            run["deadline"] = None
        run.update(delivery_count=0, suspicion=0, output=None, error=None, finished_at=None, ended_unseen=False)
        is_recorded = any(record.kind is RecordKind.CANCEL for record in journal)
        if run["rewind"] is not None and run["rewind"].failed_seqs:
            run["rewind_points"] = (*run["rewind_points"], run["rewind"].point)
        run.update(cancel_state=CancelState.RECORDED if is_recorded else CancelState.NONE, paused_at=None, rewind=None)
        run["is_limited"] = run["queue"] in self.queues
        self._free(run)
        for record in taken:
            if record.kind is RecordKind.SIGNAL:
                self._deliver(run, record.name, record.payload or b"null", record.started_at)

    def _free(self, run: Row) -> None:
        run.update(state=PENDING, owner=None, wake_at=self.clock())
        self._let_go(run)

    def _let_go(self, run: Row) -> None:
        self.reserved = {place: held for place, held in self.reserved.items() if place[0] != run["id"]}

    def _end(self, run: Row, state: RunState, **fields: Any) -> None:
        starter = self.workers.get(run["starter"])
        unseen = starter is not None and starter["state"] == "dead"
        run.update(state=state, owner=None, wake_at=None, waits_for="", paused_at=None, **fields)
        run["ended_unseen"] = run["generated"] and unseen
        self._let_go(run)
        self._lose_dedup(run)
        self._forget_steps(run)
        for row in self._questions(run):
            if row["state"] == "open":
                row["state"] = "withdrawn"
        self.notify_waiters(run)

    def notify_waiters(self, run: Row) -> None:
        """Notify the runs that wait for a run that it has ended."""
        payload = run["output"] or run["error"] or b"null"
        waiting = [place for place, known in self.links.items() if known == [run["id"], "waits"]]
        for place in sorted(waiting, key=lambda place: (self.runs[place[0]]["key"], place[1])):
            parent = self.runs[place[0]]
            self.links[place][1] = "late" if parent["state"] in ENDED else "told"
            if parent["state"] not in ENDED:
                self._deliver(parent, run["state"], payload, run["finished_at"], place[1], run["id"])

    # Workers and claims

    def claim(self, worker: int, workflows: Any, queues: Any, limit: int) -> list[Row]:
        if not self.is_live(worker):
            return []
        claimed: list[Row] = []
        candidates = [run for run in self.due(workflows, queues) if run["suspicion"] < 2]
        if suspects := [run for run in self.suspects(workflows, queues) if self._passes(run)]:
            most = max(run["suspicion"] for run in suspects)
            limit, candidates = 1, [[run for run in suspects if run["suspicion"] == most][-(most % 2)]]
        while len(claimed) < limit:
            ahead: dict[str, Row] = {}
            for run in candidates:
                if run["state"] is RUNNING:
                    continue
                line = run["queue"] if run["is_limited"] else ""
                if self._passes(run) and (line not in ahead or self._rank(run) < self._rank(ahead[line])):
                    ahead[line] = run
            if not ahead:
                break
            first = min(ahead.values(), key=lambda run: (-run["priority"], run["key"]))
            self._begins(first)
            first.update(state=RUNNING, epoch=first["epoch"] + 1, owner=worker, wake_at=None, waits_for="")
            claimed.append(first)
        return [dict(run) for run in claimed]

    # Queues

    def change_queue(self, name: str, change: Row) -> bool:
        """Announce limits, set them by hand, pause or resume; false: nothing has changed."""
        now = self.queues.get(name, {"declared": None, "by_hand": None, "paused_at": None})
        [(field, value)] = change.items()
        if (now[field] is None) == (value is None) and (field == "paused_at" or now[field] == value):
            return False
        if name not in self.queues:
            self.queues[name] = {**now, "turn": 0, "given": {}}
            for run in self._unfinished_in(name):
                run["is_limited"] = True
                self._give_turn(run)
        self.queues[name][field] = value
        if all(self.queues[name][one] is None for one in ("declared", "by_hand", "paused_at")):
            del self.queues[name]
            self.rates = {place: state for place, state in self.rates.items() if place[0] != name}
            for run in self._unfinished_in(name):
                run["is_limited"] = False
        return True

    def list_queues(self) -> list[QueueStatus]:
        return [self._get_queue_status(name, row) for name, row in sorted(self.queues.items())]

    def _get_queue_status(self, name: str, queue: Row) -> QueueStatus:
        now, runs = self.clock(), self._unfinished_in(name)
        running = Counter(run["queue_key"] for run in runs if run["state"] is RUNNING)
        waiting = Counter(
            run["queue_key"]
            for run in runs
            if run["state"] is not RUNNING
            and run["paused_at"] is None
            and run["wake_at"] is not None
            and run["wake_at"] <= now
        )
        keys = [QueueKeyStatus(key, running[key], waiting[key]) for key in sorted({*running, *waiting})]
        keys.sort(key=lambda one: (-one.waiting_count, -one.running_count))
        free_at = max((self._free_at((name, None, _name(rate)), rate) for rate in self._limits(name).rates), default=0)
        return QueueStatus(
            name, self._limits(name), queue["declared"], queue["by_hand"] is not None, queue["paused_at"],
            running.total(), waiting.total(), free_at if free_at > now else 0.0, tuple(keys),
        )  # fmt: skip

    def _unfinished_in(self, name: str) -> list[Row]:
        return [run for run in self.runs.values() if run["queue"] == name and run["state"] not in ENDED]

    def _limits(self, name: str) -> QueueLimits:
        queue = self.queues[name]
        return queue["by_hand"] or queue["declared"] or QueueLimits()

    def _give_turn(self, run: Row) -> None:
        queue = self.queues[run["queue"]]
        last = queue["given"].get(run["queue_key"], -1)
        run["turn"] = queue["given"][run["queue_key"]] = max(queue["turn"], last + 1)

    def _rank(self, run: Row) -> tuple[Any, ...]:
        if not run["is_limited"]:
            return (-run["priority"], run["key"])
        return (run["epoch"] == 0, -run["priority"], run.get("turn", 0), run["key"])

    def _has_slot(self, run: Row) -> bool:
        limits = self._limits(run["queue"])
        running = [one["queue_key"] for one in self._unfinished_in(run["queue"]) if one["state"] is RUNNING]
        in_queue = limits.concurrency is None or len(running) < limits.concurrency
        of_key = limits.key_concurrency is None or running.count(run["queue_key"]) < limits.key_concurrency
        return in_queue and of_key

    def _passes(self, run: Row) -> bool:
        time = self._wake(run)
        return time is not None and time <= self.clock()

    def _wake(self, run: Row) -> float | None:
        if not run["is_limited"]:
            return run["wake_at"]
        if self.queues[run["queue"]]["paused_at"] is not None:
            return None
        if run["cancel_state"] is not CancelState.NONE:
            return run["wake_at"]
        if not self._has_slot(run):
            return None
        if run["epoch"]:
            return run["wake_at"]
        return max(run["wake_at"], *(self._free_at(place, rate) for place, rate in self._rates_of(run)), 0.0)

    def _begins(self, run: Row) -> None:
        if run["epoch"] == 0:
            if run["put_off"]:
                self._lose_dedup(run)
            if run["is_limited"]:
                self.queues[run["queue"]]["turn"] = run.get("turn", 0)
            for place, rate in self._rates_of(run):
                self.rates[place] = self._rate(place, rate).take(self.clock(), 1 if rate.unit == "calls" else 0).state

    def _rates_of(self, run: Row) -> Iterator[tuple[tuple[str, str | None, str], Rate]]:
        if run["queue"] in self.queues:
            limits = self._limits(run["queue"])
            for rate in limits.rates:
                yield (run["queue"], None, _name(rate)), rate
            for rate in limits.key_rates:
                yield (run["queue"], run["queue_key"], _name(rate)), rate

    def _rate(self, place: tuple[str, str | None, str], rate: Rate) -> RateState:
        return RateState.from_numbers(rate, self.rates[place].to_numbers() if place in self.rates else ())

    def _free_at(self, place: tuple[str, str | None, str], rate: Rate) -> float:
        return self._rate(place, rate).get_next_grant_at(1 if rate.unit == "calls" else 0)

    def _lose_dedup(self, run: Row) -> None:
        self.holders = {place: holder for place, holder in self.holders.items() if holder != run["id"]}

    def retire(self, worker: int) -> None:
        if self.is_live(worker):
            for run in self.held_by(worker):
                self._free(run)
            self.workers[worker]["state"] = "retired"
            self._wake_parked_by(worker)

    def _wake_parked_by(self, worker: int) -> None:
        for run in self.runs.values():
            if self.parked_by.get(run["id"]) == worker and run["state"] is WAITING and run["paused_at"] is None:
                run["wake_at"] = self.clock()

    def expire(self, limit: int) -> list[str]:
        """Runs by delivery that have ended, because their deadline has passed."""
        now = self.clock()
        late = [
            run
            for run in self.runs.values()
            if run["is_delivery"] and run["state"] not in ENDED and (run["deadline"] or now + 1) <= now
        ]
        late = sorted(late, key=lambda run: (run["deadline"], run["key"]))[:limit]
        for run in late:
            self._end(run, RunState.FAILED, finished_at=now)
        return [run["id"] for run in late]

    @staticmethod
    def _has_expired(row: dict[str, Any], now: float, since: float) -> bool:
        """Whether the lease of a worker has passed, for those who can reach the store since then."""
        lease = row["lease_expires_at"] - row["heartbeat_at"]
        return max(since, row["heartbeat_at"]) + lease < now

    def reap(self, me: int | None, since: float, include_listeners: bool) -> tuple[list[int], list[str], list[str]]:
        """Workers that are dead now, runs that are free again, and runs that are dead."""
        now = self.clock()
        gone = [
            worker
            for worker, row in sorted(self.workers.items())
            if row["state"] == "live"
            and worker != me
            and (include_listeners or not row["is_listener"])
            and (row["killed"] or self._has_expired(row, now, since))
        ]
        freed: list[str] = []
        dead: list[str] = []
        for worker in gone:
            held = self.held_by(worker)
            self.workers[worker]["state"] = "dead"
            self._wake_parked_by(worker)
            for run in held:
                if len(held) == 1:
                    run["delivery_count"] += 1
                if len(held) > 1 or run["delivery_count"] < run["max_deliveries"]:
                    run["suspicion"] = 1 if run["suspicion"] == 0 else max(4, run["suspicion"] + 1)
                    self._free(run)
                    freed.append(run["id"])
                else:
                    self._end(run, RunState.DEAD, finished_at=now)
                    dead.append(run["id"])
        return gone, freed, dead

    def died_of(self, run_id: str, error: bytes) -> None:
        """Take over the words of an end, also where they have been told."""
        self.runs[run_id]["error"] = error
        for signal in self.sent:
            if signal["of"] == run_id:
                signal["payload"] = error


def _name(rate: Rate) -> str:
    return f"{rate.unit} in {rate.window_s}"


async def look(store: Any, ids: Any, workflows: Any, queues: Any, workers: Any) -> dict[str, Any]:
    """All that can be read from a store."""
    runs = await store.list_runs(RunFilter())
    return {
        "runs": runs,
        "again": [await store.get_run(run.id) for run in runs],
        "many": sorted(await store.get_runs([*ids, "none"]), key=lambda run: -run.key),
        "histories": await store.get_histories([run.key for run in runs]),
        "counts": dict(await store.count_runs()),
        "unfinished": dict(await store.count_unfinished_runs()),
        "usages": dict(await store.get_usages([*ids, "none"])),
        "spent": await store.daily_usage.get("0001-01-01", "9999-12-31"),
        "workers": await store.list_workers(),
        "specs": dict(await store.get_workflow_specs()),
        "requests": {worker: await store.claims.get_run_requests(worker) for worker in workers},
        "switches": {name: one.disabled_at for name, one in (await store.disabled_workflows.get_all()).items()},
        "queues": await store.queues.list(),
        "signals": {worker: list((await store.claims.get_new_signals(worker, 0)).signals) for worker in workers},
        "approvals": await store.list_approvals(ApprovalFilter(only_open=False)),
        "open": await store.list_approvals(ApprovalFilter()),
        "feeds": [await store.get_run_updates(run.id, -1, 0) for run in runs],
        "memories": [memory for space in SPACES for memory in await store.memories.list(space)],
        "wakes": [
            await store.claims.get_next_wake_at(workflows=[flow], queues=[queue])
            for flow in workflows
            for queue in queues
        ],
    }
