"""Drawing the programs of a seed."""

from __future__ import annotations

import random

from simulation.workloads import CHANGING_PREFIX, CHILD_MODES, SIGNALS, Node


class ProgramGenerator:
    """Writes the programs of a seed."""

    def __init__(self, rng: random.Random, lease_s: float) -> None:
        self._rng = rng
        self._lease_s = lease_s
        self._label_count = 0
        self._shared_children: list[Node] = []
        """Children that several runs may call under the same id."""
        self._joinable_runs: list[Node] = []
        """Programs of runs that are started from outside, which later ones may call as well."""
        self._remaining_depth = 2
        self.has_children = rng.random() < 0.5
        self.has_sagas = rng.random() < 0.4
        self.can_swallow = rng.random() < 0.1

    def generate_program(self) -> Node:
        """A program of a few nodes, in sequence, so that there is a before and an after."""
        chance = self._rng
        parts = [self._generate_node(3) for _ in range(chance.randint(1, 4))]
        if self.has_sagas and chance.random() < 0.6:
            parts[chance.randint(0, len(parts)) :] = [self._generate_saga()]
        if self.has_children and chance.random() < 0.6:
            parts.insert(chance.randint(0, len(parts)), self._generate_child())
        if chance.random() < (0.5 if self.has_sagas else 0.15):
            parts.append(self._generate_step(can_fail=True))  # the run itself may fail
            if chance.random() < 0.25:  # and does something because of that
                clean_up = [self._generate_leaf(), ["signal", chance.choice(SIGNALS), 4.0]]
                if self.has_children:
                    clean_up.append(["catch", self._generate_child()])
                parts.append(self._generate_child() if self.has_children else self._generate_leaf())
                return ["finally", ["seq", parts], chance.choice(clean_up)]
        return ["seq", parts]

    def add_joinable_run(self, run_id: str, program: Node) -> None:
        """Add a run that is started from outside, and for which others may wait, too."""
        self._joinable_runs.append(["child", run_id, program, "joined"])

    def _generate_node(self, depth: int) -> Node:
        chance = self._rng
        if depth <= 0 or chance.random() < 0.35:
            return self._generate_leaf()
        match chance.randrange(9):
            case 0 | 1:
                return ["gather", self._generate_nodes(depth)]
            case 2 | 3:
                return ["race", self._generate_nodes(depth)]
            case 4:
                return ["timeout", self._draw_seconds(), self._generate_node(depth - 1)]
            case 5:
                return ["catch", ["seq", [*self._generate_nodes(depth), self._generate_step(can_fail=True)]]]
            case 6:
                return ["finally", self._generate_node(depth - 1), self._generate_leaf()]
            case 7:
                return ["map", [self._next_label() for _ in range(chance.randint(1, 5))], chance.randint(1, 3)]
            case _:
                return ["swallow" if self.can_swallow else "catch", ["seq", self._generate_nodes(depth)]]

    def _generate_nodes(self, depth: int) -> list[Node]:
        return [self._generate_node(depth - 1) for _ in range(self._rng.randint(1, 3))]

    def _generate_leaf(self) -> Node:
        match self._rng.randrange(14):
            case 0 | 1 | 2 | 3:
                return self._generate_step(can_fail=False)
            case 4 | 5 | 10:
                return ["catch", self._generate_step(can_fail=True)]
            case 6:
                return ["sleep", self._draw_seconds()]
            case 7 | 8 | 9:
                return ["signal", self._rng.choice(SIGNALS), self._rng.choice([None, None, 0.3, 2.0, 4.0])]
            case 11 if self.has_sagas:
                return self._generate_undoable()
            case 12 if self.has_children:
                return self._generate_child()
            case 13 if self.has_children:
                return ["catch", self._generate_child()]
            case _:
                return ["draw"]

    def _generate_saga(self) -> Node:
        """Several steps that can be undone, one after the other or at once."""
        parts = [self._generate_undoable() for _ in range(self._rng.randint(1, 4))]
        return [self._rng.choice(["seq", "gather", "gather"]), parts]

    def _generate_undoable(self) -> Node:
        chance = self._rng
        seconds = chance.choice([0.0, 0.01, 0.1, 0.3])
        fails, broken = chance.choice([0, 0, 0, 1]), chance.choice([0, 0, 0, 0, 1, 2, 3, 99])
        return ["undoable", self._next_label(), seconds, fails, broken]

    def _generate_child(self) -> Node:
        chance = self._rng
        if self._remaining_depth == 0:
            return self._generate_step(can_fail=False)
        if self._joinable_runs and chance.random() < 0.15:
            return chance.choice(self._joinable_runs)
        how = chance.choice(CHILD_MODES)
        if how == "shared" and self._shared_children and chance.random() < 0.7:
            return chance.choice(self._shared_children)
        self._remaining_depth -= 1
        parts = [self._generate_node(1) for _ in range(chance.randint(1, 2))]
        if self.has_sagas and chance.random() < 0.4:
            parts.insert(0, self._generate_saga())
        if chance.random() < 0.3:
            parts.append(self._generate_step(can_fail=True))
        self._remaining_depth += 1
        child = ["child", self._next_label() + chance.choice(["", "", "o"]), ["named", ["seq", parts]], how]
        if how == "shared" and self._remaining_depth == 2:
            self._shared_children.append(child)
        return child

    def _generate_step(self, *, can_fail: bool) -> Node:
        chance = self._rng
        kinds = ["work", "stubborn", "once", "once", "hurried", "flaky", "flaky"]
        kind = chance.choice(kinds if can_fail else ["work", "stubborn"])
        fails = chance.choice([0, 0, 1, 2, 9]) if can_fail else chance.choice([0, 0, 1, 2])
        if not can_fail and kind == "work":
            fails = 0
        if kind == "flaky":
            fails = chance.choice([1, 1, 2])
        seconds = chance.choice([0.0, 0.0, 0.01, 0.05, 0.3, 0.3, 1.0])
        if chance.random() < 0.06:
            seconds = self._lease_s * 1.5  # longer than the lease that its worker must renew meanwhile
        beats = chance.choice([0, 0, 0, 1, 3])
        return ["step", kind, self._next_label(), seconds, fails, beats]

    def _draw_seconds(self) -> float:
        return self._rng.choice([0.0, 0.01, 0.1, 0.5, 0.9, 1.5, 2.5, 4.0])

    def _next_label(self) -> str:
        self._label_count += 1
        return f"s{self._label_count}"


