"""What people do to runs: cancel, pause and resume, retry, settle, fork, answer, deploy, switch a workflow off and on.

They do it from a process that is a worker, through its engine, or from outside, with a connection of their own. Either
way an answer may get lost, and then they do it again; what they do may also arrive late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.core.records import Record, RecordKind
from holdfast.errors import SettleRefused
from holdfast.services import forks
from holdfast.services.approvals import Answer
from holdfast.services.settlement import find_unsettled_steps, settle_step
from holdfast.stores.approvals import AnswerApproval
from holdfast.stores.contract import History, RunUsage
from holdfast.stores.operations import (
    CancelRun,
    ClientOp,
    ForkRun,
    Op,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    StartResult,
)
from simulation import faults
from simulation.process_store import run_sync

if TYPE_CHECKING:
    from simulation.world import World

MAX_FORKS = 2
"""Maximum number of forks in one world: each is another run to wait for."""


def perform_action(world: World, action: str, run_id: str | None = None) -> None:
    """Perform a user's action on this run, or on one that the seed chooses."""
    known = list(world.checker.runs_by_id)
    if not (world.is_fault_phase and known):
        return
    chance = world.rng
    run_id = run_id or chance.choice(known)
    if chance.random() < 0.2:
        run_id = world.checker.runs_by_id[run_id].row.parent or run_id
    world.counts[f"people: {action}"] += 1
    now = world.database.now()
    match action:
        case "cancel":
            submit_change(world, CancelRun(run_id, now))
        case "pause":
            submit_change(world, PauseRun(run_id, now))
            seconds = [0.3, 5.0, 5.0] if world.plan.is_calm else [0.0, 0.01, 0.3, 1.0, 3.0]
            for _ in range(chance.choice([1, 1, 2])):
                world.schedule(world.time + chance.choice(seconds), submit_change, world, ResumeRun(run_id, now))
        case "retry":
            submit_change(world, choose_settlement(world, run_id) or ReopenRun(run_id, now, chance.random() < 0.3))
        case "fork":
            _fork_run(world, run_id)
        case "switch":
            workflow = world.checker.runs_by_id[run_id].row.workflow
            _set_workflow_disabled(world, workflow, True)
            world.schedule(
                world.time + chance.choice([0.0, 0.05, 0.5, 2.0, 5.0]), _set_workflow_disabled, world, workflow, False
            )


def submit_change(world: World, op: ClientOp) -> None:
    """Send a request about a run, from a worker's process or from outside."""
    chance = world.rng
    candidates = world.list_open_processes()
    if candidates and chance.random() < 0.5:
        process = chance.choice(candidates)
        about = op.id if isinstance(op, AnswerApproval) else op.run_id
        world.log(process, "asks for", type(op).__name__, about)
        process.spawn(process.change_run, op)
        return
    _commit_from_outside(world, op)
    if chance.random() < 0.2:  # repeated if there is no answer
        world.schedule(world.time + chance.choice([0.0, 0.01, 0.3, 1.0]), _commit_from_outside, world, op)


def answer_approval(world: World, approval_id: str) -> None:
    """Answer an approval with an answer that no other user gives."""
    world.counts["people: answer"] += 1
    said = Answer(
        True, f"said {world.counts['people: answer']}", answered_by="someone", answered_at=world.database.now()
    )
    submit_change(world, AnswerApproval(approval_id, said.encode(), said.answered_by, said.answered_at))


def deploy_code(world: World) -> None:
    """Deploy other code, or roll it back: runs that are loaded from now on ask other questions."""
    if not world.is_fault_phase:
        return
    world.counts["people: deploy"] += 1
    world.code_version = 1 - world.code_version
    if not world.plan.is_calm:
        kind = world.rng.choice(["close", "crash"])
        # If a run kills its processes, nothing else does, so that the cause of each death is known.
        faults.inject_fault(world, "close" if world.plan.has_killer else kind)


def _commit_from_outside(world: World, op: Op) -> Any:
    """Write from outside, and repeat while the database is unreachable."""
    if world.time < world.unreachable_until:
        world.schedule(world.unreachable_until + 0.1, _commit_from_outside, world, op)
        return None
    [answer] = run_sync(world.database.commit([op]))
    world.log_write("someone", "commit", op, answer)
    world.checker.check_operation(None, op, answer)
    world.on_write(None)
    return answer


