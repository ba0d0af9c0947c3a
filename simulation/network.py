"""The way to the database: a request travels, is carried out at one moment, and its answer travels back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import FinishRun, ParkRun
from simulation import user_actions
from simulation.process_store import StoreRequest

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def draw_latency(world: World) -> float:
    """Seconds that something takes on its way."""
    latency = world.plan.latencies_s
    return latency[int(world.rng.random() * len(latency))]


def _draw_travel_time(world: World, process: Process) -> float:
    if world.is_fault_phase and world.time < process.slow_until:
        return world.plan.lease_s * world.rng.choice([0.0, 0.6, 1.2])
    if world.is_fault_phase and world.plan.slow_ratio and world.rng.random() < world.plan.slow_ratio:
        if process.heartbeat is None:
            process.can_be_declared_dead = True  # its lease may pass before its pulse beats for the first time
        return world.rng.choice([0.1, 0.5, 1.5])
    return draw_latency(world)


def send(world: World, request: StoreRequest) -> None:
    """A request sets out for the database."""
    travel = _draw_travel_time(world, request.process)
    for op in request.ops:
        if isinstance(op, ParkRun | FinishRun):
            what = "parking" if isinstance(op, ParkRun) else "finishing"
            run_id = world.checker.runs[op.key].row.id
            world.reach_action_point(what, request.process, run_id)
            if "cancel" in world.plan.triggered_actions.values() and world.rng.random() < 0.1:
                world.schedule(
                    world.time, user_actions.perform_action, world, "cancel", run_id
                )  # so that it arrives just before
    if request.name == "workers.retire" and world.plan.slow_ratio and world.is_fault_phase and world.rng.random() < 0.3:
        travel += world.plan.lease_s * world.rng.choice([0.5, 1.5])  # the moment at which a slow database hurts
    elif request.name == "commit":
        world.reach_fault_point("sent", request.process)
    if _is_abandoned(world, request):
        # The caller gives up before the request has arrived, but it still arrives.
        world.counts["late requests"] += 1
        world.log("db", f"{request.process} hears nothing of its {request.name} and gives up")
        world.schedule(world.time + travel, request.deliver_answer, StoreUnavailable("no answer in time"))
        travel += world.plan.lease_s * world.rng.choice([0.0, 0.02, 0.3, 0.9])
    world.schedule(world.time + travel, _execute_request, world, request)


def _is_abandoned(world: World, request: StoreRequest) -> bool:
    if not (world.is_fault_phase and world.plan.late_ratio) or request.name not in ("commit", "claims.claim"):
        return False
    parks = [op for op in request.ops if isinstance(op, ParkRun)]
    if world.rng.random() >= (8 * world.plan.late_ratio if parks else world.plan.late_ratio):
        return False
    for op in parks:  # the worst that can come between a park and its repetition is the signal it waits for
        if op.signal_names:
            run_id, name = world.checker.runs[op.key].row.id, world.rng.choice(op.signal_names)
            key = f"{run_id}:{name}:late{world.counts['late requests']}"
            world.schedule(world.time + world.rng.choice([0.0, 0.01, 0.03]), world.send_signal, run_id, 0, name, key)
    return True


def _execute_request(world: World, request: StoreRequest) -> None:
    process = request.process
    if process.is_dead and world.rng.random() < 0.5:
        return  # it was still on its way out when the process died
    if not world.is_reachable(process):
        world.schedule(
            world.time + draw_latency(world), request.deliver_answer, StoreUnavailable("the database cannot be reached")
        )
        return
    try:
        answer = request.call()
    except Exception as error:  # as a database would answer a request that it cannot carry out
        world.fail("the database carries out what it is asked", f"{request.name}: {error!r}")
        return
    world.counts["requests"] += 1
    if request.name == "commit":
        world.reach_fault_point("carried out", process)
    if world.is_fault_phase and world.plan.lost_answer_ratio and world.rng.random() < world.plan.lost_answer_ratio:
        world.counts["unknown outcomes"] += 1
        world.log("db", f"the answer to a {request.name} of {process} is lost")
        if request.name in ("workers.retire", "workers.register"):
            process.can_be_declared_dead = True
        answer = StoreUnavailable("the connection was lost")
        if request.name == "commit" and world.oddity_rng.random() < 0.3:
            answer = ConnectionError("an error that no store should raise")
    world.schedule(world.time + _draw_travel_time(world, process), request.deliver_answer, answer)
