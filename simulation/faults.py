"""What goes wrong in a world, and how a write is put in words for its story."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    ForkRun,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ResumeRun,
    SaveAttempt,
    SendSignal,
    StartRun,
)

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def inject_fault(world: World, kind: str, victim: Process | None = None) -> None:
    """Let one fault happen, to ``victim`` or to whom the seed chooses."""
    if not world.is_fault_phase:
        return
    chance = world.rng
    if kind == "outage":
        seconds = chance.choice([0.05, 0.5, world.plan.lease_s * 1.5])
        world.unreachable_until = max(world.unreachable_until, world.time + seconds)
        world.counts["outages"] += 1
        world.log("db", f"cannot be reached for {seconds} s")
        return
    victims = [process for process in world.processes if not process.is_dead]
    if not victims:
        return
    victim = victim or chance.choice(victims)
    match kind:
        case "crash":
            crash_process(world, victim)
        case "pause":
            _pause_process(world, victim)
        case "close":
            if victim.is_open and not victim.is_closing:
                world.counts["closes"] += 1
                grace = chance.choice([0.0, 0.2, 2.0])
                world.log(victim, f"is told to stop within {grace} s")
                victim.spawn(victim.shut_down, grace)
        case "cut":
            seconds = chance.choice([0.3, world.plan.lease_s * 1.5])
            world.partitioned_until[victim] = world.time + seconds
            world.counts["cuts"] += 1
            world.log(victim, f"is cut off for {seconds} s")
        case "stall":
            # A bad line: renewals do not get through, and every answer takes about as long as the lease.
            seconds = world.plan.lease_s * 1.1
            victim.slow_until = world.time + seconds
            victim.is_heartbeat_paused = victim.can_be_declared_dead = True
            world.counts["stalls"] += 1
            world.log(victim, f"has a bad line for {seconds:.1f} s")
            world.schedule(world.time + seconds, resume_process, victim)
        case _:
            victim.clock.skew_s += chance.choice([-2.0, -0.3, 0.3, 2.0])
            world.counts["clock changes"] += 1
            world.log(victim, f"its clock is now off by {victim.clock.skew_s} s")


def crash_process(world: World, victim: Process) -> None:
    """Crash a process and start another one in its place."""
    world.counts["crashes"] += 1
    told = world.rng.random() < 0.7
    world.log(victim, "crashes;", "its lock tells" if told else "only its lease will tell")
    victim.crash()
    if told:
        world.schedule(world.time + world.rng.choice([0.0, 0.0, 0.1]), _release_locks, world, victim)
    world.on_process_ended(victim)
    if world.rng.random() < 0.1:
        world.check_all_replays()


def _release_locks(world: World, victim: Process) -> None:
    for worker in sorted(victim.worker_ids):
        world.database.simulate_worker_death(worker)
    world.on_write(None)


def _pause_process(world: World, victim: Process) -> None:
    chance = world.rng
    seconds = chance.choice([0.3, world.plan.lease_s * 0.8, world.plan.lease_s * 1.2, world.plan.lease_s * 2.5])
    what = chance.choice(["process", "process", "loop", "pulse"])
    world.counts["pauses"] += 1
    world.log(victim, f"its {what} stands still for {seconds:.1f} s")
    if what != "pulse":
        victim.is_loop_paused = True
    if what != "loop":
        victim.is_heartbeat_paused = victim.can_be_declared_dead = True
    elif seconds > world.plan.lease_s:
        victim.can_be_declared_dead = True  # its pulse sees that the loop is stuck, and lets the lease go
    if victim.heartbeat is None:
        victim.can_be_declared_dead = True  # it has registered, or is about to, and its pulse does not beat yet
    world.schedule(world.time + seconds, resume_process, victim)


def resume_process(process: Process) -> None:
    """Resume a process that was paused."""
    if process.is_loop_paused or process.is_heartbeat_paused:
        process.world.log(process, "goes on")
    process.is_loop_paused = process.is_heartbeat_paused = False
    process.loop.queue_due_timers()
    waiting, process.resume_callbacks = process.resume_callbacks, []
    for call in waiting:
        process.world.schedule(process.world.time, call)


def describe_operation(subject: Any) -> Any:
    """An operation for people, without anything that differs from one machine to the next."""
    match subject:
        case AppendRecord(key, record):
            outcome = f"{record.kind.label} {record.name} #{record.position + 1}{'' if record.ok else ' failed'}"
            return f"run {key}: {record.seq} {outcome} @{record.epoch}"
        case SaveAttempt(key, epoch, attempt):
            return f"run {key}: attempt {attempt.attempt} of #{attempt.position + 1} @{epoch}"
        case FinishRun(key, epoch, state):
            return f"run {key}: {state.value} @{epoch}"
        case ParkRun(key, epoch, wake_at, signals):
            waits = [*signals, *subject.awaited_positions, *subject.approval_ids]
            return f"run {key}: park @{epoch} until {wake_at} or {waits} {subject.is_pause}"
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
        case RequestApproval() | RemindApproval() | WithdrawApproval():
            return f"run {subject.key}: {type(subject).__name__} {subject.id} @{subject.epoch}"
        case AnswerApproval(approval, payload):
            return f"answer to {approval}: {payload.decode()}"
        case AwaitRun(run_id, link):
            return f"{run_id}: awaited by run {link.parent_key} #{link.position + 1} @{link.epoch}"
        case StartRun(run, claim_as, _, link):
            by = "" if link is None else f" by run {link.parent_key} #{link.position + 1} @{link.epoch}"
            return f"{run.id}: start, claimed as {claim_as}{by}"
    return subject