def _set_workflow_disabled(world: World, workflow: str, is_disabled: bool) -> None:
    store = world.database
    run_sync(store.disabled_workflows.disable(workflow) if is_disabled else store.disabled_workflows.enable(workflow))
    world.log("someone", f"switches {workflow} {'off' if is_disabled else 'on'}")
    world.checker.request_checker.note_disabled(workflow, is_disabled)
    world.on_write(None)


def resume_everything(world: World) -> None:
    """After the fault phase, resume everything that users have stopped."""
    for workflow in list(world.checker.request_checker.disabled_since):
        _set_workflow_disabled(world, workflow, False)
    for approval, asked in list(world.checker.approval_checker.approvals.items()):
        if asked.state == "open":
            answer_approval(world, approval)
    for model in list(world.checker.runs_by_id.values()):
        if model.row.paused_at is not None and not model.row.state.is_terminal:
            _commit_from_outside(world, ResumeRun(model.row.id, world.database.now()))


# Settling and forking


class _RecordingStore:
    """A client's store that reads, and collects what is to be written."""

    url = "memory://simulated"

    def __init__(self, world: World) -> None:
        self._database = world.database
        self.now: Callable[[], float] = world.database.now
        self.op: Any

    async def get_run(self, run_id: str) -> Run | None:
        return await self._database.get_run(run_id)

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self._database.get_histories(keys)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._database.get_usages(run_ids)

    async def commit(self, ops: Sequence[ForkRun | ReopenRun]) -> list[StartResult | OpStatus]:
        [self.op] = ops
        if isinstance(self.op, ReopenRun):
            return [OpStatus.DONE]
        found = await self._database.get_run(self.op.source_run)
        assert found is not None
        return [StartResult(found, is_new=True)]


def choose_settlement(world: World, run_id: str) -> ReopenRun | None:
    """A user's verdict about a step of unknown outcome, if it ended the run and the user does not just retry."""
    chance, model = world.rng, world.checker.runs_by_id[run_id]
    unknown = [record for record in find_unsettled_steps(model.row, model.journal) if record.kind is RecordKind.STEP]
    if not unknown or chance.random() < 0.3:
        return None
    record = chance.choice(unknown)
    args, kwargs = json.loads(world.checker.commands[run_id, record.position][2])
    label, _, fails, _ = (*args, *(kwargs[name] for name in ("label", "seconds", "fails", "beats")[len(args) :]))
    said = {"happened": False} if fails or chance.random() < 0.3 else {"output": f"{run_id}/{label}"}
    store = _RecordingStore(world)
    try:
        run_sync(settle_step(store, run_id, record.position + 1, by="someone", **said))  # type: ignore[arg-type]
    except SettleRefused:
        return None
    world.counts["people: settle"] += 1
    return store.op


def _fork_run(world: World, run_id: str) -> None:
    chance, model = world.rng, world.checker.runs_by_id[run_id]
    steps = [
        record for record in model.journal if record.kind in (RecordKind.STEP, RecordKind.CHILD, RecordKind.SIGNAL)
    ]
    if len(world.fork_ids) >= MAX_FORKS or not steps:
        return
    record = chance.choice(steps)
    new_id = f"{run_id}-f{len(world.fork_ids) + 1}"
    given: dict[str, Any] = {}
    own = record.name != "change run" and not record.name.startswith("approval ")
    if record.kind is RecordKind.STEP and own and chance.random() < 0.4:
        label = world.checker.compensation_checker.get_label(model, record)
        given["with_output"] = f"{new_id}/{label}"
    store = _RecordingStore(world)
    with patch.object(forks.secrets, "token_bytes", chance.randbytes):
        run_sync(forks.fork_run(store, run_id, at=record.position + 1, new_id=new_id, **given))  # type: ignore[arg-type]
    world.fork_ids.append(new_id)
    for _ in range(chance.choice([1, 1, 2])):  # its answer may be lost, and it is forked again
        world.schedule(world.time + chance.choice([0.0, 0.0, 0.3]), _commit_fork, world, store.op, record)


def _commit_fork(world: World, op: ForkRun, fork_record: Record) -> None:
    """Commit the fork, unless its origin was rewound meanwhile."""
    if fork_record in world.checker.runs_by_id[op.source_run].journal:
        _commit_from_outside(world, op)
