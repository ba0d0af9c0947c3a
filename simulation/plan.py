"""What a seed decides before its world begins: the number of workers, the runs, and the faults.

Each seed switches whole kinds of faults on or off, so that some worlds have only crashes and others only a slow
database. A bug that needs a quiet moment between two faults of one kind is then not hidden by faults of another.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from simulation.expectations import count_signal_waits
from simulation.program_generator import ProgramGenerator, add_approvals, add_cleanup
from simulation.workloads import SIGNALS, Node

FAULT_KINDS = ("crash", "pause", "close", "outage", "cut", "clock", "stall")
USER_ACTIONS = ("cancel", "cancel", "pause", "retry", "fork", "switch")
"""What people do to runs (see ``scheduled_actions``)."""
FAULT_POINTS = ("attempt", "sent", "carried out", "claimed", "delivered", "parked", "registered")
"""Points where a fault may hurt: an attempt has started, a commit was sent, it was executed, ..."""
ACTION_POINTS = (
    *("attempt", "claimed", "parking", "parked", "started", "finishing", "ended"),
    *("undoing", "told", "cancelling"),
)
"""Moments at which it may matter what people do, to the run that it happened to."""


@dataclass
class PlannedRun:
    """A run, when and where it is started, and the signals it gets."""

    id: str
    program: Node
    options: dict[str, Any]
    starts: list[tuple[float, int]]
    """When it is started, and by which process: the same run may be started several times."""
    signals: list[tuple[float, int, str, str]]
    """When, from where, which name, and under which key."""


@dataclass
class Plan:
    """Everything that is drawn before the world begins."""

    seed: int
    worker_count: int
    lease_s: float
    concurrency: int
    latencies_s: tuple[float, ...]
    slow_ratio: float
    """The share of requests and answers that take long."""
    lost_answer_ratio: float
    """The share of requests that are carried out and reported as failed."""
    late_ratio: float
    """The share of commits and claims that are reported as failed and carried out afterwards."""
    skews_s: list[float]
    fault_phase_s: float
    """Until when faults happen."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    triggered_faults: dict[tuple[str, int], str] = field(default_factory=dict)
    """Faults that wait for a point where they hurt: the n-th time that something happens."""
    max_retries: int = 0
    """How often a user reopens a failed run."""
    child_max_deliveries: int = 3
    """Number of deaths in a row without a record after which a child is dead."""
    scheduled_actions: list[tuple[float, str]] = field(default_factory=list)
    """Times of user actions on some run."""
    triggered_actions: dict[tuple[str, int], str] = field(default_factory=dict)
    """User actions on a run at the n-th time that something happens to any run."""
    max_running: int | None = None
    """Maximum number of runs executed at a time by all workers; ``None``: the queue has no limits."""
    runs: list[PlannedRun] = field(default_factory=list)
    overlaps_commits: bool = False
    """Batches of two are answered one after the other, with the next commit in between."""
    has_killer: bool = False
    """One of the runs kills its process each time, and nothing else kills one."""

    @property
    def is_calm(self) -> bool:
        """Whether there are no faults, so that requests must be noticed soon."""
        return not (
            self.faults or self.triggered_faults or self.slow_ratio or self.lost_answer_ratio or self.late_ratio
        )


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"plan {seed}")
    workers = chance.choice([1, 2, 2, 3, 3])
    lease = chance.choice([1.0, 2.0, 3.0])
    chaos = chance.uniform(3.0, 9.0)
    kinds = [kind for kind in FAULT_KINDS if chance.random() < 0.5]
    calm = chance.random() < 0.15
    if calm:
        kinds = []
    plan = Plan(
        seed=seed,
        worker_count=workers,
        lease_s=lease,
        concurrency=chance.choice([1000, 1000, 2]),
        latencies_s=chance.choice([(0.0,), (0.0, 0.001), (0.001, 0.002, 0.005), (0.001, 0.01, 0.05)]),
        slow_ratio=0.0 if calm else chance.choice([0.0, 0.0, 0.02, 0.1]),
        lost_answer_ratio=0.0 if calm else chance.choice([0.0, 0.0, 0.02, 0.1]),
        late_ratio=0.0 if calm else chance.choice([0.0, 0.0, 0.03, 0.1]),
        skews_s=[chance.choice([0.0, 0.0, -3.0, -0.5, 0.5, 3.0]) for _ in range(4)],
        fault_phase_s=chaos,
    )
    if kinds:
        for _ in range(chance.choice([1, 2, 4, 6])):
            plan.faults.append((chance.uniform(0.1, chaos), chance.choice(kinds)))
    if kinds:
        for _ in range(chance.choice([0, 1, 2, 4])):
            plan.triggered_faults[chance.choice(FAULT_POINTS), int(chance.expovariate(0.15)) + 1] = chance.choice(kinds)
    plan.max_retries = chance.choice([0, 0, 1, 2])
    actions = [action for action in USER_ACTIONS if chance.random() < 0.35]
    if calm:
        actions += ["pause", "switch"]  # the time within which requests are noticed is bounded only without faults
    if actions:
        for _ in range(chance.choice([0, 1, 2, 4])):
            plan.scheduled_actions.append((chance.uniform(0.1, chaos), chance.choice(actions)))
        for _ in range(chance.choice([0, 1, 2, 3])):
            plan.triggered_actions[chance.choice(ACTION_POINTS), int(chance.expovariate(0.3)) + 1] = chance.choice(
                actions
            )
    if calm:
        plan.triggered_actions["attempt", chance.randint(1, 5)] = "pause"
    plan.child_max_deliveries = chance.choice([1, 2, 3, 3])
    author = ProgramGenerator(chance, lease)
    for number in range(chance.randint(1, 4)):
        plan.runs.append(_draw_run(chance, author, f"r{number + 1}", chaos))
    plan.max_running = random.Random(f"queue {seed}").choice([None, None, None, 1, 2, 3])
    asks = random.Random(f"questions {seed}")
    if asks.random() < 0.3:
        for run in plan.runs:
            add_approvals(asks, run.program, lease)
    cleans = random.Random(f"clean up {seed}")
    for run in plan.runs:
        if cleans.random() < 0.15:
            add_cleanup(cleans, run.program)
    plan.overlaps_commits = random.Random(f"overlap {seed}").random() < 0.4
    kills = random.Random(f"killer {seed}")
    if kills.random() < 0.08:
        _add_killer(kills, plan)
    return plan


