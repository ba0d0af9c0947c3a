"""Expected results of programs.

``is_valid_result`` knows what a run's result must look like. It leaves open only what a race, a crash, or a user may
decide; the replay of the journal decides that (see ``final_checks``).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from holdfast.core.records import RecordKind
from simulation.workloads import RETRIES, SIGNALS, Node

MAX_KILLS = 20
"""More processes than one run kills before it is dead."""


class ResultOwner(NamedTuple):
    """The run that a result belongs to."""

    run_ids: Collection[str]
    """The run and those that it was forked from, whose outcomes are in its journal."""
    has_given_output: bool = False
    """Whether a user gave a step's outcome by hand."""


def count_signal_waits(node: Node) -> dict[str, int]:
    """Maximum number of waits for each signal in a program, without those of its children."""
    found = dict.fromkeys(SIGNALS, 0)
    for one in _list_nodes(node, include_children=False):
        if one[0] == "signal":
            found[one[1]] += 1
    return found


def estimate_max_duration_s(node: Node) -> float:
    """More virtual seconds than the program can take when nothing disturbs it."""
    total = 1.0
    for one in _list_nodes(node):
        if one[0] == "step":
            total += (one[3] + 1.0) * (RETRIES[one[1]] + 1)
        elif one[0] == "undoable":
            total += (one[2] + 3.0) * 2
        elif one[0] in ("sleep", "timeout"):
            total += one[1] + 1.0
        elif one[0] == "signal":
            total += one[2] or 1.0
        elif one[0] == "ask":
            total += 3.0 + 2 * (one[2] or 1.0)
        elif one[0] == "kill":
            total += MAX_KILLS * (one[2] + 10.0)
    return total


def has_kill(node: Node, *, include_children: bool = False) -> bool:
    """Whether the program kills its process, itself or (with ``children``) by a run that it starts."""
    return any(one[0] == "kill" for one in _list_nodes(node, include_children=include_children))


def can_swallow(node: Node) -> bool:
    """Whether the program may continue after it was cancelled."""
    # A clean-up that raises puts its own exception in the place of the cancellation, and that may be caught.
    parts = _list_nodes(node, include_children=False)
    return any(one[0] == "swallow" or (one[0] == "finally" and can_fail(one[2])) for one in parts)


def _list_nodes(node: Node, *, include_children: bool = True) -> list[Node]:
    below: list[Node] = []
    match node:
        case ["seq" | "gather" | "race", parts]:
            below = parts
        case ["catch" | "swallow" | "named", part] | ["timeout", _, part]:
            below = [part]
        case ["finally", part, last]:
            below = [part, last]
        case ["child", _, part, _] if include_children:
            below = [part]
    return [node, *(one for part in below for one in _list_nodes(part, include_children=include_children))]


def must_fail(node: Node) -> bool:
    """Whether the program cannot return."""
    match node:
        case ["kill", *_]:
            return True
        case ["step", kind, _, _, fails, _]:
            return fails > RETRIES[kind] and kind != "flaky"
        case ["undoable", _, _, fails, _]:
            return fails > RETRIES["undoable"]
        case ["seq" | "gather", parts]:
            return any(must_fail(part) for part in parts)
        case ["finally", part, last]:
            return must_fail(part) or must_fail(last)
        case ["named", part] | ["child", _, part, "call" | "start" | "shared" | "cancel" | "joined"]:
            return must_fail(part)
    return False


def can_fail(node: Node) -> bool:
    """Whether the program may raise: because of a step that fails, a ``once`` step whose worker died, a timeout, or a
    child, which a user may cancel."""
    match node:
        case ["step", kind, _, _, fails, _]:
            return fails > RETRIES[kind] or kind in ("once", "hurried")
        case ["undoable", _, _, fails, _]:
            return fails > RETRIES["undoable"]
        case ["child", *_]:
            return True
        case ["seq" | "gather" | "race", parts]:
            return any(can_fail(part) for part in parts)
        case ["timeout", _, part] | ["swallow", part] | ["named", part]:
            return can_fail(part)
        case ["finally", part, last]:
            return can_fail(part) or can_fail(last)
    return False


def is_valid_result(node: Node, value: Any, owner: ResultOwner) -> bool:
    """Whether a program of this run may have returned this."""
    match node:
        case ["step", kind, label, _, fails, _]:
            return (fails <= RETRIES[kind] or kind == "flaky" or owner.has_given_output) and _is_own_value(
                value, owner, f"/{label}"
            )
        case ["undoable", label, _, fails, _]:
            return (fails <= RETRIES["undoable"] or owner.has_given_output) and _is_own_value(value, owner, f"/{label}")
        case ["seq" | "gather", parts]:
            return len(value) == len(parts) and all(
                is_valid_result(part, one, owner) for part, one in zip(parts, value, strict=True)
            )
        case ["sleep", _]:
            return value == "slept"
        case ["timeout", _, part]:
            return value == "timed out" or (value is not None and is_valid_result(part, value, owner))
        case ["signal", name, seconds]:
            sent = isinstance(value, str) and any(value.startswith(f"{one}:{name}:") for one in owner.run_ids)
            return sent or (value == "no signal" and seconds is not None)
        case ["ask", _, seconds, _]:
            return value.startswith("said ") or (value == "nobody" and seconds is not None)
        case ["race", parts]:
            return is_valid_result(parts[value[0]], value[1], owner)
        case ["map", labels, _]:
            return len(value) == len(labels) and all(
                _is_own_value(one, owner, f"/{label}") for one, label in zip(value, labels, strict=True)
            )
        case ["catch", part]:
            if isinstance(value, list) and value[:1] == ["caught"]:
                return can_fail(part)
            return is_valid_result(part, value, owner)
        case ["swallow", part]:
            return value == "swallowed" or is_valid_result(part, value, owner)
        case ["finally", part, _]:
            return is_valid_result(part, value, owner)
        case ["draw"]:
            return value[0] in owner.run_ids
        case ["named", part]:
            return value[0] in owner.run_ids and is_valid_result(part, value[1], owner)
        case ["child", label, part, "joined"]:
            return is_valid_result(part, value, ResultOwner({label}))
        case ["child", label, part, how]:
            if not _is_child_id(value[0], label, how, owner):
                return False
            return how == "alone" or is_valid_result(part, value, ResultOwner({value[0]}))
    return False


def _is_own_value(value: Any, owner: ResultOwner, suffix: str) -> bool:
    return any(value == f"{one}{suffix}" for one in owner.run_ids)


def _is_child_id(run_id: str, label: str, mode: str, owner: ResultOwner) -> bool:
    if mode == "shared":
        return run_id == f"shared-{label}"
    name = "other" if label.endswith("o") else "simulated"
    return any(re.fullmatch(rf"{re.escape(one)}:{name}-\d+(\.\d+)?", run_id) for one in owner.run_ids)


def is_undoable(kind: RecordKind, name: str) -> bool:
    """Whether a record of this kind and name is of a step that can be undone."""
    return kind is RecordKind.STEP and name == "undoable"
