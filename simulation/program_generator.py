"""Drawing the programs of a seed."""

from __future__ import annotations

import random

from simulation.workloads import CHANGING, HOWS, SIGNALS, Node


class Author:
    """Writes the programs of a seed."""

    def __init__(self, chance: random.Random, lease: float) -> None:
        self._chance = chance
        self._lease = lease
        self._labels = 0
        self._shared: list[Node] = []
        """Children that more than one run may call under the same id."""
        self._written: list[Node] = []
        """Programs of runs that are started from outside, which later ones may call as well."""
        self._generations = 2
        self.has_children = chance.random() < 0.5
        self.has_sagas = chance.random() < 0.4
        self.swallows = chance.random() < 0.1

    def program(self) -> Node:
        """A program of a few nodes; it is a sequence, so that there is a before and an after."""
        chance = self._chance
        parts = [self._node(3) for _ in range(chance.randint(1, 4))]
        if self.has_sagas and chance.random() < 0.6:
            parts[chance.randint(0, len(parts)) :] = [self._saga()]
        if self.has_children and chance.random() < 0.6:
            parts.insert(chance.randint(0, len(parts)), self._child())
        if chance.random() < (0.5 if self.has_sagas else 0.15):
            parts.append(self._step(may_fail=True))  # the run itself may fail
            if chance.random() < 0.25:  # and does something because of that
                clean_up = [self._leaf(), ["signal", chance.choice(SIGNALS), 4.0]]
                if self.has_children:
                    clean_up.append(["catch", self._child()])
                parts.append(self._child() if self.has_children else self._leaf())
                return ["finally", ["seq", parts], chance.choice(clean_up)]
        return ["seq", parts]

    def publish(self, run_id: str, program: Node) -> None:
        """A run of this id will be started from outside; others may wait for it too."""
        self._written.append(["child", run_id, program, "joined"])

    def _node(self, depth: int) -> Node:
        chance = self._chance
        if depth <= 0 or chance.random() < 0.35:
            return self._leaf()
        match chance.randrange(9):
            case 0 | 1:
                return ["gather", self._nodes(depth)]
            case 2 | 3:
                return ["race", self._nodes(depth)]
            case 4:
                return ["timeout", self._seconds(), self._node(depth - 1)]
            case 5:
                return ["catch", ["seq", [*self._nodes(depth), self._step(may_fail=True)]]]
            case 6:
                return ["finally", self._node(depth - 1), self._leaf()]
            case 7:
                return ["map", [self._label() for _ in range(chance.randint(1, 5))], chance.randint(1, 3)]
            case _:
                return ["swallow" if self.swallows else "catch", ["seq", self._nodes(depth)]]

    def _nodes(self, depth: int) -> list[Node]:
        return [self._node(depth - 1) for _ in range(self._chance.randint(1, 3))]

    def _leaf(self) -> Node:
        match self._chance.randrange(14):
            case 0 | 1 | 2 | 3:
                return self._step(may_fail=False)
            case 4 | 5 | 10:
                return ["catch", self._step(may_fail=True)]
            case 6:
                return ["sleep", self._seconds()]
            case 7 | 8 | 9:
                return ["signal", self._chance.choice(SIGNALS), self._chance.choice([None, None, 0.3, 2.0, 4.0])]
            case 11 if self.has_sagas:
                return self._undoable()
            case 12 if self.has_children:
                return self._child()
            case 13 if self.has_children:
                return ["catch", self._child()]
            case _:
                return ["draw"]

    def _saga(self) -> Node:
        """Several steps that can be undone, one after the other or at once."""
        parts = [self._undoable() for _ in range(self._chance.randint(1, 4))]
        return [self._chance.choice(["seq", "gather", "gather"]), parts]

    def _undoable(self) -> Node:
        chance = self._chance
        seconds = chance.choice([0.0, 0.01, 0.1, 0.3])
        fails, broken = chance.choice([0, 0, 0, 1]), chance.choice([0, 0, 0, 0, 1, 2, 3, 99])
        return ["undoable", self._label(), seconds, fails, broken]

    def _child(self) -> Node:
        chance = self._chance
        if self._generations == 0:
            return self._step(may_fail=False)
        if self._written and chance.random() < 0.15:
            return chance.choice(self._written)
        how = chance.choice(HOWS)
        if how == "shared" and self._shared and chance.random() < 0.7:
            return chance.choice(self._shared)
        self._generations -= 1
        parts = [self._node(1) for _ in range(chance.randint(1, 2))]
        if self.has_sagas and chance.random() < 0.4:
            parts.insert(0, self._saga())
        if chance.random() < 0.3:
            parts.append(self._step(may_fail=True))
        self._generations += 1
        child = ["child", self._label() + chance.choice(["", "", "o"]), ["named", ["seq", parts]], how]
        if how == "shared" and self._generations == 2:
            self._shared.append(child)
        return child

    def _step(self, *, may_fail: bool) -> Node:
        chance = self._chance
        kinds = ["work", "stubborn", "once", "once", "hurried", "flaky", "flaky"]
        kind = chance.choice(kinds if may_fail else ["work", "stubborn"])
        fails = chance.choice([0, 0, 1, 2, 9]) if may_fail else chance.choice([0, 0, 1, 2])
        if not may_fail and kind == "work":
            fails = 0
        if kind == "flaky":
            fails = chance.choice([1, 1, 2])
        seconds = chance.choice([0.0, 0.0, 0.01, 0.05, 0.3, 0.3, 1.0])
        if chance.random() < 0.06:
            seconds = self._lease * 1.5  # longer than the lease that its worker must renew meanwhile
        beats = chance.choice([0, 0, 0, 1, 3])
        return ["step", kind, self._label(), seconds, fails, beats]

    def _seconds(self) -> float:
        return self._chance.choice([0.0, 0.01, 0.1, 0.5, 0.9, 1.5, 2.5, 4.0])

    def _label(self) -> str:
        self._labels += 1
        return f"s{self._labels}"


