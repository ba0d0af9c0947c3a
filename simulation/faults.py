"""What goes wrong in a world, and how a write is put in words for its story."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.stores.approvals import AnswerApproval, AskApproval, RemindApproval, WithdrawApproval
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    ForkRun,
    NoteAttempt,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    StartRun,
)

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def strike(world: World, kind: str, victim: Process | None = None) -> None:
    """Let one fault happen, to ``victim`` or to whom the seed chooses."""
    if not world.in_chaos:
        return
    chance = world.chance
    if kind == "outage":
        seconds = chance.choice([0.05, 0.5, world.plan.lease * 1.5])
        world.unreachable_until = max(world.unreachable_until, world.time + seconds)
        world.counts["outages"] += 1
        world.tell("db", f"cannot be reached for {seconds} s")
        return
    victims = [process for process in world.processes if not process.is_gone]
    if not victims:
        return
    victim = victim or chance.choice(victims)
    match kind:
        case "crash":
            crash(world, victim)
        case "pause":
            _pause(world, victim)
        case "close":
            if victim.is_open and not victim.is_closing:
                world.counts["closes"] += 1
                grace = chance.choice([0.0, 0.2, 2.0])
                world.tell(victim, f"is told to stop within {grace} s")
                victim.spawn(victim.shut, grace)
        case "cut":
            seconds = chance.choice([0.3, world.plan.lease * 1.5])
            world.cut_until[victim] = world.time + seconds
            world.counts["cuts"] += 1
            world.tell(victim, f"is cut off for {seconds} s")
        case "stall":
            # A bad line: renewals do not get through, and every answer takes about as long as the lease.
            seconds = world.plan.lease * 1.1
            victim.slow_until = world.time + seconds
            victim.pulse_paused = victim.disturbed = True
            world.counts["stalls"] += 1
            world.tell(victim, f"has a bad line for {seconds:.1f} s")
            world.at(world.time + seconds, resume, victim)
        case _:
            victim.clock.skew += chance.choice([-2.0, -0.3, 0.3, 2.0])
            world.counts["clock changes"] += 1
            world.tell(victim, f"its clock is now off by {victim.clock.skew} s")


def crash(world: World, victim: Process) -> None:
    """A process is gone, and another one takes its place."""
    world.counts["crashes"] += 1
    told = world.chance.random() < 0.7
    world.tell(victim, "crashes;", "its lock tells" if told else "only its lease will tell")
    victim.crash()
    if told:
        world.at(world.time + world.chance.choice([0.0, 0.0, 0.1]), _tell_death, world, victim)
    world.process_over(victim)
    if world.chance.random() < 0.1:
        world.replay_everything()


def _tell_death(world: World, victim: Process) -> None:
    for worker in sorted(victim.workers):
        world.database.kill_worker(worker)
    world.written(None)


def _pause(world: World, victim: Process) -> None:
    chance = world.chance
    seconds = chance.choice([0.3, world.plan.lease * 0.8, world.plan.lease * 1.2, world.plan.lease * 2.5])
    what = chance.choice(["process", "process", "loop", "pulse"])
    world.counts["pauses"] += 1
    world.tell(victim, f"its {what} stands still for {seconds:.1f} s")
    if what != "pulse":
        victim.loop_paused = True
    if what != "loop":
        victim.pulse_paused = victim.disturbed = True
    elif seconds > world.plan.lease:
        victim.disturbed = True  # its pulse sees that the loop is stuck, and lets the lease go
    if victim.pulse is None:
        victim.disturbed = True  # it has registered, or is about to, and its pulse does not beat yet
    world.at(world.time + seconds, resume, victim)


def resume(process: Process) -> None:
    """Let a process go on that stood still."""
    if process.loop_paused or process.pulse_paused:
        process.world.tell(process, "goes on")
    process.loop_paused = process.pulse_paused = False
    process.loop.ring()
    waiting, process.when_resumed = process.when_resumed, []
    for call in waiting:
        process.world.at(process.world.time, call)


def in_words(subject: Any) -> Any:
    """An operation for people, without anything that differs from one machine to the next."""
    match subject:
        case AppendRecord(key, record):
            outcome = f"{record.kind.label} {record.name} #{record.position + 1}{'' if record.ok else ' failed'}"
            return f"run {key}: {record.seq} {outcome} @{record.epoch}"
        case NoteAttempt(key, epoch, attempt):
            return f"run {key}: attempt {attempt.attempt} of #{attempt.position + 1} @{epoch}"
        case FinishRun(key, epoch, state):
            return f"run {key}: {state.value} @{epoch}"
        case ParkRun(key, epoch, wake_at, signals):
            waits = [*signals, *subject.awaited, *subject.answers]
            return f"run {key}: park @{epoch} until {wake_at} or {waits} {subject.paused}"
        case ReleaseRun(key, epoch):
            return f"run {key}: release @{epoch}"
        case SendSignal(run_id, name, _, dedup):
            return f"{run_id}: signal {name} {dedup}"
        case CancelRun(run_id, _, seed):
            return f"{run_id}: cancel{'' if seed is None else ' by its parent'}"
        case PauseRun(run_id) | ResumeRun(run_id) | ReopenRun(run_id):
            return f"{run_id}: {type(subject).__name__}"
        case ForkRun(source, run, keep, record):
            return f"{run.id}: fork of {source} below {keep}{'' if record is None else ', with an output'}"
        case AskApproval() | RemindApproval() | WithdrawApproval():
            return f"run {subject.key}: {type(subject).__name__} {subject.id} @{subject.epoch}"
        case AnswerApproval(approval, payload):
            return f"answer to {approval}: {payload.decode()}"
        case AwaitRun(run_id, link):
            return f"{run_id}: awaited by run {link.parent} #{link.position + 1} @{link.epoch}"
        case StartRun(run, claim_as, _, link):
            by = "" if link is None else f" by run {link.parent} #{link.position + 1} @{link.epoch}"
            return f"{run.id}: start, claimed as {claim_as}{by}"
    return subject
