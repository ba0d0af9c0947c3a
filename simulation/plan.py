"""What a seed decides before its world begins: how many workers, which runs, and which faults.

Each seed switches whole kinds of fault on or off, so that some worlds see nothing but crashes and others nothing but a
slow database: a bug that needs a quiet moment between two faults of one kind is not drowned by faults of another.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from simulation.expectations import waits
from simulation.program_generator import Author, add_clean_up, add_questions
from simulation.workloads import SIGNALS, Node

FAULTS = ("crash", "pause", "close", "outage", "cut", "clock", "stall")
ACTIONS = ("cancel", "cancel", "pause", "retry", "fork", "switch")
"""What people do to runs (see ``people``)."""
MOMENTS = ("attempt", "sent", "carried out", "claimed", "delivered", "parked", "registered")
"""An attempt has begun; a commit has left; it has been carried out and nobody knows yet; and so on."""
OCCASIONS = (
    *("attempt", "claimed", "parking", "parked", "started", "finishing", "ended"),
    *("undoing", "told", "cancelling"),
)
"""Moments at which it may matter what people do, to the run that it happened to."""


@dataclass
class PlannedRun:
    """A run, who starts it when, and which signals it gets."""

    id: str
    program: Node
    options: dict[str, Any]
    starts: list[tuple[float, int]]
    """When it is started, and by the how-manieth process: the same run may be started several times."""
    signals: list[tuple[float, int, str, str]]
    """When, from where, which name, and under which key."""


@dataclass
class Plan:
    """Everything that is drawn before the world begins."""

    seed: int
    workers: int
    lease: float
    concurrency: int
    latency: tuple[float, ...]
    slow: float
    """The share of requests and answers that take long."""
    unknown: float
    """The share of requests that are carried out and reported as failed."""
    late: float
    """The share of commits and claims that are reported as failed and carried out afterwards."""
    skews: list[float]
    chaos: float
    """Until when faults happen."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    ambushes: dict[tuple[str, int], str] = field(default_factory=dict)
    """Faults that wait for a moment at which they hurt: the n-th time that something happens, to whoever does it."""
    retries: int = 0
    """How often a person reopens a run that has failed."""
    child_deliveries: int = 3
    """After how many deaths in a row without a record a child is dead."""
    people: list[tuple[float, str]] = field(default_factory=list)
    """When somebody does something to some run."""
    occasions: dict[tuple[str, int], str] = field(default_factory=dict)
    """What somebody does to a run at the n-th time that something happens to any."""
    places: int | None = None
    """How many runs may be executed at the same time by all together; ``None``: their queue has no limits."""
    runs: list[PlannedRun] = field(default_factory=list)
    has_killer: bool = False
    """One of the runs kills its process each time, and nothing else kills one."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong, so that whoever is told something does it soon."""
        return not (self.faults or self.ambushes or self.slow or self.unknown or self.late)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"plan {seed}")
    workers = chance.choice([1, 2, 2, 3, 3])
    lease = chance.choice([1.0, 2.0, 3.0])
    chaos = chance.uniform(3.0, 9.0)
    kinds = [kind for kind in FAULTS if chance.random() < 0.5]
    calm = chance.random() < 0.15
    if calm:
        kinds = []
    plan = Plan(
        seed=seed,
        workers=workers,
        lease=lease,
        concurrency=chance.choice([1000, 1000, 2]),
        latency=chance.choice([(0.0,), (0.0, 0.001), (0.001, 0.002, 0.005), (0.001, 0.01, 0.05)]),
        slow=0.0 if calm else chance.choice([0.0, 0.0, 0.02, 0.1]),
        unknown=0.0 if calm else chance.choice([0.0, 0.0, 0.02, 0.1]),
        late=0.0 if calm else chance.choice([0.0, 0.0, 0.03, 0.1]),
        skews=[chance.choice([0.0, 0.0, -3.0, -0.5, 0.5, 3.0]) for _ in range(4)],
        chaos=chaos,
    )
    if kinds:
        for _ in range(chance.choice([1, 2, 4, 6])):
            plan.faults.append((chance.uniform(0.1, chaos), chance.choice(kinds)))
    if kinds:
        for _ in range(chance.choice([0, 1, 2, 4])):
            plan.ambushes[chance.choice(MOMENTS), int(chance.expovariate(0.15)) + 1] = chance.choice(kinds)
    plan.retries = chance.choice([0, 0, 1, 2])
    actions = [action for action in ACTIONS if chance.random() < 0.35]
    if calm:
        actions += ["pause", "switch"]  # only where nothing goes wrong can be told how soon they must be heard of
    if actions:
        for _ in range(chance.choice([0, 1, 2, 4])):
            plan.people.append((chance.uniform(0.1, chaos), chance.choice(actions)))
        for _ in range(chance.choice([0, 1, 2, 3])):
            plan.occasions[chance.choice(OCCASIONS), int(chance.expovariate(0.3)) + 1] = chance.choice(actions)
    if calm:
        plan.occasions["attempt", chance.randint(1, 5)] = "pause"
    plan.child_deliveries = chance.choice([1, 2, 3, 3])
    author = Author(chance, lease)
    for number in range(chance.randint(1, 4)):
        plan.runs.append(_draw_run(chance, author, f"r{number + 1}", chaos))
    plan.places = random.Random(f"queue {seed}").choice([None, None, None, 1, 2, 3])
    asks = random.Random(f"questions {seed}")
    if asks.random() < 0.3:
        for run in plan.runs:
            add_questions(asks, run.program, lease)
    cleans = random.Random(f"clean up {seed}")
    for run in plan.runs:
        if cleans.random() < 0.15:
            add_clean_up(cleans, run.program)
    kills = random.Random(f"killer {seed}")
    if kills.random() < 0.08:
        _add_killer(kills, plan)
    return plan


