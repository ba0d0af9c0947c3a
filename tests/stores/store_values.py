"""Values for the store suite, with only what a test cares about spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.core.records import Attempt, Record, RecordKind, Rewind, Signal
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import (
    AppendRecord,
    FinishRun,
    NewRun,
    Op,
    OpStatus,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Run,
    RunLink,
    SaveAttempt,
    SendSignal,
    StartResult,
    StartRun,
)
from holdfast.stores.workers import NewWorker

DONE, NOTIFIED, FENCED, REFUSED = OpStatus.DONE, OpStatus.DONE_NOTIFIED, OpStatus.FENCED, OpStatus.REFUSED
FLOW = "etl"
CLAIM_FILTER: dict[str, Any] = {"workflows": [FLOW], "queues": None}


class Clock:
    """Time that moves when told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def new_run(run_id: str = "r", **fields: Any) -> NewRun:
    given: dict[str, Any] = {
        "workflow": FLOW,
        "inputs": b'{"customer":"acme"}',
        "digest": b"digest",
        "seed": b"seed-" + run_id.encode(),
        "created_at": 1_000_000.0,
    }
    return NewRun(id=run_id, **{**given, **fields})


def new_worker(name: str = "w", **fields: Any) -> NewWorker:
    return NewWorker(**{"name": name, "host": "host", "pid": 7, "workflows": (FLOW,), **fields})


def make_record(seq: int, *, epoch: int = 1, position: int | None = None, **fields: Any) -> Record:
    given: dict[str, Any] = {
        "kind": RecordKind.STEP,
        "position": seq if position is None else position,
        "name": "extract",
        "ok": True,
        "payload": b"[1, 2]",
        "at": 1_000_001.5,
        "started_at": 1_000_001.25,
        "worker": 1,
        "preview": "customer='acme'",
    }
    return Record(seq=seq, epoch=epoch, **{**given, **fields})


def append(
    run: Run,
    seq: int,
    *,
    consume: int | None = None,
    clear: bool = False,
    reset: bool = False,
    used: Usage | None = None,
    **fields: Any,
) -> AppendRecord:
    made = make_record(seq, **{"epoch": run.epoch, **fields})
    return AppendRecord(
        run.key, made, consumed_signal_id=consume, clear_attempt=clear, reset_delivery_count=reset, used=used
    )


def reserve(run: Run, position: int, tokens: int = 0, **fields: Any) -> ReserveUsage:
    """Ask for a call that is expected to take so many tokens."""
    return ReserveUsage(run.key, run.epoch, position, Usage(calls=1, input_tokens=tokens, **fields))


def save_attempt(run: Run, position: int, number: int = 1, **fields: Any) -> SaveAttempt:
    return SaveAttempt(run.key, run.epoch, Attempt(position, number, **fields))


def finish(run: Run, state: RunState = RunState.COMPLETED, **fields: Any) -> FinishRun:
    given: dict[str, Any] = {"output": b'"done"', "error": None, "at": 1_000_002.0}
    if state is not RunState.COMPLETED:
        given.update(output=None, error=b'{"type":"ValueError"}')
    if state is RunState.CANCELLED:
        given.update(respect_cancel=False)  # whoever ends it so has recorded the cancel
    return FinishRun(run.key, run.epoch, state, **{**given, **fields})


def park(run: Run, wake_at: float | None = None, *signals: str, **fields: Any) -> ParkRun:
    return ParkRun(run.key, run.epoch, wake_at, signals, "waits for approval", **fields)


def link(parent: Run, position: int = 0, *, awaited: bool = True) -> RunLink:
    return RunLink(parent.key, parent.epoch, position, awaited)


def start_child(
    parent: Run, run_id: str = "c", position: int = 0, *, claim_as: int | None = None, **fields: Any
) -> StartRun:
    """Start a run from within another one, which waits for it."""
    return StartRun(new_run(run_id, parent=parent.id, **fields), claim_as, link=link(parent, position))


def rewind(*failed: int, command_count: int = 1000, timer_count: int = 1000, **fields: Any) -> Rewind:
    """Take back these records, and nothing that came of them."""
    return Rewind(failed, command_count, timer_count, **fields)


def release(run: Run) -> ReleaseRun:
    return ReleaseRun(run.key, run.epoch)


def signal(run_id: str = "r", name: str = "go", payload: bytes = b"1", dedup: str | None = None) -> SendSignal:
    return SendSignal(run_id, name, payload, dedup, 1_000_003.0)


async def commit_ops(store: Store, *ops: Op) -> Sequence[Any]:
    return await store.commit(ops)


async def start_run(store: Store, run_id: str = "r", *, claim_as: int | None = None, **fields: Any) -> Run:
    """A new run."""
    [answer] = await store.commit([StartRun(new_run(run_id, **fields), claim_as=claim_as)])
    assert isinstance(answer, StartResult)
    assert answer.is_new
    return answer.run


async def start_claimed_run(store: Store, run_id: str = "r", *, lease: float = 10.0, **fields: Any) -> Run:
    """A new run, held by a new worker under epoch 1."""
    worker = await store.workers.register(new_worker(), lease)
    return await start_run(store, run_id, claim_as=worker, **fields)


async def claim_run(store: Store, worker: int | None = None) -> Run:
    """The run that a worker gets who asks for one."""
    if worker is None:
        worker = await store.workers.register(new_worker("claimant"), 10.0)
    [run] = await store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    return run


async def get_state(store: Store, run_id: str = "r") -> RunState:
    run = await store.get_run(run_id)
    assert run is not None
    return run.state


async def read_run(store: Store, run_id: str = "r") -> Run:
    run = await store.get_run(run_id)
    assert run is not None
    return run


async def list_signals(store: Store, run: Run) -> list[Signal]:
    [history] = await store.get_histories([run.key])
    return list(history.signals)


async def list_record_seqs(store: Store, run: Run) -> list[int]:
    """The sequence numbers of a run's records."""
    [history] = await store.get_histories([run.key])
    return [made.seq for made in history.records]
