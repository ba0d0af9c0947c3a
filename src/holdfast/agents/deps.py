"""``deps``: objects that tools receive and no journal contains, such as connections, clients, and the current user.

``deps`` belong to a process. The caller passes them to ``run`` for one run and the runs that it starts, or to a worker
for every run that it executes. A run that continues in another process gets the deps of that process.

A restarted program may claim a run of a dead process a moment before it calls ``run`` itself, and so before it has
passed the deps. Code that needs them waits for a short time in this case.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from typing import Any

from holdfast.codec.formatting import format_type, get_type
from holdfast.engine.step_context import StepExecutor, get_step_executor
from holdfast.errors import DepsMissing, InputError

DEPS_TIMEOUT_S = 5.0
"""How long a run that this process has claimed, but not started or joined, waits for its deps."""

MAX_PARENTS = 100_000

_deps_by_run: dict[str, Any] = {}
"""By run id: the deps from the caller that started or joined the run in this process; ``None`` if it passed none."""

_parent_by_run: OrderedDict[str, str] = OrderedDict()
"""By run id: the run that started it in this process."""

_deps_by_agent: dict[str, Any] = {}
"""By agent name: the deps of the worker in this process."""

_deps_changed = threading.Condition()
"""Notified when deps are set."""


def set_run_deps(run_id: str, deps: Any) -> None:
    """Set the deps of a run that is about to begin in this process, or has begun; ``None``: it has none."""
    with _deps_changed:
        _deps_by_run[run_id] = deps
        _deps_changed.notify_all()


def clear_run_deps(run_id: str) -> None:
    """Forget the deps of a run that no caller in this process waits for anymore."""
    _deps_by_run.pop(run_id, None)


def set_parent(run_id: str, parent_id: str) -> None:
    """Note that one run started another one, which has the same deps unless it gets its own."""
    _parent_by_run[run_id] = parent_id
    if len(_parent_by_run) > MAX_PARENTS:
        _parent_by_run.popitem(last=False)


def set_agent_deps(agents: list[str], deps: Any) -> None:
    """Set the deps of all runs of these agents that have none of their own."""
    with _deps_changed:
        _deps_by_agent.update(dict.fromkeys(agents, deps))
        _deps_changed.notify_all()


def check_deps_type(deps: Any, deps_type: Any, agent: str) -> None:
    """Refuse deps that are not of the agent's ``deps_type``, before its run begins and a model call is paid for."""
    if deps is not None and not _is_compatible(deps, deps_type):
        expected, given = format_type(deps_type), format_type(get_type(deps))
        raise InputError(
            f"agent {agent!r} has deps_type={expected}, and deps= is of type {given}: pass an instance of {expected}"
        )


async def get_deps_async(agent: str, deps_type: Any) -> Any:
    """``get_deps`` for code on an event loop."""
    if _is_known(get_step_executor(), agent):
        return get_deps(agent, deps_type)
    return await asyncio.to_thread(get_deps, agent, deps_type)


def get_deps(agent: str, deps_type: Any) -> Any:
    """The deps of the running step's run. Raises ``DepsMissing`` if the agent needs some and there are none.

    Blocks for a short time if no caller in this process has started or joined the run yet.
    """
    executor, deadline = get_step_executor(), time.monotonic() + DEPS_TIMEOUT_S
    with _deps_changed:
        while not _is_known(executor, agent) and deps_type is not None:
            if not _deps_changed.wait(deadline - time.monotonic()):
                break
    root = _find_deps_run(executor)
    run_deps = None if root is None else _deps_by_run.get(root)
    if run_deps is not None and _is_compatible(run_deps, deps_type):
        return run_deps
    deps = _deps_by_agent.get(agent)
    if deps is None and deps_type not in (None, type(None)):
        given = "none" if run_deps is None else f"a {format_type(get_type(run_deps))}"
        raise DepsMissing(
            f"agent {agent!r} has deps_type={format_type(deps_type)}, and this process was given {given} for run "
            f"{executor.run.id!r}: deps are never recorded, so each process brings its own. Give them to the worker, "
            f"as in `agent.run_worker(deps=...)`, or to `agent.run(..., deps=...)`; then `holdfast retry` continues "
            f"the run."
        )
    return deps


def _is_known(executor: StepExecutor, agent: str) -> bool:
    """Whether this process knows the run's deps, or that it has none."""
    return agent in _deps_by_agent or _find_deps_run(executor) is not None


def _find_deps_run(executor: StepExecutor) -> str | None:
    """The run that a caller in this process started or joined: this run, or an ancestor."""
    run, run_id = executor.run, executor.run.id
    while run_id not in _deps_by_run:
        parent = _parent_by_run.get(run_id) or (run.parent if run_id == run.id else None)
        if not parent:
            return None
        run_id = parent
    return run_id


def _is_compatible(deps: Any, deps_type: Any) -> bool:
    if deps_type in (None, type(None)):
        return True
    try:
        return isinstance(deps, deps_type)
    except TypeError:  # annotations that are not classes, such as `dict[str, int]`
        return True