def _add_killer(chance: random.Random, plan: Plan) -> None:
    """Let one of the runs kill its process, or start one that does, in a world in which nothing else goes that wrong.

    Drawn apart from the rest, so that seeds without such a run are what they were before there were any.
    """
    plan.has_killer = True
    plan.faults, plan.ambushes, plan.people, plan.occasions, plan.retries = [], {}, [], {}, 0
    if chance.random() < 0.5:
        plan.late = plan.unknown = 0.0
    for number in range(len(plan.runs), chance.randint(2, 6)):
        work: Node = ["seq", [["step", "work", f"w{number}-{at}", 0.3, 0, 0] for at in range(chance.randint(1, 4))]]
        plan.runs.append(PlannedRun(f"r{number + 1}", work, dict(plan.runs[0].options), [*plan.runs[0].starts], []))
    kill: Node = ["kill", "k", chance.choice([0.0, 0.0, 0.05, 1.0, plan.lease * 2, plan.lease * 8])]
    if chance.random() < 0.3:
        kill = ["child", "kc", ["named", ["seq", [["draw"], kill]]], "call"]
    # One that no other run joins: that would start it with the program that it had before.
    programs = json.dumps([run.program for run in plan.runs])
    killer = chance.choice([run for run in plan.runs if json.dumps(["child", run.id])[:-1] not in programs])
    killer.program, killer.signals = ["seq", [["step", "work", "k1", 0.05, 0, 0], kill]], []
    for run in plan.runs:
        run.options["timeout"] = None


def _draw_run(chance: random.Random, author: Author, run_id: str, chaos: float) -> PlannedRun:
    program = author.program()
    author.publish(run_id, program)
    options = {
        "delay": chance.choice([0.0, 0.0, 0.0, 1.5]),
        "priority": chance.choice([0, 0, 5]),
        "timeout": chance.choice([None, None, None, None, 2.0, 6.0]),
        "max_deliveries": chance.choice([1, 2, 3, 3, 3, 5]),
    }
    start = chance.uniform(0.0, chaos / 2)
    starts = [(start, chance.randrange(8))]
    while chance.random() < 0.3:
        starts.append((start + chance.choice([0.0, 0.001, 0.5]), chance.randrange(8)))
    return PlannedRun(run_id, program, options, starts, draw_signals(chance, run_id, program, start, chaos))


def draw_signals(
    chance: random.Random, run_id: str, program: Node, start: float, chaos: float
) -> list[tuple[float, int, str, str]]:
    """As many signals for a run as it may wait for, some more, and some of them twice."""
    signals: list[tuple[float, int, str, str]] = []
    counts = waits(program)
    for name in SIGNALS:
        for number in range(counts[name] + (chance.random() < 0.2)):
            # Some are there as soon as the run is, or sooner.
            at = start + chance.choice([chance.uniform(0.0, chaos), chance.uniform(0.0, chaos), 0.0, 0.001, 0.01])
            key = f"{run_id}:{name}:{number}"
            signals.append((at, chance.randrange(8), name, key))
            while chance.random() < 0.3:  # sent twice, as people do who got no answer
                signals.append((at + chance.choice([0.0, 0.001, 0.3]), chance.randrange(8), name, key))
    return signals
