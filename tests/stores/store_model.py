"""What the contract says a store does, in plain dictionaries, written down a second time.

The model shares nothing with the stores, not even ``stores.rules``: where the two disagree, one of them is wrong. It
decides what depends on the contract alone. What a store is free to choose (keys, the ids of signals and workers, the
words of a death) it takes over from the store, once the machine has checked that the choice is a legal one.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.records import Attempt, Kind, Record
from holdfast.core.states import RunState
from holdfast.stores.contract import (
    AppendRecord,
    FinishRun,
    NoteAttempt,
    Op,
    ParkRun,
    ReleaseRun,
    ReopenRun,
    RunFilter,
    SendSignal,
    StartRun,
    Verdict,
)

PENDING, RUNNING, WAITING = RunState.PENDING, RunState.RUNNING, RunState.WAITING
ENDED = {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.DEAD}
UNKNOWN = "StepOutcomeUnknown"
"""Stands in the payload of a ``once`` step of which nobody knows whether it happened."""

Row = dict[str, Any]


class Model:
    """A store as it should be."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.runs: dict[str, Row] = {}
        self.journals: dict[str, list[Record]] = {}
        self.attempts: dict[str, dict[int, Attempt]] = {}
        self.mailboxes: dict[str, list[Row]] = {}
        self.sent: list[Row] = []
        """Signals that the store has not been asked for the ids of yet, in the order they were sent."""
        self.dedups: set[tuple[str, str]] = set()
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
            and run["wake_at"] is not None
            and run["workflow"] in workflows
            and (queues is None or run["queue"] in queues)
        ]

    def due(self, workflows: Any, queues: Any) -> list[Row]:
        now = self.clock()
        due = [run for run in self.sleeping(workflows, queues) if run["wake_at"] <= now]
        return sorted(due, key=lambda run: (-run["priority"], run["key"]))

    # Operations: each returns what the store must answer

    def apply(self, op: Op) -> Any:
        match op:
            case StartRun():
                return self._start(op)
            case SendSignal():
                return self._send(op)
            case ReopenRun():
                return self._reopen(op)
            case _:
                run = self.by_key(op.key)
                return Verdict.FENCED if run is None else self._on_held(run, op)

    def _on_held(self, run: Row, op: Any) -> Verdict:
        epoch = op.record.epoch if isinstance(op, AppendRecord) else op.epoch
        held = run["state"] is RUNNING and run["epoch"] == epoch
        match op:
            case AppendRecord():
                return self._append(run, op, held)
            case NoteAttempt() if held:
                self.attempts[run["id"]][op.attempt.position] = op.attempt
            case FinishRun() if held:
                self._end(run, op.state, output=op.output, error=op.error, finished_at=op.at)
            case FinishRun():
                return Verdict.DONE if (run["epoch"], run["state"]) == (epoch, op.state) else Verdict.FENCED
            case ParkRun() if held:
                if any(signal["name"] in op.signals for signal in self.mailboxes[run["id"]]):
                    return Verdict.REFUSED
                run.update(state=WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for)
            case ParkRun():
                return Verdict.DONE if (run["epoch"], run["state"]) == (epoch, WAITING) else Verdict.FENCED
            case ReleaseRun() if held:
                self._free(run)
            case _:
                return Verdict.FENCED
        return Verdict.DONE

    def _append(self, run: Row, op: AppendRecord, held: bool) -> Verdict:
        journal = self.journals[run["id"]]
        there = [record.epoch for record in journal if record.seq == op.record.seq]
        if there:
            return Verdict.DONE if there == [op.record.epoch] else Verdict.FENCED
        if not held:
            return Verdict.FENCED
        journal.append(op.record)
        if op.consume is not None:
            mailbox = self.mailboxes[run["id"]]
            mailbox[:] = [signal for signal in mailbox if signal["id"] != op.consume]
        if op.clear_attempt:
            self.attempts[run["id"]].pop(op.record.position, None)
        if op.reset_deliveries:
            run["deliveries"] = 0
        return Verdict.DONE

    def _start(self, op: StartRun) -> tuple[Row, bool]:
        new = op.run
        if new.id in self.runs:
            there = self.runs[new.id]
            return dict(there), there["seed"] == new.seed
        if op.join_orphan and (orphans := [run for run in self.runs.values() if self._is_orphan(run, new)]):
            orphan = min(orphans, key=lambda run: run["key"])
            orphan["starter"] = new.starter
            orphan["ended_unseen"] = False
            return dict(orphan), False
        owner = op.claim_as if self.is_live(op.claim_as) else None
        run: Row = {
            "key": None, "id": new.id, "workflow": new.workflow, "queue": new.queue,
            "state": PENDING if owner is None else RUNNING, "epoch": 0 if owner is None else 1, "owner": owner,
            "starter": new.starter, "deliveries": 0, "max_deliveries": new.max_deliveries,
            "wake_at": None if owner is not None else max(new.available_at, min(new.created_at, self.clock())),
            "waits_for": "", "priority": new.priority, "deadline": new.deadline, "inputs": new.inputs,
            "digest": new.digest, "seed": new.seed, "output": None, "error": None, "tags": new.tags,
            "python": new.python, "created_at": new.created_at, "finished_at": None,
            "generated": new.generated_id, "ended_unseen": False,
        }  # fmt: skip
        self.runs[new.id] = run
        self.journals[new.id], self.attempts[new.id], self.mailboxes[new.id] = [], {}, []
        return dict(run), True

    def _is_orphan(self, run: Row, new: Any) -> bool:
        return (
            run["generated"]
            and (run["workflow"], run["digest"]) == (new.workflow, new.digest)
            and run["starter"] is not None
            and not self.is_live(run["starter"])
            and (run["ended_unseen"] or run["state"] not in ENDED)
        )

    def _send(self, op: SendSignal) -> Verdict:
        run = self.runs.get(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if op.dedup is not None and (op.run_id, op.dedup) in self.dedups:
            return Verdict.DUPLICATE
        if run["state"] in ENDED:
            return Verdict.ENDED
        if op.dedup is not None:
            self.dedups.add((op.run_id, op.dedup))
        signal = {"id": None, "run": op.run_id, "name": op.name, "payload": op.payload, "sent_at": op.at}
        self.mailboxes[op.run_id].append(signal)
        self.sent.append(signal)
        if run["state"] is WAITING:
            run["wake_at"] = self.clock()
        return Verdict.DONE

    def _reopen(self, op: ReopenRun) -> Verdict:
        run = self.runs.get(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if run["state"] not in (RunState.FAILED, RunState.DEAD):
            return Verdict.ENDED
        journal = self.journals[op.run_id]
        last = journal[-1] if journal else None
        if last is not None and last.kind is Kind.STEP and not last.ok:
            if UNKNOWN.encode() in (last.payload or b"") and not op.run_again:
                return Verdict.REFUSED
            journal.pop()
        elif last is not None and last.kind is Kind.DEADLINE:
            journal.pop()
        if run["deadline"] is not None and run["deadline"] <= self.clock():
            run["deadline"] = None
        run.update(deliveries=0, output=None, error=None, finished_at=None, ended_unseen=False)
        self._free(run)
        return Verdict.DONE

    def _free(self, run: Row) -> None:
        run.update(state=PENDING, owner=None, wake_at=self.clock())

    def _end(self, run: Row, state: RunState, **fields: Any) -> None:
        starter = self.workers.get(run["starter"])
        unseen = starter is not None and starter["state"] == "dead"
        run.update(state=state, owner=None, wake_at=None, ended_unseen=run["generated"] and unseen, **fields)

    # Workers and claims

    def claim(self, worker: int, workflows: Any, queues: Any, limit: int) -> list[Row]:
        if not self.is_live(worker):
            return []
        claimed = self.due(workflows, queues)[:limit]
        for run in claimed:
            run.update(state=RUNNING, epoch=run["epoch"] + 1, owner=worker, wake_at=None, waits_for="")
        return [dict(run) for run in claimed]

    def retire(self, worker: int) -> None:
        if self.is_live(worker):
            for run in self.held_by(worker):
                self._free(run)
            self.workers[worker]["state"] = "retired"

    def reap(self, me: int | None) -> tuple[list[int], list[str], list[str]]:
        """Workers that are dead now, runs that are free again, and runs that are dead."""
        now = self.clock()
        gone = [
            worker
            for worker, row in sorted(self.workers.items())
            if row["state"] == "live" and worker != me and (row["killed"] or row["lease_until"] < now)
        ]
        freed: list[str] = []
        dead: list[str] = []
        for worker in gone:
            held = self.held_by(worker)
            self.workers[worker]["state"] = "dead"
            for run in held:
                run["deliveries"] += 1
                if run["deliveries"] < run["max_deliveries"]:
                    self._free(run)
                    freed.append(run["id"])
                else:
                    self._end(run, RunState.DEAD, finished_at=now)
                    dead.append(run["id"])
        return gone, freed, dead


async def look(store: Any, ids: Any, workflows: Any, queues: Any, workers: Any) -> dict[str, Any]:
    """All that can be read from a store."""
    runs = await store.list_runs(RunFilter())
    return {
        "runs": runs,
        "again": [await store.get(run.id) for run in runs],
        "many": sorted(await store.get_many([*ids, "none"]), key=lambda run: -run.key),
        "histories": await store.histories([run.key for run in runs]),
        "counts": dict(await store.count_runs()),
        "workers": await store.workers(),
        "specs": dict(await store.specs()),
        "signals": {worker: await store.new_signals(worker, 0) for worker in workers},
        "wakes": [await store.next_wake(workflows=[flow], queues=[queue]) for flow in workflows for queue in queues],
    }
