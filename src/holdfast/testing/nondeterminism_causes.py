"""Likely causes of nondeterminism, found in the code that ran.

There are three kinds of evidence, from the strongest to the weakest:

- State that *changed*: module variables, closures, and caches that workflow code can reach are compared before and
  after.
- Functions that were *called*: the journal is replayed under a profiler, which sees every call from workflow code to a
  clock, to a source of randomness, or to ``id()``.
- Code that is *written*: loops over sets, ``except BaseException``, assignments to module variables.

None of this decides whether there is a fault. By then, a rule is broken, and the cause only needs a name.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from holdfast.checking.rules import VIOLATION_KINDS
from holdfast.core.records import RecordKind
from holdfast.services.journal_files import Journal
from holdfast.testing.journal_replay import replay
from holdfast.testing.reachable_state import ReachableState, shorten
from holdfast.testing.source_scan import scan_source
from holdfast.testing.violations import Violation

CauseKind = str
"""``state``, ``clock``, ``random``, ``address``, ``hash``, ``environment``, ``set`` or ``catch-all``."""

MAX_CAUSES = 3
"""Maximum number of causes in a message."""


class Cause(NamedTuple):
    """Something in workflow code that does not replay."""

    kind: CauseKind
    description: str
    location: str
    evidence: int
    """3: state that changed. 2: a function that was called. 1: code that is written."""


_KINDS_WITH_REASON = ("state", "address", "hash", "set")
"""Kinds whose sentence needs the reason why they are wrong."""

LOCAL_KIND_ORDER = ("state", "clock", "random", "address", "hash", "environment", "set")
SUBPROCESS_KIND_ORDER = ("set", "hash", "address", "state", "environment", "clock", "random")


class CauseFinder:
    """Finds causes in one workflow. Created before the first run, to know the state before it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._reachable_state = ReachableState(function)
        self._initial_snapshot = self._reachable_state.snapshot()

    def add_workflow(self, function: Callable[..., Any]) -> None:
        """Add a workflow that a run has started. Most are already known by their names in the first one."""
        self._reachable_state.add_function(function)
        self._initial_snapshot = {**self._reachable_state.snapshot(), **self._initial_snapshot}

    def explain(self, violation: Violation, journal: Journal) -> list[str]:
        """The likely causes of a violation in this run, in words, most likely first."""
        if violation.rule == "step-result":
            return [_explain_step(violation)]
        if violation.rule == "order":
            return [
                "the result depends on which of several outcomes is the first. If it may, leave the comparison of "
                "results out: `Runner(compare_results=False)`."
            ]
        if violation.rule == "unfit":
            return []
        if violation.rule in ("ran-again", "once"):
            return ["this is a defect of Holdfast, not of the workflow: please report it."]
        found = self._find_in_source()
        if violation.rule == "swallowed":
            chosen = [cause for cause in found if cause.kind == "catch-all"]
        else:
            found = [*self._find_changed_state(), *_find_calls(journal), *found, *_find_addresses(violation)]
            found += [Cause("state", *cache, 1) for cache in self._reachable_state.list_filled_caches()]
            order = SUBPROCESS_KIND_ORDER if violation.other_process else LOCAL_KIND_ORDER
            chosen = [cause for cause in found if cause.kind in order]
            if violation.other_process:
                chosen.sort(key=lambda cause: (order.index(cause.kind), -cause.evidence))
            else:
                chosen.sort(key=lambda cause: (-cause.evidence, order.index(cause.kind)))
        descriptions = list(dict.fromkeys(map(_describe_cause, _keep_strongest(chosen))))[:MAX_CAUSES]
        return descriptions or [_describe_not_found(violation)]

    def _find_changed_state(self) -> list[Cause]:
        after = self._reachable_state.snapshot()
        return [
            Cause(
                "state",
                f"{name} went from {shorten(self._initial_snapshot[name])} to {shorten(value)}",
                self._reachable_state.locations[name],
                3,
            )
            for name, value in after.items()
            if name in self._initial_snapshot and self._initial_snapshot[name] != value
        ]

    def _find_in_source(self) -> list[Cause]:
        return [
            Cause(finding.kind, finding.description, finding.location, 1)
            for function in self._reachable_state.functions
            for finding in scan_source(function)
        ]


def _describe_not_found(violation: Violation) -> str:
    if violation.rule == "swallowed":
        return (
            "not found. Something between there and the workflow stops every BaseException: look for `except:`, for "
            "`except BaseException:` and for `return` in a `finally` block, also in what the workflow calls."
        )
    if violation.other_process:
        return (
            "not found, but it differs from process to process: look for the order of a set, for hashes, and for what "
            "modules remember."
        )
    return (
        "not found. Something in workflow code is not a function of its inputs and of what its steps returned: "
        "look for time, chance, sets, and variables that outlive a run."
    )


def _find_addresses(violation: Violation) -> list[Cause]:
    if violation.message.count(" at 0x") < 2:
        return []
    return [Cause("address", "the `repr` of an object shows its address", "", 1)]