def add_cleanup(rng: random.Random, program: Node) -> None:
    """Let a program fail with a step in flight that it started because of the failure, and cut short.

    A retry takes the failure back, and then other calls of the same step get the positions of those. Drawn separately
    from the program, like questions.
    """
    parts = program[1] if program[0] == "seq" else program[1][1]
    cut_short: Node = ["step", "stubborn", "cleanup", 1.0, rng.choice([0, 1]), 3]
    parts.append(["finally", ["step", "flaky", "risky", 0.01, 1, 0], ["timeout", 0.6, cut_short]])
    parts.append(["step", "stubborn", "after", rng.choice([0.05, 0.3]), 0, 1])


def add_approvals(rng: random.Random, program: Node, lease_s: float) -> None:
    """Let a program ask for approvals: it waits for the answer, or may continue without it.

    Drawn separately from the program, so that seeds without questions stay as they were before there were any.
    """
    parts = program[1] if program[0] == "seq" else program[1][1]
    for number in range(rng.choice([1, 1, 2])):
        seconds = rng.choice([None, 0.3, 1.5, 4.0])
        remind_every = rng.choice([None, None, 0.4, lease_s])
        question: Node = ["ask", f"really {number}?", seconds, remind_every]
        match rng.randrange(5):
            case 0:
                question[1] = f"maybe {number}?"
                question = ["race", [question, ["sleep", rng.choice([0.05, 1.0])]]]
            case 1:
                question[1] = f"maybe {number}?"
                question = ["timeout", rng.choice([0.05, 1.0]), question]
            case 2:
                question = ["gather", [question, ["sleep", 0.5], ["ask", f"also {number}?", None, None]]]
            case _:
                if rng.random() < 0.6:
                    question[1] = f"{CHANGING_PREFIX} {number}?"
        parts.insert(rng.randint(0, len(parts)), question)
    if rng.random() < 0.4:  # and when it has failed, which a retry takes back
        clean_up: Node = ["ask", "what now?", rng.choice([None, 1.5]), None]
        if program[0] == "finally":
            program[2] = ["seq", [program[2], clean_up]]
        else:
            program[:] = ["finally", ["seq", parts], clean_up]
