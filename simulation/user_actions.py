"""What people do to runs: cancel, pause and resume, retry, settle, fork, answer, deploy, switch a workflow off and on.

They do it from a process that is a worker, through its engine, or from outside, with a connection of their own. Either
way an answer may get lost, and then they do it again; what they do may also arrive late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.core.records import Kind, Record
from holdfast.errors import SettleRefused
from holdfast.services import forks
from holdfast.services.approvals import Answer
from holdfast.services.settlement import settle_run, to_be_settled
from holdfast.stores.approvals import AnswerApproval
from holdfast.stores.contract import History, RunUsage
from holdfast.stores.operations import (
    CancelRun,
    Change,
    ForkRun,
    Op,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    Started,
    Verdict,
)
from simulation import faults
from simulation.process_store import at_once

if TYPE_CHECKING:
    from simulation.world import World

FORKS = 2
"""How many forks there are in one world, at most: each is another run to wait for."""


def act(world: World, action: str, run_id: str | None = None) -> None:
    """Let somebody do something, to this run or to one that the seed chooses."""
    known = list(world.checker.by_id)
    if not (world.in_chaos and known):
        return
    chance = world.chance
    run_id = run_id or chance.choice(known)
    if chance.random() < 0.2:
        run_id = world.checker.by_id[run_id].row.parent or run_id
    world.counts[f"people: {action}"] += 1
    now = world.database.now()
    match action:
        case "cancel":
            ask(world, CancelRun(run_id, now))
        case "pause":
            ask(world, PauseRun(run_id, now))
            seconds = [0.3, 5.0, 5.0] if world.plan.is_calm else [0.0, 0.01, 0.3, 1.0, 3.0]
            for _ in range(chance.choice([1, 1, 2])):
                world.at(world.time + chance.choice(seconds), ask, world, ResumeRun(run_id, now))
        case "retry":
            ask(world, settlement(world, run_id) or ReopenRun(run_id, now, chance.random() < 0.3))
        case "fork":
            _fork(world, run_id)
        case "switch":
            workflow = world.checker.by_id[run_id].row.workflow
            _switch(world, workflow, True)
            world.at(world.time + chance.choice([0.0, 0.05, 0.5, 2.0, 5.0]), _switch, world, workflow, False)


def ask(world: World, op: Change) -> None:
    """Ask something of a run, from a worker's process or from outside."""
    chance = world.chance
    candidates = world.open_processes()
    if candidates and chance.random() < 0.5:
        process = chance.choice(candidates)
        about = op.id if isinstance(op, AnswerApproval) else op.run_id
        world.tell(process, "asks for", type(op).__name__, about)
        process.spawn(process.change, op)
        return
    _commit(world, op)
    if chance.random() < 0.2:  # whoever hears no answer asks again
        world.at(world.time + chance.choice([0.0, 0.01, 0.3, 1.0]), _commit, world, op)


def answer(world: World, approval: str) -> None:
    """Answer a question, like nobody else does."""
    world.counts["people: answer"] += 1
    said = Answer(True, f"said {world.counts['people: answer']}", by="someone", at=world.database.now())
    ask(world, AnswerApproval(approval, said.payload(), said.by, said.at))


def deploy(world: World) -> None:
    """Deploy other code, or roll it back: runs that come into memory from now on ask other questions."""
    if not world.in_chaos:
        return
    world.counts["people: deploy"] += 1
    world.code = 1 - world.code
    if not world.plan.is_calm:
        kind = world.chance.choice(["close", "crash"])
        # Where a run kills its processes, nothing else does: then it is known whose death each one was.
        faults.strike(world, "close" if world.plan.has_killer else kind)


def _commit(world: World, op: Op) -> Any:
    """Somebody outside writes; who finds the database out of reach tries again."""
    if world.time < world.unreachable_until:
        world.at(world.unreachable_until + 0.1, _commit, world, op)
        return None
    [answer] = at_once(world.database.commit([op]))
    world.story("someone", "commit", op, answer)
    world.checker.operation(None, op, answer)
    world.written(None)
    return answer


