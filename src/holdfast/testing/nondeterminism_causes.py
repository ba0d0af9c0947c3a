"""Why a workflow does not replay: the usual suspects, looked for in the code that ran.

Three kinds of evidence, from the strongest to the weakest:

- what *changed*: module variables, closures and caches that workflow code can reach are compared before and after;
- what was *called*: the journal is replayed once more under a profiler, which sees every call that workflow code makes
  to a clock, to a source of chance, or to ``id()``;
- what is *written*: loops over sets, ``except BaseException``, assignments to what belongs to a module.

None of this decides whether there is a fault. That is known by then; it is only to be named.
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

from holdfast.checking.rules import KINDS
from holdfast.services.journal_files import Journal
from holdfast.testing.journal_replay import replay
from holdfast.testing.reachable_state import Reach, in_short
from holdfast.testing.source_scan import read_source
from holdfast.testing.violations import Violation

Kind = str
"""``state``, ``clock``, ``chance``, ``address``, ``hash``, ``surroundings``, ``set`` or ``catch-all``."""

MOST = 3
"""How many causes are named."""


class Suspect(NamedTuple):
    """Something in workflow code that does not replay."""

    kind: Kind
    what: str
    place: str
    weight: int
    """3: it changed. 2: it was called. 1: it is written there."""


_SAYS_WHY = ("state", "address", "hash", "set")
"""Kinds of which the subject of the sentence does not tell why they are wrong."""

HERE_FIRST = ("state", "clock", "chance", "address", "hash", "surroundings", "set")
ELSEWHERE_FIRST = ("set", "hash", "address", "state", "surroundings", "clock", "chance")


class Suspects:
    """The suspects of one workflow. Made before it runs for the first time, to know what was there before."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._reach = Reach(function)
        self._before = self._reach.snapshot()

    def add(self, function: Callable[..., Any]) -> None:
        """Another workflow belongs to it, as a run has shown; most are known already, by their names in the first."""
        self._reach.follow(function)
        self._before = {**self._reach.snapshot(), **self._before}

    def name(self, violation: Violation, journal: Journal) -> list[str]:
        """The likely causes of a violation in this run, in words, the likeliest first."""
        if violation.rule == "step-result":
            return [_step_cause(violation)]
        if violation.rule == "order":
            return [
                "the result depends on which of several outcomes is the first. If it may, leave the comparison of "
                "results out: `Runner(same_result=False)`."
            ]
        if violation.rule == "unfit":
            return []
        if violation.rule in ("ran-again", "once"):
            return ["this is a defect of Holdfast, not of the workflow: please report it."]
        found = self._written()
        if violation.rule == "swallowed":
            chosen = [one for one in found if one.kind == "catch-all"]
        else:
            found = [*self._changed(), *_called(journal), *found, *_shown_addresses(violation)]
            found += [Suspect("state", what, place, 1) for what, place in self._reach.filled_caches()]
            order = ELSEWHERE_FIRST if violation.elsewhere else HERE_FIRST
            chosen = [one for one in found if one.kind in order]
            if violation.elsewhere:
                chosen.sort(key=lambda one: (order.index(one.kind), -one.weight))
            else:
                chosen.sort(key=lambda one: (-one.weight, order.index(one.kind)))
        words = list(dict.fromkeys(_in_words(one) for one in _strongest(chosen)))[:MOST]
        return words or [_not_found(violation)]

    def _changed(self) -> list[Suspect]:
        after = self._reach.snapshot()
        return [
            Suspect(
                "state",
                f"{name} went from {in_short(self._before[name])} to {in_short(value)}",
                self._reach.places[name],
                3,
            )
            for name, value in after.items()
            if name in self._before and self._before[name] != value
        ]

    def _written(self) -> list[Suspect]:
        return [
            Suspect(finding.kind, finding.what, finding.place, 1)
            for function in self._reach.functions
            for finding in read_source(function)
        ]


def _not_found(violation: Violation) -> str:
    if violation.rule == "swallowed":
        return (
            "not found. Something between there and the workflow stops every BaseException: look for `except:`, for "
            "`except BaseException:` and for `return` in a `finally` block, also in what the workflow calls."
        )
    if violation.elsewhere:
        return (
            "not found, but it differs from process to process: look for the order of a set, for hashes, and for what "
            "modules remember."
        )
    return (
        "not found. Something in workflow code is not a function of its inputs and of what its steps returned: "
        "look for time, chance, sets, and variables that outlive a run."
    )


def _shown_addresses(violation: Violation) -> list[Suspect]:
    if violation.message.count(" at 0x") < 2:
        return []
    return [Suspect("address", "the `repr` of an object shows its address", "", 1)]


