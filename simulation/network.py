"""The way to the database: a request travels, is carried out at one moment, and its answer travels back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import FinishRun, ParkRun
from simulation import user_actions
from simulation.process_store import Request

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def latency(world: World) -> float:
    """Seconds that something takes on its way."""
    latency = world.plan.latency
    return latency[int(world.chance.random() * len(latency))]


def _travel(world: World, process: Process) -> float:
    if world.in_chaos and world.time < process.slow_until:
        return world.plan.lease * world.chance.choice([0.0, 0.6, 1.2])
    if world.in_chaos and world.plan.slow and world.chance.random() < world.plan.slow:
        if process.pulse is None:
            process.disturbed = True  # its lease may pass before its pulse beats for the first time
        return world.chance.choice([0.1, 0.5, 1.5])
    return latency(world)


def send(world: World, request: Request) -> None:
    """A request sets out for the database."""
    travel = _travel(world, request.process)
    for op in request.ops:
        if isinstance(op, ParkRun | FinishRun):
            what = "parking" if isinstance(op, ParkRun) else "finishing"
            run_id = world.checker.runs[op.key].row.id
            world.occasion(what, request.process, run_id)
            if "cancel" in world.plan.occasions.values() and world.chance.random() < 0.1:
                world.at(world.time, user_actions.act, world, "cancel", run_id)  # so that it arrives just before
    if request.name == "retire" and world.plan.slow and world.in_chaos and world.chance.random() < 0.3:
        travel += world.plan.lease * world.chance.choice([0.5, 1.5])  # the moment at which a slow database hurts
    elif request.name == "commit":
        world.moment("sent", request.process)
    if _is_late(world, request):
        # The caller gives up before the request has arrived; it arrives all the same.
        world.counts["late requests"] += 1
        world.tell("db", f"{request.process} hears nothing of its {request.name} and gives up")
        world.at(world.time + travel, request.answer, StoreUnavailable("no answer in time"))
        travel += world.plan.lease * world.chance.choice([0.0, 0.02, 0.3, 0.9])
    world.at(world.time + travel, _arrive, world, request)


def _is_late(world: World, request: Request) -> bool:
    if not (world.in_chaos and world.plan.late) or request.name not in ("commit", "claim"):
        return False
    parks = [op for op in request.ops if isinstance(op, ParkRun)]
    if world.chance.random() >= (8 * world.plan.late if parks else world.plan.late):
        return False
    for op in parks:  # the worst that can come between a park and its repetition is the signal it waits for
        if op.signals:
            run_id, name = world.checker.runs[op.key].row.id, world.chance.choice(op.signals)
            key = f"{run_id}:{name}:late{world.counts['late requests']}"
            world.at(world.time + world.chance.choice([0.0, 0.01, 0.03]), world.signal, run_id, 0, name, key)
    return True


def _arrive(world: World, request: Request) -> None:
    process = request.process
    if process.is_gone and world.chance.random() < 0.5:
        return  # it was still on its way out when the process died
    if not world.reachable(process):
        world.at(world.time + latency(world), request.answer, StoreUnavailable("the database cannot be reached"))
        return
    try:
        answer = request.call()
    except Exception as error:  # as a database would answer a request that it cannot carry out
        world.fail("the database carries out what it is asked", f"{request.name}: {error!r}")
        return
    world.counts["requests"] += 1
    if request.name == "commit":
        world.moment("carried out", process)
    if world.in_chaos and world.plan.unknown and world.chance.random() < world.plan.unknown:
        world.counts["unknown outcomes"] += 1
        world.tell("db", f"the answer to a {request.name} of {process} is lost")
        if request.name in ("retire", "register"):
            process.disturbed = True
        answer = StoreUnavailable("the connection was lost")
        if request.name == "commit" and world.oddities.random() < 0.3:
            answer = ConnectionError("an error that no store should raise")
    world.at(world.time + _travel(world, process), request.answer, answer)