def _add_killer(rng: random.Random, plan: Plan) -> None:
    """Let one of the runs kill its process, or start one that does, in a world in which nothing else goes that wrong.

    Drawn apart from the rest, so that seeds without such a run are what they were before there were any.
    """
    plan.has_killer = True
    plan.faults, plan.triggered_faults, plan.scheduled_actions, plan.triggered_actions, plan.max_retries = (
        [],
        {},
        [],
        {},
        0,
    )
    if rng.random() < 0.5:
        plan.late_ratio = plan.lost_answer_ratio = 0.0
    for number in range(len(plan.runs), rng.randint(2, 6)):
        work: Node = ["seq", [["step", "work", f"w{number}-{at}", 0.3, 0, 0] for at in range(rng.randint(1, 4))]]
        plan.runs.append(PlannedRun(f"r{number + 1}", work, dict(plan.runs[0].options), [*plan.runs[0].starts], []))
    kill: Node = ["kill", "k", rng.choice([0.0, 0.0, 0.05, 1.0, plan.lease_s * 2, plan.lease_s * 8])]
    if rng.random() < 0.3:
        kill = ["child", "kc", ["named", ["seq", [["draw"], kill]]], "call"]
    # One that no other run joins: that would start it with the program that it had before.
    programs = json.dumps([run.program for run in plan.runs])
    killer = rng.choice([run for run in plan.runs if json.dumps(["child", run.id])[:-1] not in programs])
    killer.program, killer.signals = ["seq", [["step", "work", "k1", 0.05, 0, 0], kill]], []
    for run in plan.runs:
        run.options["timeout"] = None


def _draw_run(rng: random.Random, generator: ProgramGenerator, run_id: str, fault_phase_s: float) -> PlannedRun:
    program = generator.generate_program()
    generator.add_joinable_run(run_id, program)
    options = {
        "delay": rng.choice([0.0, 0.0, 0.0, 1.5]),
        "priority": rng.choice([0, 0, 5]),
        "timeout": rng.choice([None, None, None, None, 2.0, 6.0]),
        "max_deliveries": rng.choice([1, 2, 3, 3, 3, 5]),
    }
    start = rng.uniform(0.0, fault_phase_s / 2)
    starts = [(start, rng.randrange(8))]
    while rng.random() < 0.3:
        starts.append((start + rng.choice([0.0, 0.001, 0.5]), rng.randrange(8)))
    return PlannedRun(run_id, program, options, starts, draw_signals(rng, run_id, program, start, fault_phase_s))


def draw_signals(
    rng: random.Random, run_id: str, program: Node, start: float, fault_phase_s: float
) -> list[tuple[float, int, str, str]]:
    """As many signals for a run as it may wait for, some more, and some of them twice."""
    signals: list[tuple[float, int, str, str]] = []
    counts = count_signal_waits(program)
    for name in SIGNALS:
        for number in range(counts[name] + (rng.random() < 0.2)):
            # Some arrive together with the run, or before it.
            at = start + rng.choice(
                [rng.uniform(0.0, fault_phase_s), rng.uniform(0.0, fault_phase_s), 0.0, 0.001, 0.01]
            )
            key = f"{run_id}:{name}:{number}"
            signals.append((at, rng.randrange(8), name, key))
            while rng.random() < 0.3:  # sent twice, as by a sender that got no answer
                signals.append((at + rng.choice([0.0, 0.001, 0.3]), rng.randrange(8), name, key))
    return signals