def add_clean_up(chance: random.Random, program: Node) -> None:
    """Let a program fail with a step in flight that it began because of the failure, and cut short.

    A retry takes the failure back. Then other calls of the same step come to the positions of those. Drawn apart from
    the program, as questions are.
    """
    parts = program[1] if program[0] == "seq" else program[1][1]
    cut_short: Node = ["step", "stubborn", "cleanup", 1.0, chance.choice([0, 1]), 3]
    parts.append(["finally", ["step", "flaky", "risky", 0.01, 1, 0], ["timeout", 0.6, cut_short]])
    parts.append(["step", "stubborn", "after", chance.choice([0.05, 0.3]), 0, 1])


def add_questions(chance: random.Random, program: Node, lease: float) -> None:
    """Let a program ask people: it waits for the answer, or it may go on without it.

    Drawn apart from the program, so that seeds without questions are what they were before there were any.
    """
    parts = program[1] if program[0] == "seq" else program[1][1]
    for number in range(chance.choice([1, 1, 2])):
        seconds = chance.choice([None, 0.3, 1.5, 4.0])
        remind_every = chance.choice([None, None, 0.4, lease])
        question: Node = ["ask", f"really {number}?", seconds, remind_every]
        match chance.randrange(5):
            case 0:
                question[1] = f"maybe {number}?"
                question = ["race", [question, ["sleep", chance.choice([0.05, 1.0])]]]
            case 1:
                question[1] = f"maybe {number}?"
                question = ["timeout", chance.choice([0.05, 1.0]), question]
            case 2:
                question = ["gather", [question, ["sleep", 0.5], ["ask", f"also {number}?", None, None]]]
            case _:
                if chance.random() < 0.6:
                    question[1] = f"{CHANGING} {number}?"
        parts.insert(chance.randint(0, len(parts)), question)
    if chance.random() < 0.4:  # and when it has failed, which a retry takes back
        clean_up: Node = ["ask", "what now?", chance.choice([None, 1.5]), None]
        if program[0] == "finally":
            program[2] = ["seq", [program[2], clean_up]]
        else:
            program[:] = ["finally", ["seq", parts], clean_up]