def _switch(world: World, workflow: str, off: bool) -> None:
    store = world.database
    at_once(store.switch_off(workflow) if off else store.switch_on(workflow))
    world.tell("someone", f"switches {workflow} {'off' if off else 'on'}")
    world.checker.asking.switched(workflow, off)
    world.written(None)


def let_go_on(world: World) -> None:
    """The chaos is over: whatever people have stopped they let go on."""
    for workflow in list(world.checker.asking.switched_since):
        _switch(world, workflow, False)
    for approval, asked in list(world.checker.questions.asked.items()):
        if asked.state == "open":
            answer(world, approval)
    for model in list(world.checker.by_id.values()):
        if model.row.paused_at is not None and not model.row.state.is_terminal:
            _commit(world, ResumeRun(model.row.id, world.database.now()))


# Settling and forking


class _Reading:
    """A client's store that reads, and keeps what is to be written."""

    url = "memory://simulated"

    def __init__(self, world: World) -> None:
        self._database = world.database
        self.now: Callable[[], float] = world.database.now
        self.op: Any

    async def get(self, run_id: str) -> Run | None:
        return await self._database.get(run_id)

    async def histories(self, keys: Sequence[int]) -> list[History]:
        return await self._database.histories(keys)

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._database.usages(run_ids)

    async def commit(self, ops: Sequence[ForkRun | ReopenRun]) -> list[Started | Verdict]:
        [self.op] = ops
        if isinstance(self.op, ReopenRun):
            return [Verdict.DONE]
        found = await self._database.get(self.op.source)
        assert found is not None
        return [Started(found, created=True)]


def settlement(world: World, run_id: str) -> ReopenRun | None:
    """What somebody says of a step of unknown outcome, if it has ended the run and they do not just retry that."""
    chance, model = world.chance, world.checker.by_id[run_id]
    unknown = [record for record in to_be_settled(model.row, model.journal) if record.kind is Kind.STEP]
    if not unknown or chance.random() < 0.3:
        return None
    record = chance.choice(unknown)
    args, kwargs = json.loads(world.checker.commands[run_id, record.position][2])
    label, _, fails, _ = (*args, *(kwargs[name] for name in ("label", "seconds", "fails", "beats")[len(args) :]))
    said = {"happened": False} if fails or chance.random() < 0.3 else {"output": f"{run_id}/{label}"}
    store = _Reading(world)
    try:
        at_once(settle_run(store, run_id, record.position + 1, by="someone", **said))  # type: ignore[arg-type]
    except SettleRefused:
        return None
    world.counts["people: settle"] += 1
    return store.op


def _fork(world: World, run_id: str) -> None:
    chance, model = world.chance, world.checker.by_id[run_id]
    steps = [record for record in model.journal if record.kind in (Kind.STEP, Kind.CHILD, Kind.SIGNAL)]
    if len(world.forks) >= FORKS or not steps:
        return
    record = chance.choice(steps)
    new_id = f"{run_id}-f{len(world.forks) + 1}"
    given: dict[str, Any] = {}
    own = record.name != "change run" and not record.name.startswith("approval ")
    if record.kind is Kind.STEP and own and chance.random() < 0.4:
        label = world.checker.sagas.label(model, record)
        given["with_output"] = f"{new_id}/{label}"
    store = _Reading(world)
    with patch.object(forks.secrets, "token_bytes", chance.randbytes):
        at_once(forks.fork_run(store, run_id, at=record.position + 1, new_id=new_id, **given))  # type: ignore[arg-type]
    world.forks.append(new_id)
    for _ in range(chance.choice([1, 1, 2])):  # its answer may be lost, and it is forked again
        world.at(world.time + chance.choice([0.0, 0.0, 0.3]), _forked, world, store.op, record)


def _forked(world: World, op: ForkRun, at: Record) -> None:
    """The fork reaches the database; not if its origin was rewound meanwhile, which nobody would do at that moment."""
    if at in world.checker.by_id[op.source].journal:
        _commit(world, op)