def _strongest(suspects: list[Suspect]) -> list[Suspect]:
    """One suspect for each thing at each place; what is only written is left out where something stronger is known."""
    strong = {one.kind for one in suspects if one.weight > 1}
    seen: set[tuple[str, str]] = set()
    kept: list[Suspect] = []
    for one in suspects:
        if (one.weight == 1 and one.kind in strong) or (one.kind, one.place) in seen:
            continue
        seen.add((one.kind, one.place))
        kept.append(one)
    return kept


def _in_words(suspect: Suspect) -> str:
    subject = {
        "state": "workflow code depends on something that outlives the run",
        "clock": "workflow code reads the clock",
        "chance": "workflow code draws chance",
        "address": "workflow code depends on the addresses of objects",
        "hash": "workflow code depends on hashes",
        "surroundings": "workflow code looks at its surroundings",
        "set": "workflow code depends on the order of a set",
        "catch-all": "workflow code catches every BaseException",
    }[suspect.kind]
    place = f" (at {suspect.place})" if suspect.place else ""
    return f"{subject}: {suspect.what}{place}. {_remedy(suspect.kind)}"


def _remedy(kind: Kind) -> str:
    why, remedy = KINDS[kind]
    text = f"{why}: {remedy}." if kind in _SAYS_WHY else f"{remedy}."
    return text[0].upper() + text[1:]


def _step_cause(violation: Violation) -> str:
    if violation.executions > 1:
        return (
            f"step {violation.step!r} is not idempotent: its process died when it had run and its outcome was not yet "
            f"recorded, so it ran again, and did something else. Hand `current_step().idempotency_key` to what it "
            f"calls, or declare effect='once'. If it may return something else each time, mock it."
        )
    return (
        f"step {violation.step!r} does not return the same each time. It need not; but then results cannot be "
        f"compared. Put back what it changes before every run (`runner.before_each`), mock it, or leave the "
        f"comparison of results out: `Runner(same_result=False)`."
    )


# What was called

_CLOCKS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.localtime", "time.gmtime", "time.ctime", "time.strftime", "time.process_time", "datetime.now",
    "datetime.utcnow", "datetime.today", "date.today",
}  # fmt: skip
_CHANCE = {"posix.urandom", "nt.urandom", "os.urandom", "_random.Random", "Random.random", "Random.getrandbits"}
_CHANCE_MODULES = {"random", "uuid", "secrets"}
_HARMLESS = {"UUID.__init__", "UUID.__str__", "Random.seed", "Random.__init__"}
_SURROUNDINGS = {"posix.getpid", "io.open", "_io.open", "_socket.gethostname", "posix.getcwd", "posix.listdir"}
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _called(journal: Journal) -> list[Suspect]:
    found: list[Suspect] = []
    with _profiled(found):
        replay(journal)
    return list(dict.fromkeys(found))


@contextmanager
def _profiled(found: list[Suspect]) -> Generator[None]:
    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            if _is_users(frame):
                name = _name_of(argument)
                if (kind := _kind_of(name)) is not None:
                    found.append(_at(kind, name, frame))
        elif event == "return":
            name, caller = frame.f_code.co_name, frame.f_back
            if isinstance(argument, set | frozenset) and name.isidentifier() and caller and _is_users(caller):
                place = f"{caller.f_code.co_filename}:{caller.f_lineno} in {caller.f_code.co_name}"
                found.append(Suspect("set", f"`{name}()` returns one", place, 1))
        elif event == "call" and frame.f_back is not None and _is_users(frame.f_back):
            module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
            if module in _CHANCE_MODULES and name not in _HARMLESS:
                found.append(_at("chance", f"{module}.{name.rpartition('.')[2]}", frame.f_back))
            elif name == "getenv" or frame.f_locals.get("self") is os.environ:
                found.append(_at("surroundings", "os.environ", frame.f_back))

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a finalizer, or somebody's callback for collections, would be taken for workflow code
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", "") or getattr(function, "__name__", "")
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and "." not in name else name


def _kind_of(name: str) -> Kind | None:
    if name in _CLOCKS:
        return "clock"
    if name in _CHANCE:
        return "chance"
    if name in _SURROUNDINGS:
        return "surroundings"
    return {"builtins.id": "address", "builtins.hash": "hash", "set.pop": "set"}.get(name)


def _at(kind: Kind, name: str, frame: FrameType) -> Suspect:
    shown = name.removeprefix("builtins.").replace("Random.", "random.").replace("posix.", "os.")
    place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return Suspect(kind, f"`{shown}`" if shown == "os.environ" else f"`{shown}()`", place, 2)


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(("<frozen", _OURS)):
        return False
    return not file.startswith(_STDLIB) or "site-packages" in file
