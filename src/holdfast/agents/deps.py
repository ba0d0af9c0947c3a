"""What tools are handed and nobody records: connections, clients, settings, the user that is logged in.

``deps`` belong to a process. They are given to ``run`` for one run and the runs that it starts, or to a worker for
every run that it executes. A run that goes on in another process gets what that process has been given.

A program that is started again may go on with a run of a dead process a moment before it calls ``run`` itself, and so
before it has given the deps. Who needs them waits for a while then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from typing import Any

from holdfast.engine.step_context import StepExecutor, get_step_executor
from holdfast.errors import DepsMissing

DEPS_TIMEOUT_S = 5.0
"""Seconds that a run which nobody has asked for here waits for somebody to do so."""

MAX_PARENTS = 100_000

_deps_by_run: dict[str, Any] = {}
"""By run id: what whoever started the run here, or joined it, has given; ``None`` if that was nothing."""

_parent_by_run: OrderedDict[str, str] = OrderedDict()
"""By run id: the run that has started it in this process."""

_deps_by_agent: dict[str, Any] = {}
"""By the agent's name: what the worker in this process was given."""

_deps_changed = threading.Condition()
"""Notified when somebody has given something."""


def set_run_deps(run_id: str, deps: Any) -> None:
    """These are the deps of a run that is about to begin here, or has begun already; ``None``: it has none."""
    with _deps_changed:
        _deps_by_run[run_id] = deps
        _deps_changed.notify_all()


def clear_run_deps(run_id: str) -> None:
    """Nobody waits for the run here any more: forget its deps."""
    _deps_by_run.pop(run_id, None)


def set_parent(run_id: str, parent_id: str) -> None:
    """A run begins that another one has started: it has the same deps, if it has none of its own."""
    _parent_by_run[run_id] = parent_id
    if len(_parent_by_run) > MAX_PARENTS:
        _parent_by_run.popitem(last=False)


def set_agent_deps(agents: list[str], deps: Any) -> None:
    """These are the deps of every run of these agents that has none of its own."""
    with _deps_changed:
        _deps_by_agent.update(dict.fromkeys(agents, deps))
        _deps_changed.notify_all()


async def get_deps_async(agent: str, deps_type: Any) -> Any:
    """As ``get_deps``, on an event loop."""
    if _is_known(get_step_executor(), agent):
        return get_deps(agent, deps_type)
    return await asyncio.to_thread(get_deps, agent, deps_type)


def get_deps(agent: str, deps_type: Any) -> Any:
    """The deps of the running step's run. Raises ``DepsMissing`` if there should be some and are none.

    Blocks for a while if nobody has asked for the run in this process yet.
    """
    executor, deadline = get_step_executor(), time.monotonic() + DEPS_TIMEOUT_S
    with _deps_changed:
        while not _is_known(executor, agent) and deps_type is not None:
            if not _deps_changed.wait(deadline - time.monotonic()):
                break
    root = _find_deps_run(executor)
    deps = None if root is None else _deps_by_run.get(root)
    if deps is None or not _is_compatible(deps, deps_type):
        deps = _deps_by_agent.get(agent)
    if deps is None and deps_type not in (None, type(None)):
        raise DepsMissing(
            f"agent {agent!r} has deps_type={getattr(deps_type, '__name__', deps_type)}, and this process was given "
            f"none for run {executor.run.id!r}: deps are never recorded, so each process brings its own. Give them to "
            f"the worker, as in `agent.run_worker(deps=...)`, or to `agent.run(..., deps=...)`; then `holdfast retry` "
            f"continues the run."
        )
    return deps


def _is_known(executor: StepExecutor, agent: str) -> bool:
    """Whether it is known what the run's deps are."""
    return agent in _deps_by_agent or _find_deps_run(executor) is not None


def _find_deps_run(executor: StepExecutor) -> str | None:
    """The run for which deps were given, or not, in this process: this one, or one above it."""
    run, run_id = executor.run, executor.run.id
    while run_id not in _deps_by_run:
        parent = _parent_by_run.get(run_id) or (run.parent if run_id == run.id else None)
        if not parent:
            return None
        run_id = parent
    return run_id


def _is_compatible(deps: Any, deps_type: Any) -> bool:
    """Whether a run that was started by another agent's can take over its deps."""
    if deps_type in (None, type(None)):
        return True
    try:
        return isinstance(deps, deps_type)
    except TypeError:  # `dict[str, int]` and other annotations that are no classes
        return True