def _keep_strongest(causes: list[Cause]) -> list[Cause]:
    """One cause for each kind and location. Code that is only written is left out where there is stronger evidence."""
    strong_kinds = {cause.kind for cause in causes if cause.evidence > 1}
    strongest: dict[tuple[str, str], Cause] = {}
    for cause in causes:
        if cause.evidence > 1 or cause.kind not in strong_kinds:
            strongest.setdefault((cause.kind, cause.location), cause)
    return list(strongest.values())


def _describe_cause(cause: Cause) -> str:
    subject = {
        "state": "workflow code depends on something that outlives the run",
        "clock": "workflow code reads the clock",
        "random": "workflow code draws chance",
        "address": "workflow code depends on the addresses of objects",
        "hash": "workflow code depends on hashes",
        "environment": "workflow code looks at its surroundings",
        "set": "workflow code depends on the order of a set",
        "catch-all": "workflow code catches every BaseException",
    }[cause.kind]
    location = f" (at {cause.location})" if cause.location else ""
    return f"{subject}: {cause.description}{location}. {_describe_remedy(cause.kind)}"


def _describe_remedy(kind: CauseKind) -> str:
    why, remedy = VIOLATION_KINDS[kind]
    text = f"{why}: {remedy}." if kind in _KINDS_WITH_REASON else f"{remedy}."
    return text[0].upper() + text[1:]


def _explain_step(violation: Violation) -> str:
    if violation.execution_count > 1:
        return (
            f"step {violation.step!r} is not idempotent: its process died when it had run and its outcome was not yet "
            f"recorded, so it ran again, and did something else. Hand `current_step().idempotency_key` to what it "
            f"calls, or declare effect='once'. If it may return something else each time, mock it."
        )
    return (
        f"step {violation.step!r} does not return the same each time. It need not; but then results cannot be "
        f"compared. Put back what it changes before every run (`runner.before_each`), mock it, or leave the "
        f"comparison of results out: `Runner(compare_results=False)`."
    )


# Calls seen by a profiler

_CLOCK_CALLS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.localtime", "time.gmtime", "time.ctime", "time.strftime", "time.process_time", "datetime.now",
    "datetime.utcnow", "datetime.today", "date.today",
}  # fmt: skip
_RANDOM_CALLS = {"posix.urandom", "nt.urandom", "os.urandom", "_random.Random", "Random.random", "Random.getrandbits"}
_RANDOM_MODULES = {"random", "uuid", "secrets"}
_HARMLESS_RANDOM_CALLS = {"UUID.__init__", "UUID.__str__", "Random.seed", "Random.__init__"}
_ENVIRONMENT_CALLS = {"posix.getpid", "io.open", "_io.open", "_socket.gethostname", "posix.getcwd", "posix.listdir"}
_STDLIB_PATH = sysconfig.get_paths()["stdlib"] + os.sep
_HOLDFAST_PATH = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _find_calls(journal: Journal) -> list[Cause]:
    found: list[Cause] = []
    if any(record.kind is RecordKind.CALL for record in journal.records):
        return found  # a program's code would have its effects again
    with _profile_calls(found):
        replay(journal)
    return list(dict.fromkeys(found))


@contextmanager
def _profile_calls(found: list[Cause]) -> Generator[None]:
    def inspect_event(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            if _is_user_frame(frame):
                name = _get_name(argument)
                if (kind := _classify_call(name)) is not None:
                    found.append(_make_cause(kind, name, frame))
        elif event == "return":
            name, caller = frame.f_code.co_name, frame.f_back
            if isinstance(argument, set | frozenset) and name.isidentifier() and caller and _is_user_frame(caller):
                found.append(Cause("set", f"`{name}()` returns one", _locate(caller), 1))
        elif event == "call" and frame.f_back is not None and _is_user_frame(frame.f_back):
            module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
            if module in _RANDOM_MODULES and name not in _HARMLESS_RANDOM_CALLS:
                found.append(_make_cause("random", f"{module}.{name.rpartition('.')[2]}", frame.f_back))
            elif name == "getenv" or frame.f_locals.get("self") is os.environ:
                found.append(_make_cause("environment", "os.environ", frame.f_back))

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a finalizer, or a callback of the collector, would look like workflow code
    sys.setprofile(inspect_event)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def _get_name(function: Any) -> str:
    name = getattr(function, "__qualname__", "") or getattr(function, "__name__", "")
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and "." not in name else name


def _classify_call(name: str) -> CauseKind | None:
    if name in _CLOCK_CALLS:
        return "clock"
    if name in _RANDOM_CALLS:
        return "random"
    if name in _ENVIRONMENT_CALLS:
        return "environment"
    return {"builtins.id": "address", "builtins.hash": "hash", "set.pop": "set"}.get(name)


def _make_cause(kind: CauseKind, name: str, frame: FrameType) -> Cause:
    shown = name.removeprefix("builtins.").replace("Random.", "random.").replace("posix.", "os.")
    return Cause(kind, f"`{shown}`" if shown == "os.environ" else f"`{shown}()`", _locate(frame), 2)


def _locate(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_user_frame(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(("<frozen", _HOLDFAST_PATH)):
        return False
    return not file.startswith(_STDLIB_PATH) or "site-packages" in file
