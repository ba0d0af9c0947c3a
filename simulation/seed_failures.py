"""The failure of a seed, and the handler that turns the engine's error logs into one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.codec import recorded_errors as errors_as_bytes
from simulation import workloads

if TYPE_CHECKING:
    from simulation.world import World


class InvariantBroken(Exception):
    """An invariant does not hold in this seed."""

    def __init__(self, seed: int, invariant: str, details: str, at: float, store: str = "") -> None:
        self.seed, self.invariant, self.details, self.at, self.store = seed, invariant, details, at, store
        super().__init__(
            f"seed {seed} breaks the invariant: {invariant}\n  at {at:.3f} s: {details}\n"
            f"  to see it: python -m simulation --seed {seed}{f' --store {store}' if store else ''}"
        )

    def __reduce__(self) -> Any:
        return InvariantBroken, (self.seed, self.invariant, self.details, self.at, self.store)


class _ErrorLogHandler(logging.Handler):
    """An error in the engine's log fails the seed: nothing is meant to go wrong inside the engine."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Fail the seed, unless it is about the end of a run, or an exception that the program itself left unseen."""
        if record.name != "holdfast.runs" and record.msg != "run %r: %s":
            error = record.exc_info[1] if record.exc_info else ""
            self._world.fail("the engine has nothing to log as an error", f"{record.getMessage()} {error!r}")


@contextmanager
def observe_world(world: World) -> Iterator[None]:
    """Connect a world to the steps and to the engine's log."""
    log = logging.getLogger("holdfast")
    before = log.level, log.propagate, log.disabled
    handler = _ErrorLogHandler(world)
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate, log.disabled = False, False
    workloads.observer = world
    collecting = gc.isenabled()
    gc.disable()  # nothing of another seed is finalised in the middle of this one
    try:
        # Tracebacks are for people, name this machine's folders, and cost a tenth of the time.
        with patch.object(errors_as_bytes, "_format_traceback", lambda *_: ""):
            yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate, log.disabled = before
        logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
        workloads.observer = workloads.StepObserver()
        if collecting:
            gc.enable()
