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
from typing import TYPE_CHECKING, Any

from holdfast.errors import DepsMissing

if TYPE_CHECKING:
    from holdfast.engine.step_context import StepContext

PATIENCE = 5.0
"""Seconds that a run which nobody has asked for here waits for somebody to do so."""

MOST_PARENTS = 100_000

_given: dict[str, Any] = {}
"""By run id: what whoever started the run here, or joined it, has given; ``None`` if that was nothing."""

_parents: OrderedDict[str, str] = OrderedDict()
"""By run id: the run that has started it in this process."""

_of_agents: dict[str, Any] = {}
"""By the agent's name: what the worker in this process was given."""

_news = threading.Condition()
"""Notified when somebody has given something."""


def hand_over(run_id: str, deps: Any) -> None:
    """These are the deps of a run that is about to begin here, or has begun already; ``None``: it has none."""
    with _news:
        _given[run_id] = deps
        _news.notify_all()


def take_back(run_id: str) -> None:
    """Nobody waits for the run here any more: forget its deps."""
    _given.pop(run_id, None)


def belongs_to(run_id: str, parent: str) -> None:
    """A run begins that another one has started: it has the same deps, if it has none of its own."""
    _parents[run_id] = parent
    if len(_parents) > MOST_PARENTS:
        _parents.popitem(last=False)


def serve_with(agents: list[str], deps: Any) -> None:
    """These are the deps of every run of these agents that has none of its own."""
    with _news:
        _of_agents.update(dict.fromkeys(agents, deps))
        _news.notify_all()


async def deps_soon(step: StepContext, agent: str, deps_type: Any) -> Any:
    """As ``deps_of``, on an event loop."""
    if _is_settled(step, agent):
        return deps_of(step, agent, deps_type)
    return await asyncio.to_thread(deps_of, step, agent, deps_type)


def deps_of(step: StepContext, agent: str, deps_type: Any) -> Any:
    """The deps of the run of a step that is executed here. Raises ``DepsMissing`` if there should be some and are none.

    Blocks for a while if nobody has asked for the run in this process yet.
    """
    deadline = time.monotonic() + PATIENCE
    with _news:
        while not _is_settled(step, agent) and deps_type is not None:
            if not _news.wait(deadline - time.monotonic()):
                break
    root = _root_of(step)
    deps = None if root is None else _given.get(root)
    if deps is None or not _fits(deps, deps_type):
        deps = _of_agents.get(agent)
    if deps is None and deps_type not in (None, type(None)):
        raise DepsMissing(
            f"agent {agent!r} has deps_type={getattr(deps_type, '__name__', deps_type)}, and this process was given "
            f"none for run {step.run_id!r}: deps are never recorded, so each process brings its own. Give them to the "
            f"worker, as in `agent.run_worker(deps=...)`, or to `agent.run(..., deps=...)`; then `holdfast retry` lets "
            f"the run go on."
        )
    return deps


def _is_settled(step: StepContext, agent: str) -> bool:
    """Whether it is known what the run's deps are."""
    return agent in _of_agents or _root_of(step) is not None


def _root_of(step: StepContext) -> str | None:
    """The run for which deps were given, or not, in this process: this one, or one above it."""
    run_id = step.run_id
    while run_id not in _given:
        parent = _parents.get(run_id) or (step.run.parent if run_id == step.run_id else None)
        if not parent:
            return None
        run_id = parent
    return run_id


def _fits(deps: Any, deps_type: Any) -> bool:
    """Whether a run that was started by another agent's can take over its deps."""
    if deps_type in (None, type(None)):
        return True
    try:
        return isinstance(deps, deps_type)
    except TypeError:  # `dict[str, int]` and other annotations that are no classes
        return True
