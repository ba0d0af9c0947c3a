"""Whatever happens, in whatever order, each store does what the contract says: it is held against a model of it.

``test_store_agreement`` holds the stores against each other; a mistake that all of them share passes there. Here two
processes (two store objects on the same data) and any number of workers do what engines do, and what engines do wrong
when they are late: stale fences, repeated commits, zombies. After every step, everything that can be read must be what
the model says.

``HOLDFAST_MACHINE_EXAMPLES=2000 pytest tests/stores/test_store_state_machine.py`` looks longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from queue_values import make_limits
from store_model import ENDED, REOPENABLE, SPACES, WAITING, Model, look
from store_values import Clock, new_run, new_worker

from holdfast.admission.usage import NANO_PER_USD, BudgetLimits, BudgetShortage, Usage
from holdfast.codec import encode_error, read_error_info
from holdfast.core.records import Attempt, Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, ApprovalRequest, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.contract import RunFilter, WorkflowSpec
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.memories import DeleteMemory, MemoryChange, PutMemory
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    AwaitRun,
    CancelRun,
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
    Run,
    RunLink,
    SaveAttempt,
    SendSignal,
    SetBudget,
    Settlement,
    StartResult,
    StartRun,
)
from holdfast.stores.queues import NewQueue

EXAMPLES = int(os.environ.get("HOLDFAST_MACHINE_EXAMPLES", "35"))
STEPS = 50

IDS = ["r1", "r2", "r3", "r4"]
FLOWS = ["etl", "mail"]
VERSIONS = ["", "2"]
SERVED = ["etl", "mail", "etl@2", "mail@2"]
QUEUES = ["default", "slow"]
LIMITS = {
    "default": [make_limits(1), make_limits(2), make_limits(2, key_concurrency=1)],
    "slow": [
        make_limits(2, "2/4s", "60 tokens/10s", key_concurrency=1, key_rates=("1/4s", "45 tokens/10s")),
        make_limits(None, "3/4s", "60 tokens/10s", key_rates=("2/4s", "45 tokens/10s")),
        make_limits(1, "1/4s", "60 tokens/10s", key_rates=("1/4s", "45 tokens/10s")),
    ],
}
"""The rates of a queue are always in the same times: what was used of others may be forgotten."""
NAMES = ["go", "go", "stop"]
FAILURE = encode_error(ValueError("no"))

PEOPLE = ["ann", "bob"]
KEYS = ["food", "dog"]
WORDS = ["dog", "Dogs", "cat", "CAT", "a"]
QUESTIONS = [
    ApprovalRequest("really?"), ApprovalRequest("which?", "ann", ("a", "b")),
    ApprovalRequest("may I?", tool="rm", arguments=b'{"a":1}'),
    ApprovalRequest("may I?", form_schema=b"{}", tool="rm", arguments=b'{"a":1}'),
]  # fmt: skip

HARMLESS = (
    StartRun, AwaitRun, AppendRecord, FinishRun, ParkRun, CancelRun, PauseRun, ResumeRun, ForkRun, SetBudget,
    RemindApproval, AnswerApproval,
)  # fmt: skip
"""What may be handed in again as it is, by the contract; so may a signal with a key, and a reservation alone (others in
the same commit may change what it is answered)."""

BUDGETS = [
    BudgetLimits(tokens=100), BudgetLimits(calls=3), BudgetLimits(nano_usd=NANO_PER_USD // 2, calls=6),
    BudgetLimits(tokens=250, seconds=4.0), BudgetLimits(),
]  # fmt: skip
USED = [Usage(1, 30, 10, 5, NANO_PER_USD // 8, 0, 1.5), Usage(1, 5, 20, 0, 0, 1), Usage(seconds=0.25), Usage()]
MODELS = ["", "test:a", "test:b"]
MUCH = Usage(10**6, 10**9, nano_usd=10**15)
"""More than any budget: the answer tells what is used and reserved."""
EXPECTED = [
    MUCH,
    MUCH,
    Usage(1, 20, 20, nano_usd=NANO_PER_USD // 10),
    Usage(1, 60, 0, nano_usd=NANO_PER_USD // 4),
    Usage(1),
    Usage(1, 40, unpriced=1),
]

seeds = st.integers(0, 2**32)


class StoreMachine(RuleBasedStateMachine):
    """A store, and the model that it is held against."""

    def __init__(self, backend: Any, folder: Path) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.random = random.Random()
        self.clock = Clock()
        self.model = Model(self.clock)
        self.backend = backend
        self.loop = asyncio.Runner()
        self.place = backend.place(self.folder)
        self.here = backend.make(self.place.__enter__(), self.clock)
        self.wait(self.here.open())
        self.there = backend.again(self.here, self.clock)
        self.wait(self.there.open())
        self.last: list[Op] = []
        self.last_answers: list[Any] = []
        self.highest_signal = 0
        self.ends: dict[str, tuple[int, RunState]] = {}

    def wait(self, awaitable: Any) -> Any:
        async def main() -> Any:
            return await awaitable

        return self.loop.get_loop().run_until_complete(main())  # `run` would set up Ctrl-C each time

    def teardown(self) -> None:
        for store in (self.there, self.here):
            self.wait(store.close())
        self.loop.close()
        self.place.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def one_of(self, items: Any) -> Any:
        return self.random.choice(list(items))

    def mostly(self) -> bool:
        return self.random.random() < 0.75

    # Operations

    def commit(self, ops: list[Op], expected: list[Any]) -> None:
        """Hand them in through one of the two processes, and compare the answers."""
        store = self.one_of((self.here, self.there))
        answers = self.wait(store.commit(ops))
        note("".join(f"    {op}: {answer}\n" for op, answer in zip(ops, answers, strict=True)))
        assert len(answers) == len(ops)
        for op, answer, wanted in zip(ops, answers, expected, strict=True):
            if isinstance(wanted, BudgetShortage):
                assert answer == wanted, f"{op}: {answer}, not {wanted}"
            elif isinstance(wanted, tuple):
                assert isinstance(answer, StartResult), f"{op}: {answer}, not {wanted}"
                self.same_started(answer, wanted)
            else:
                assert answer is wanted, f"{op}: {answer}, not {wanted}"
            if isinstance(op, ReopenRun) and answer is OpStatus.DONE:
                self.forget_ends(op.run_id)
        self.number_signals()
        self.last, self.last_answers = ops, answers

    def forget_ends(self, run_id: str) -> None:
        """A run is reopened, perhaps with its children, and the same commit may end it again in another way."""
        if self.ends.pop(run_id, None) is not None:
            for child in [run["id"] for run in self.model.runs.values() if run["parent"] == run_id]:
                self.forget_ends(child)

    def same_started(self, answer: StartResult, wanted: tuple[dict[str, Any], bool, bool]) -> None:
        row, created, linked = wanted
        assert (answer.is_new, answer.is_linked) == (created, linked)
        assert not (created and answer.is_deduplicated)
        mine = self.model.runs[row["id"]]
        if mine["key"] is None:
            others = [run["key"] for run in self.model.runs.values() if run["key"] is not None]
            assert answer.run.key > max(others, default=0), "keys rise: lists are newest first"
            mine["key"] = answer.run.key
        self.same_row(answer.run, {**row, "key": mine["key"]})

    def number_signals(self) -> None:
        """Take over the ids of new signals: they rise in the order of sending, and none is used twice."""
        sent, self.model.sent = self.model.sent, []
        for signal in sent:
            if not any(one is signal for one in self.model.mailboxes[signal["run"]]):
                continue  # taken out again by the same commit
            [history] = self.wait(self.here.get_histories([self.model.runs[signal["run"]]["key"]]))
            known = {one["id"] for one in self.model.mailboxes[signal["run"]]}
            signal["id"] = next(one.id for one in history.signals if one.id not in known)
            assert signal["id"] > self.highest_signal
            self.highest_signal = signal["id"]

    def draw_op(self) -> Op:
        kinds = [self.draw_start, self.draw_signal, self.draw_reopen, self.draw_request, self.draw_request]
        kinds += [self.draw_fork, self.draw_budget, self.draw_answer, self.draw_answer, self.draw_memory]
        if any(run["key"] is not None for run in self.model.runs.values()):
            kinds += [self.draw_append, self.draw_append, self.draw_note, self.draw_finish, self.draw_park]
            kinds += [self.draw_release, self.draw_await, self.draw_reserve, self.draw_reserve]
            kinds += [self.draw_question, self.draw_question, self.draw_reminder, self.draw_notices]
        return self.one_of(kinds)()

    def target(self) -> tuple[dict[str, Any], int]:
        """A run, and the fence under which somebody believes to hold it: right as a rule, but not always."""
        runs = [run for run in self.model.runs.values() if run["key"] is not None]
        held = [run for run in runs if run["state"] is RunState.RUNNING]
        run = self.one_of(held if held and self.mostly() else runs)
        return run, max(0, run["epoch"] + self.one_of((0, 0, 0, 0, 0, 0, -1, 1)))

    def draw_start(self) -> StartRun:
        acting = self.model.acting()
        starter = self.one_of([None, *acting])
        fields = {
            "seed": self.one_of((b"s", b"t")),
            "workflow": self.one_of(FLOWS),
            "version": self.one_of(VERSIONS),
            "queue": self.one_of(QUEUES),
            "priority": self.random.randint(0, 1),
            "created_at": self.clock() + self.one_of((0.0, -5.0, 5.0)),
            "available_at": self.one_of((0.0, 0.0, self.clock() + 3.0)),
            "deadline": self.one_of((None, self.clock() + 3.0, self.clock() + 3.0, self.clock() + 1000.0)),
            "max_deliveries": self.one_of((1, 2, 3, 3)),
            "has_generated_id": self.one_of((True, False)),
            "starter": starter,
            "tags": self.one_of(((), ("nightly",))),
            "budget": self.one_of((None, None, *BUDGETS)),
            "session": self.one_of(("", "", "talk")),
            "queue_key": self.one_of(("", "acme", "beta")),
            "dedup_key": self.one_of(("", "", "same")),
            "max_debounce_s": self.one_of((None, 2.0, 9.0)),
            "inputs": self.one_of((b"1", b"2")),
            "digest": self.one_of((b"digest", b"digest", b"other")),
            "is_delivery": self.one_of((True, False, False)),
        }
        claim_as, link = None, self.draw_link() if self.one_of((True, False)) else None
        if link is not None and self.mostly():
            waits = self.model.by_key(link.parent_key)
            assert waits is not None
            fields["parent"] = waits["id"]
        if self.mostly():
            # A worker that was declared dead may not know yet; one whose process is gone starts nothing.
            late = [
                worker for worker, row in self.model.workers.items() if row["state"] == "dead" and not row["killed"]
            ]
            claim_as = self.one_of(acting if acting and self.mostly() else [None, *late])
        unused = [run_id for run_id in IDS if run_id not in self.model.runs]
        run = new_run(self.one_of(unused if unused and self.mostly() else IDS), **fields)
        return StartRun(run, claim_as, starter is not None and self.one_of((True, False)), link)

    def draw_link(self) -> RunLink | None:
        if not any(run["key"] is not None for run in self.model.runs.values()):
            return None
        run, epoch = self.target()
        return RunLink(run["key"], epoch, self.random.randint(0, 2), self.mostly())

    def draw_await(self) -> AwaitRun:
        link = self.draw_link()
        assert link is not None
        return AwaitRun(self.one_of(IDS), link)

    def draw_fork(self) -> ForkRun:
        source = self.one_of(IDS)
        seqs = [record.seq for record in self.model.journals.get(source, [])]
        keep = self.one_of([0, *seqs])
        record = Record(keep, RecordKind.STEP, 0, "x", True, b"[2]", self.clock())
        run = new_run(self.one_of(IDS), seed=self.one_of((b"s", b"t")), clock_started_at=self.one_of((None, 7.0)))
        run = replace(run, workflow=self.one_of(FLOWS), created_at=self.clock(), forked_from=source)
        run = replace(run, queue=self.one_of(QUEUES), queue_key=self.one_of(("", "acme")))
        run = replace(run, budget=self.model.budgets.get(source), previous_run=self.one_of(("", "r1")))
        run = replace(run, is_delivery=self.one_of((True, False)), deadline=self.one_of((None, self.clock() + 3.0)))
        return ForkRun(source, run, keep, self.one_of((None, record)))

    def draw_request(self) -> Op:
        run_id, kind = self.known_id(RunState.RUNNING, RunState.PENDING, WAITING), self.random.randint(0, 3)
        if kind == 0:
            return CancelRun(run_id, self.clock(), self.one_of((None, None, b"s")))
        return (PauseRun if kind == 1 else ResumeRun)(run_id, self.clock())

    def draw_append(self) -> AppendRecord:
        run, epoch = self.target()
        journal = self.model.journals[run["id"]]
        if journal and self.random.randint(0, 4) == 0:
            record = self.one_of(journal)  # once more, as it was, or by somebody else
            record = record if self.one_of((True, False)) else record._replace(epoch=epoch)
            used, memory = self.one_of((None, *USED)), self.one_of((None, self.draw_memory()))
            return AppendRecord(run["key"], record, used=used, memory=memory, clear_live_events=self.mostly())
        kind = self.one_of((*RecordKind, RecordKind.STEP))
        ok = kind is not RecordKind.STEP or self.one_of((True, False))
        payload = b"[1]" if ok else FAILURE
        noted = list(self.model.attempts[run["id"]])
        position = self.one_of(noted) if noted and self.mostly() else self.random.randint(0, 2)
        record = self.next_record(run, kind, ok, payload)._replace(position=position, epoch=epoch)
        mailbox = [signal["id"] for signal in self.model.mailboxes[run["id"]] if signal["id"] is not None]
        consume = self.one_of(mailbox) if mailbox and self.mostly() else None
        used = self.one_of((None, None, None, *USED))
        if self.one_of((True, False)):  # as most are: nothing but a record
            return AppendRecord(run["key"], record, used=used, model=self.one_of(MODELS))
        memory = self.one_of((None, self.draw_memory()))
        return AppendRecord(run["key"], record, consume, self.mostly(), self.mostly(), used, memory, self.mostly())

    def next_record(self, run: dict[str, Any], kind: RecordKind, ok: bool, payload: bytes | None) -> Record:
        journal = self.model.journals[run["id"]]
        return Record(
            journal[-1].seq + 1 if journal else 0, kind, 0, "x", ok, payload, self.clock(), epoch=run["epoch"]
        )

    def draw_note(self) -> SaveAttempt:
        run, epoch = self.target()
        progress = self.one_of((None, b"7"))
        attempt = Attempt(self.random.randint(0, 2), self.random.randint(1, 3), self.one_of((True, False)), progress)
        return SaveAttempt(run["key"], epoch, attempt)

    def draw_reserve(self) -> ReserveUsage:
        run, epoch = self.target()
        return ReserveUsage(run["key"], epoch, self.random.randint(0, 2), self.one_of(EXPECTED))

    def draw_budget(self) -> SetBudget:
        known = [run_id for run_id in self.model.budgets if self.model.runs[run_id]["state"] not in ENDED]
        run_id = self.one_of(known) if known and self.mostly() else self.one_of(IDS)
        return SetBudget(run_id, self.one_of(BUDGETS), self.clock())

    def draw_finish(self) -> FinishRun:
        run, epoch = self.target()
        state = self.one_of((RunState.FAILED, RunState.FAILED, RunState.COMPLETED, RunState.CANCELLED))
        output, error = (b"1", None) if state is RunState.COMPLETED else (None, FAILURE)
        return FinishRun(
            run["key"], epoch, state, output, error, self.clock(), self.draw_rewind(run), respect_cancel=self.mostly()
        )

    def draw_rewind(self, run: dict[str, Any]) -> Rewind | None:
        # No run fails because of a patch, or of a program's call before it has an outcome.
        kinds = RecordKind.PATCH, RecordKind.CALL
        seqs = [record.seq for record in self.model.journals[run["id"]] if record.kind not in kinds]
        if not seqs or not self.mostly():
            return None
        failed = tuple(self.random.sample(seqs[-3:], self.random.randint(0, min(2, len(seqs)))))
        positions, timers, odd = self.random.randint(0, 3), self.random.randint(0, 3), self.random.randint(0, 9)
        return Rewind(failed, positions, timers, is_compensated=odd == 0, once_seqs=failed[:1] if odd == 1 else ())

    def draw_park(self) -> ParkRun:
        run, epoch = self.target()
        wake_at = self.one_of((None, self.clock() - 1, self.clock() + 4))
        children = self.one_of(((), (0,), (1, 2)))
        paused = run["paused_at"] is not None if self.mostly() else self.one_of((True, False))
        signals = self.one_of(((), ("go",), ("stop", "go")))
        asked = [row["id"] for row in self.model.approvals.values() if row["run_id"] == run["id"]]
        answers = tuple(id for id in asked if self.one_of((True, False)))
        return ParkRun(
            run["key"],
            epoch,
            wake_at,
            signals,
            "a word",
            awaited_positions=children,
            is_pause=paused,
            approval_ids=answers,
        )

    def draw_release(self) -> ReleaseRun:
        run, epoch = self.target()
        wake_at = self.one_of((None, None, self.clock() - 1, self.clock() + 4))
        return ReleaseRun(run["key"], epoch, wake_at, self.one_of((None, FAILURE)))

    def draw_signal(self) -> SendSignal:
        payload = b"%d" % self.random.randint(0, 99)
        dedup = self.one_of((None, "once", "twice"))
        return SendSignal(self.known_id(RunState.RUNNING, WAITING), self.one_of(NAMES), payload, dedup, self.clock())

    def draw_question(self) -> RequestApproval:
        """As runs ask: under an id that follows from the run, the position and the question, the same as a rule."""
        run, epoch = self.target()
        position = self.random.randint(0, 2)
        which = position if self.mostly() else self.random.randrange(len(QUESTIONS))
        owner = run["id"] if self.mostly() else self.one_of(IDS)
        expires_at = self.one_of((None, self.clock() + 9))
        approval = f"{owner}-{position}-{which}"
        return RequestApproval(run["key"], epoch, position, approval, QUESTIONS[which], self.clock(), expires_at)

    def draw_reminder(self) -> Op:
        run, epoch = self.target()
        asked = [row["id"] for row in self.model.approvals.values() if row["run_id"] == run["id"]]
        approval = self.one_of(asked) if asked and self.mostly() else f"{run['id']}-0-0"
        if self.one_of((True, False)):
            return WithdrawApproval(run["key"], epoch, approval, self.clock())
        expires_at = self.one_of((None, self.clock() + 9))
        return RemindApproval(
            run["key"], epoch, approval, self.random.randint(1, 3), self.one_of(PEOPLE), self.clock(), expires_at
        )

    def draw_answer(self) -> AnswerApproval:
        asked = [row["id"] for row in self.model.approvals.values() if row["state"] == "open"]
        approval = self.one_of(asked) if asked and self.mostly() else self.one_of([*self.model.approvals, "none"])
        return AnswerApproval(approval, self.one_of((b"true", b"false")), self.one_of(PEOPLE), self.clock())

    def draw_notices(self) -> AppendLiveEvents:
        run, epoch = self.target()
        notices = [
            LiveEvent(
                self.random.randint(0, 2), self.one_of("12"), self.random.randint(0, 3),
                self.one_of(("started", "text")), self.one_of((b'"a"', b'"b"')), self.clock(),
            )
            for _ in range(self.random.randint(0, 3))
        ]  # fmt: skip
        return AppendLiveEvents(run["key"], epoch, tuple(notices))

    def draw_memory(self) -> MemoryChange:
        space, key = self.one_of(SPACES), self.one_of(KEYS)
        if not self.mostly():
            return DeleteMemory(space, key)
        text = " ".join(self.random.sample(WORDS, self.random.randint(0, 3)))
        return PutMemory(space, key, self.one_of((b"1", b"2")), text, self.clock())

    def draw_reopen(self) -> ReopenRun:
        version, run_id = self.one_of((None, *VERSIONS)), self.known_id(*REOPENABLE)
        settles = None if self.mostly() else self.draw_settlement(run_id)
        return ReopenRun(run_id, self.clock(), self.one_of((True, False)), version, settles)

    def draw_settlement(self, run_id: str) -> Settlement | None:
        run = self.model.runs.get(run_id)
        rewind = None if run is None else self.draw_rewind(run)
        if run is None or rewind is None:
            return None
        given = Record(0, RecordKind.STEP, self.random.randint(0, 3), "pay", True, b"1", self.clock(), attempts=0)
        return Settlement(run["epoch"] - (not self.mostly()), rewind, self.one_of((None, given)))

    def known_id(self, *states: RunState) -> str:
        """The id of a run, as a rule of one in these states."""
        known = [run["id"] for run in self.model.runs.values() if run["state"] in states]
        return self.one_of((known or self.model.runs or IDS) if self.mostly() else IDS)

    # What happens

    @initialize(seed=seeds)
    def a_worker_registers(self, seed: int) -> None:
        self.random.seed(seed)
        self.has_limits = self.one_of((True, False))
        self.registers()
        self.starts()

    @rule(seed=seeds)
    def something_happens(self, seed: int) -> None:
        # Chosen by a seed, not draw by draw: Hypothesis favours simple values and few rules, and would spend most of
        # its examples on runs that nobody holds. It still leaves out the steps that a failure does not need.
        self.random.seed(seed)
        chosen = self.one_of(self.among_workers() if self.random.random() < 0.2 else self.among_runs())
        note(f"  {chosen.__name__}")
        chosen()

    def among_runs(self) -> list[Any]:
        runs, held = self.model.runs.values(), self.held()
        can: list[Any] = [self.starts, self.starts, self.commits_a_group, self.commits_a_group]
        can += [self.works] * 6 + [self.leaves] * 2 + [self.fails, self.takes_its_worker_down] if held else []
        can += [self.has_a_signal_when_it_would_leave] if any(self.model.mailboxes[run["id"]] for run in held) else []
        can += [self.begets] * 3 if held else []
        can += [self.requests_approvals] * 3 + [self.publishes_and_remembers] * 2 if held else []
        can += [self.fails_with_its_child] * 4 if any(self.ends_for(run) for run in held) else []
        can += [self.claims] * 5 if self.model.due(SERVED, None) else []
        can += [self.is_signalled] * 2 if any(run["state"] is WAITING for run in runs) else []
        can += [self.is_reopened] * 2 if any(run["state"] in ENDED for run in runs) else []
        can += [self.asks] * 2 if self.model.runs else []
        can += [self.limits_a_queue] * 2 if self.has_limits else []
        can += [self.spends] * 4 if any(run["has_budget"] for run in held) else []
        can += [self.is_given_another_budget] * 2 if self.model.short else []
        can += [self.hands_the_last_commit_in_again] if self.last else []
        can += [self.expires] * 2 if any(run["is_delivery"] and run["state"] not in ENDED for run in runs) else []
        return [*can, self.is_listed]

    def among_workers(self) -> list[Any]:
        can: list[Any] = [self.registers, self.renews, self.reaps, self.time_passes, self.announces, self.switches]
        can += [self.keeps] if any(row["is_listener"] for row in self.model.workers.values()) else []
        return can + ([self.retires, self.dies] if len(self.model.acting()) > 1 else [])

    def committed(self, *draws: Any) -> None:
        ops: list[Op] = []
        expected: list[Any] = []
        for draw in draws:
            ops.append(draw())
            expected.append(self.model.apply(ops[-1]))
        self.commit(ops, expected)

    def starts(self) -> None:
        self.committed(self.draw_start)

    def works(self) -> None:
        self.committed(
            self.one_of((self.draw_append, self.draw_append, self.draw_note, self.draw_signal, self.draw_await))
        )

    def spends(self) -> None:
        """As a model call does: reserve, and record what was used, or end. Then somebody asks what is left."""
        run = self.one_of([run for run in self.held() if run["has_budget"]])
        position, how = self.random.randint(0, 2), self.random.randint(0, 4)
        asked = ReserveUsage(run["key"], run["epoch"], position, self.one_of(EXPECTED[2:]))
        record = self.next_record(run, RecordKind.STEP, True, b"[1]")._replace(position=position)
        outcome: Op = AppendRecord(run["key"], record, used=self.one_of(USED) if how < 3 else None)
        if how == 0:
            outcome = FinishRun(run["key"], run["epoch"], RunState.FAILED, None, FAILURE, self.clock())
        if how == 1:  # handed in together, and once more
            self.committed(lambda: asked, lambda: outcome)
            self.hands_the_last_commit_in_again()
        else:
            self.committed(lambda: asked)
            self.committed(lambda: outcome)
        family = [self.model.runs[one] for one in self.model.family(run["id"])]
        asking = [one for one in family if one["state"] is RunState.RUNNING and one["has_budget"]]
        if asking:
            self.committed(lambda: ReserveUsage(asking[-1]["key"], asking[-1]["epoch"], 2, MUCH))

    def is_given_another_budget(self) -> None:
        self.committed(self.draw_budget)

    def asks(self) -> None:
        self.committed(self.draw_request)

    def switches(self) -> None:
        flow, model = self.one_of(FLOWS), self.model.switches
        if flow in model:
            assert self.wait(self.here.disabled_workflows.disable(flow)) is False
            assert self.wait(self.there.disabled_workflows.enable(flow)) is True
            del model[flow]
        else:
            assert self.wait(self.here.disabled_workflows.enable(flow)) is False
            assert self.wait(self.there.disabled_workflows.disable(flow)) is True
            model[flow] = self.clock()

    def limits_a_queue(self) -> None:
        name, store = self.one_of(QUEUES), self.one_of((self.here, self.there))
        how = self.one_of(("announces",) * 3 + ("sets", "takes back", "pauses", "resumes", "resumes"))
        given = self.one_of(LIMITS[name])
        note(f"    {how} {name} {given}\n")
        if how == "announces":
            self.wait(store.queues.declare([NewQueue(name, given)]))
            self.model.change_queue(name, {"declared": given})
        elif how in ("sets", "takes back"):
            change = given if how == "sets" else None
            assert self.wait(store.queues.set_limits(name, change)) is self.model.change_queue(
                name, {"by_hand": change}
            )
        elif how == "pauses":
            changed = self.model.change_queue(name, {"paused_at": self.clock()})
            assert self.wait(store.queues.pause(name)) is changed
        else:
            assert self.wait(store.queues.resume(name)) is self.model.change_queue(name, {"paused_at": None})

    def leaves(self) -> None:
        self.committed(self.one_of((self.draw_park, self.draw_park, self.draw_release, self.draw_finish)))

    def has_a_signal_when_it_would_leave(self) -> None:
        name = self.one_of(NAMES)
        run = self.one_of([run for run in self.held() if self.model.mailboxes[run["id"]]])
        if self.one_of((True, False)):
            asked = tuple(row["id"] for row in self.model.approvals.values())
            self.committed(
                lambda: ParkRun(
                    run["key"], run["epoch"], None, (name,), "a word", awaited_positions=(0, 1, 2), approval_ids=asked
                )
            )
            return
        signal = self.model.mailboxes[run["id"]][0]
        record = self.next_record(run, RecordKind.SIGNAL, True, signal["payload"])._replace(
            started_at=signal["sent_at"]
        )
        if signal["position"] is not None:
            kind, ok = RecordKind.APPROVAL, True
            if not signal["name"].startswith("answer:"):
                kind, ok = RecordKind.CHILD, signal["name"] == "completed"
            record = record._replace(kind=kind, position=signal["position"], ok=ok)
        self.committed(lambda: AppendRecord(run["key"], record, signal["id"]))

    def fails(self) -> None:
        """As most runs fail: with a step, or with their deadline."""
        run = self.one_of(self.held())
        kind = self.one_of((RecordKind.STEP, RecordKind.STEP, RecordKind.DEADLINE))
        if kind is RecordKind.DEADLINE and run["deadline"] is not None:
            self.clock.now = max(self.clock.now, run["deadline"])
        payload = None if kind is RecordKind.DEADLINE else FAILURE
        record = self.next_record(run, kind, kind is RecordKind.DEADLINE, payload)
        back = self.one_of((self.draw_rewind(run), Rewind((record.seq,), 9, 9), None))
        end = FinishRun(run["key"], run["epoch"], RunState.FAILED, None, FAILURE, self.clock(), back)
        self.committed(lambda: AppendRecord(run["key"], record), lambda: end)

    def requests_approvals(self) -> None:
        """Ask them, and wait for them, who may answer at once."""
        self.committed(self.draw_question)
        if self.mostly():
            self.committed(self.one_of((self.draw_answer, self.draw_park, self.draw_reminder)))

    def publishes_and_remembers(self) -> None:
        self.committed(self.one_of((self.draw_notices, self.draw_notices, self.draw_memory)))

    def begets(self) -> None:
        """Start a run and wait for it, which may end at once."""
        run = self.one_of(self.held())
        budget = self.one_of((None, None, *BUDGETS))
        new = new_run(
            self.one_of(IDS), workflow=run["workflow"], created_at=self.clock(), parent=run["id"], budget=budget
        )
        link = RunLink(run["key"], run["epoch"], self.random.randint(0, 2))
        self.committed(lambda: StartRun(new, run["owner"], link=link))
        child = self.model.runs.get(new.id)
        if child is not None and child["state"] is RunState.RUNNING and self.one_of((True, False)):
            error = None if self.one_of((True, False)) else FAILURE
            state = RunState.COMPLETED if error is None else RunState.FAILED
            end = FinishRun(child["key"], child["epoch"], state, None, error, self.clock())
            self.committed(lambda: end)

    def fails_with_its_child(self) -> None:
        run = self.one_of([run for run in self.held() if self.ends_for(run)])
        end = self.ends_for(run)[0]
        kind = RecordKind.APPROVAL if end["name"].startswith("answer:") else RecordKind.CHILD
        record = self.next_record(run, kind, False, FAILURE)._replace(position=end["position"])
        back = Rewind((record.seq,), 9, 9)
        finish = FinishRun(run["key"], run["epoch"], RunState.FAILED, None, FAILURE, self.clock(), back)
        self.committed(lambda: AppendRecord(run["key"], record, end["id"]), lambda: finish)
        if self.mostly():
            self.committed(lambda: ReopenRun(run["id"], self.clock(), self.one_of((True, False))))

    def ends_for(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        return [signal for signal in self.model.mailboxes[run["id"]] if signal["position"] is not None]

    def takes_its_worker_down(self) -> None:
        owner = self.one_of(self.held())["owner"]
        if self.model.workers[owner]["is_listener"]:
            self.keep(owner, 1.0)
            self.clock.advance(1.5)
        elif not self.model.workers[owner]["killed"]:
            self.backend.kill_worker(self.here, owner)
            self.model.workers[owner]["killed"] = True
        self.reaps()

    def held(self) -> list[dict[str, Any]]:
        return [run for run in self.model.runs.values() if run["state"] is RunState.RUNNING]

    def is_signalled(self) -> None:
        self.committed(self.draw_signal)

    def is_reopened(self) -> None:
        self.committed(self.draw_reopen)

    def commits_a_group(self) -> None:
        self.committed(*[self.draw_op] * self.random.randint(2, 5))

    def hands_the_last_commit_in_again(self) -> None:
        refusals = (OpStatus.REFUSED, OpStatus.FENCED, OpStatus.ENDED, OpStatus.WORKFLOW_DISABLED)
        refused = any(answer in refusals for answer in self.last_answers)
        keyed = [op for op in self.last if isinstance(op, SendSignal) and op.dedup_key is not None]
        reservations = [op for op in self.last if isinstance(op, ReserveUsage)]
        undecided = any(
            isinstance(op, PauseRun | ResumeRun) and answer is not OpStatus.DONE
            for op, answer in zip(self.last, self.last_answers, strict=True)
        )
        linked = [op.link for op in self.last if isinstance(op, StartRun | AwaitRun) and op.link is not None]
        asked = [op.run_id for op in self.last if isinstance(op, CancelRun | PauseRun | ResumeRun)]
        places = {(link.parent_key, link.position) for link in linked}
        contradicts = len(places) < len(linked) or len(set(asked)) < len(asked)
        joined = any(
            isinstance(op, StartRun) and isinstance(answer, StartResult) and answer.run.id != op.run.id
            for op, answer in zip(self.last, self.last_answers, strict=True)
        )
        harmless = not (joined or refused or undecided or contradicts) and all(
            isinstance(op, HARMLESS) or op in keyed or [op] == reservations == self.last for op in self.last
        )
        before = self.look(self.here)
        self.commit(self.last, [self.model.apply(op) for op in self.last])
        if harmless:
            assert self.look(self.here) == before

    def registers(self) -> None:
        lease, is_listener = self.one_of((50.0, 5.0)), self.one_of((True, False, False))
        worker = self.wait(self.here.workers.register(new_worker(workflows=(), is_listener=is_listener), lease))
        assert worker not in self.model.workers
        now = self.clock()
        self.model.workers[worker] = {
            "state": "live", "killed": False, "workflows": (), "started_at": now, "lease_expires_at": now + lease,
            "heartbeat_at": now, "is_listener": is_listener,
        }  # fmt: skip

    def renews(self) -> None:
        lease = self.one_of((50.0, 5.0))
        worker = self.one_of(self.model.workers)
        row = self.model.workers[worker]
        if row["is_listener"] or (row["killed"] and row["state"] == "live"):
            return  # there is nobody to do it
        renewed = self.here.workers.renew_lease(worker, lease)
        assert renewed is (row["state"] == "live")
        if renewed:
            row["lease_expires_at"] = self.clock() + lease
            row["heartbeat_at"] = self.clock()

    def keeps(self) -> None:
        """From any process, and however long the lease is over; not the lease of a worker that has a process."""
        self.keep(self.one_of(self.model.workers), self.one_of((50.0, 5.0, 1.0)))

    def keep(self, worker: int, lease: float) -> None:
        row = self.model.workers[worker]
        kept = self.wait(self.one_of((self.here, self.there)).workers.renew_listener_lease(worker, lease))
        assert kept is (row["is_listener"] and row["state"] == "live")
        if kept:
            row.update(lease_expires_at=self.clock() + lease, heartbeat_at=self.clock())

    def expires(self) -> None:
        if self.mostly():
            times = [run["deadline"] for run in self.model.runs.values() if run["is_delivery"] and run["deadline"]]
            self.clock.now = max(self.clock.now, min(times, default=0.0))
        limit = self.random.randint(1, 3)
        expected = self.model.expire(limit)
        assert self.wait(self.one_of((self.here, self.there)).claims.expire_runs(limit)) == expected
        for run_id in expected:
            run = self.wait(self.here.get_run(run_id))
            assert read_error_info(run.error).type == "holdfast.errors.RunTimedOut"
            self.model.died_of(run_id, run.error)
        self.number_signals()

    def retires(self) -> None:
        worker = self.one_of(self.model.acting())
        is_listener = self.model.workers[worker]["is_listener"]
        self.wait(self.one_of((self.here, self.there) if is_listener else (self.here,)).workers.retire(worker))
        self.model.retire(worker)

    def dies(self) -> None:
        worker = self.one_of(self.model.acting())
        if self.model.workers[worker]["is_listener"]:
            return  # nobody sees that
        self.backend.kill_worker(self.here, worker)
        self.model.workers[worker]["killed"] = True

    def reaps(self) -> None:
        me = self.one_of([None, *self.model.acting()])
        since, include_listeners = self.one_of((0.0, self.clock() - 7.0)), self.one_of((False, True))
        window = LeaseWindow(since, self.clock())
        found = self.wait(
            self.one_of((self.here, self.there)).workers.reap_dead(me, window, include_listeners=include_listeners)
        )
        gone, freed, dead = self.model.reap(me, since, include_listeners)
        assert (sorted(found.worker_ids), found.released_count, sorted(found.dead_run_ids)) == (
            gone,
            len(freed),
            sorted(dead),
        )
        for run_id in dead:
            run = self.wait(self.here.get_run(run_id))
            told = read_error_info(run.error)
            assert told.type == "holdfast.errors.RunDead"
            assert f"holdfast retry {run_id}" in told.message
            self.model.died_of(run_id, run.error)
        self.number_signals()
        if not self.model.acting():
            self.registers()  # with nobody there, nothing happens any more

    def claims(self) -> None:
        workflows = self.one_of((SERVED, SERVED, SERVED[:1], SERVED[1:], SERVED[2:]))
        queues, limit = self.one_of((None, None, QUEUES[:1], QUEUES[1:])), self.random.randint(1, 3)
        acting = self.model.acting()
        able = [worker for worker, row in self.model.workers.items() if not (row["killed"] and row["state"] == "live")]
        if not able:
            return
        worker = self.one_of(acting if acting and self.mostly() else able)
        store = self.one_of((self.here, self.there))
        claimed = self.wait(store.claims.claim(worker, workflows=workflows, queues=queues, limit=limit))
        is_suspicious = bool(self.model.suspects(workflows, queues))
        wanted = self.model.claim(worker, workflows, queues, limit)
        found, expected = [run.id for run in claimed], [row["id"] for row in wanted]
        assert found == expected, f"{found}, not {expected}"
        for run, row in zip(claimed, wanted, strict=True):
            self.same_row(run, row)
        if len(claimed) < limit and self.model.is_live(worker) and not is_suspicious:
            told = self.wait(store.claims.get_next_wake_at(workflows=workflows, queues=queues))
            assert told is None or told > self.clock(), "what was just refused is not due"

    def time_passes(self) -> None:
        self.clock.advance(self.one_of((4.0, 0.5, 20.0)))

    def announces(self) -> None:
        names = self.random.choices(FLOWS, k=self.random.randint(1, 2))
        queue = self.one_of(QUEUES)
        budget = self.one_of((None, *BUDGETS))
        specs = [
            WorkflowSpec(name, ("customer",), None, queue, tags=(str(at),), budget=budget, is_agent=at == 1)
            for at, name in enumerate(names)
        ]
        worker = self.one_of([None, *self.model.acting()])
        self.wait(self.here.announce_workflows(specs, worker))
        self.model.specs.update((spec.name, spec) for spec in specs)
        if worker is not None:
            row = self.model.workers[worker]
            row["workflows"] = tuple(dict.fromkeys((*row["workflows"], *names)))

    def is_listed(self) -> None:
        where = RunFilter(
            states=self.random.sample(list(RunState), self.random.randint(0, 3)),
            workflow=self.one_of((None, *FLOWS)),
            tag=self.one_of((None, "nightly")),
            id_prefix=self.one_of((None, "r", "r1", "x")),
            text=self.one_of((None, None, "R1", "night", "MAIL", "valueerror no")),
            parent=self.one_of((None, None, None, *IDS)),
            owner=self.one_of((None, None, None, *self.model.workers)),
        )
        limit, before = self.random.randint(1, 3), self.one_of((None, 2, 3))
        found = self.wait(self.there.list_runs(where, limit=limit, before_key=before))
        wanted = [
            run["id"]
            for run in sorted(self.model.runs.values(), key=lambda run: -run["key"])
            if (before is None or run["key"] < before)
            and (not where.states or run["state"] in where.states)
            and where.workflow in (None, run["workflow"])
            and (where.tag is None or where.tag in run["tags"])
            and run["id"].startswith(where.id_prefix or "")
            and where.parent in (None, run["parent"])
            and where.owner in (None, run["owner"])
            and (where.text is None or where.text.lower() in self.words(run))
        ]
        assert [run.id for run in found] == wanted[:limit]

    def words(self, run: dict[str, Any]) -> str:
        told = None if run["error"] is None else read_error_info(run["error"])
        error = "" if told is None else f"{told.type} {told.message}"
        return " | ".join((run["id"], run["workflow"], *run["tags"], error)).lower()

    # Invariants

    def look(self, store: Any) -> Any:
        return self.wait(look(store, IDS, SERVED, QUEUES, self.model.workers))

    def same_row(self, run: Run, row: dict[str, Any]) -> None:
        told = {field.name: getattr(run, field.name) for field in fields(run)}
        if run.state in ENDED:
            del told["is_limited"]  # it is decided anew by a retry
        other = {name: (value, row[name]) for name, value in told.items() if value != row[name]}
        assert not other, f"{run.id} is not as it should be: {other}"

    @invariant()
    def everything_is_as_the_contract_says(self) -> None:
        model, seen = self.model, self.look(self.there)
        rows = sorted(model.runs.values(), key=lambda run: -run["key"])
        assert [run.id for run in seen["runs"]] == [row["id"] for row in rows]
        assert seen["runs"] == seen["again"] == seen["many"]
        for run, row, history in zip(seen["runs"], rows, seen["histories"], strict=True):
            self.same_row(run, row)
            assert list(history.records) == model.journals[run.id]
            assert dict(history.attempts) == model.attempts[run.id]
            names = ("id", "name", "payload", "sent_at", "position")
            mailbox = [tuple(one[name] for name in names) for one in model.mailboxes[run.id]]
            assert [tuple(signal) for signal in history.signals] == mailbox
        counts: dict[Any, int] = {}
        for row in rows:
            counts[row["workflow"], row["state"]] = counts.get((row["workflow"], row["state"]), 0) + 1
        assert seen["counts"] == counts
        assert seen["specs"] == model.specs
        assert seen["usages"] == model.usages()
        days = [(date.fromisoformat(line.day) - date(1970, 1, 1)).days for line in seen["spent"]]
        spent = {(day, one.workflow, one.model): one.used for day, one in zip(days, seen["spent"], strict=True)}
        assert spent == {place: used for place, used in model.spent.items() if used != Usage()}
        assert len(spent) == len(seen["spent"]), "one line for each"
        assert seen["switches"] == model.switches
        queues = model.list_queues()
        assert seen["queues"] == queues, f"{seen['queues']}, not {queues}"
        assert {w: [tuple(r) for r in asked] for w, asked in seen["requests"].items()} == {
            worker: model.requests(worker) for worker in model.workers
        }
        self.approvals_and_events_are_as_the_model_says(seen, rows)
        self.workers_are_as_they_should(seen["workers"])
        for worker, signals in seen["signals"].items():
            held = [(run["key"], one["id"]) for run in model.held_by(worker) for one in model.mailboxes[run["id"]]]
            assert [(key, signal.id) for key, signal in signals] == sorted(held, key=lambda pair: pair[1])
        unfinished = Counter((run["workflow"], run["version"]) for run in rows if run["state"] not in ENDED)
        assert seen["unfinished"] == unfinished
        now = self.clock()
        for wake, (flow, queue) in zip(seen["wakes"], [(f, q) for f in SERVED for q in QUEUES], strict=True):
            times = model.wakes([flow], [queue])
            told, wanted = (None if wake is None else max(wake, now)), (max(min(times), now) if times else None)
            if queue in model.queues and told is not None and (wanted is None or told < wanted):
                continue  # where there are limits, it may be too early, and never too late
            assert told == wanted

    def approvals_and_events_are_as_the_model_says(self, seen: Any, rows: list[dict[str, Any]]) -> None:
        model = self.model
        asked = {approval.id: asdict(approval) for approval in seen["approvals"]}
        assert {name: {**row, "request": model.approvals[name]["request"]} for name, row in asked.items()} == (
            model.approvals
        )
        assert all(approval.request == model.approvals[approval.id]["request"] for approval in seen["approvals"])
        assert [one.requested_at for one in seen["approvals"]] == sorted(one.requested_at for one in seen["approvals"])
        assert seen["open"] == [one for one in seen["approvals"] if one.state == "open"]
        for row, feed, history in zip(rows, seen["feeds"], seen["histories"], strict=True):
            self.same_row(feed.run, row)
            assert list(feed.records) == list(history.records)
            assert [notice for _, notice in feed.live_events] == model.notices[row["id"]]
            numbers = [number for number, _ in feed.live_events]
            assert numbers == sorted(set(numbers))
        wanted = sorted(model.memories.values(), key=lambda row: (row["namespace"], row["key"]))
        assert [asdict(memory) for memory in seen["memories"]] == wanted
        space, word = self.one_of(SPACES), self.one_of(("dog", "dogs", "cat", "food"))
        found = self.wait(self.there.memories.search(space, word.upper()))
        assert {memory.key for memory in found} == model.found_by(space, word)

    def workers_are_as_they_should(self, found: Any) -> None:
        unfinished = [run for run in self.model.runs.values() if run["state"] not in ENDED]
        named = {run["owner"] for run in unfinished} | {run["starter"] for run in unfinished}
        wanted = {
            worker: row for worker, row in self.model.workers.items() if row["state"] == "live" or worker in named
        }
        assert [worker.id for worker in found] == sorted(wanted)
        for worker in found:
            row = wanted[worker.id]
            names = ("state", "workflows", "started_at", "lease_expires_at", "heartbeat_at", "is_listener")
            assert [getattr(worker, name) for name in names] == [row[name] for name in names]

    @invariant()
    def a_run_that_has_ended_stays_as_it_ended_until_it_is_reopened(self) -> None:
        for run in self.wait(self.here.list_runs(RunFilter())):
            if run.state in ENDED:
                assert self.ends.setdefault(run.id, (run.epoch, run.state)) == (run.epoch, run.state)
                assert run.owner is None
                assert run.finished_at is not None
            else:
                self.ends.pop(run.id, None)
                assert (run.owner is not None) == (run.state is RunState.RUNNING)
                assert run.output is run.error is run.finished_at is None
                assert run.waits_for == "" or run.state is WAITING


def test_a_store_does_what_the_contract_says(backend: Any, tmp_path: Path):
    longer = settings(
        max_examples=max(1, EXAMPLES // backend.slower),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: StoreMachine(backend, tmp_path), settings=longer)
