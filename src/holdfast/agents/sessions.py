"""Conversations that go on over several runs.

A run in a session knows the run before it (``Run.previous``), and that one the run before it. Nothing of what they said
is recorded again: it is rebuilt from their journals in the process that asks the model, and kept there for the next
call. Only runs that have completed count, and those never change.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.agents.conversation import rebuild
from holdfast.core.states import RunState
from holdfast.engine import steps
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

MOST_KEPT = 1000
"""Runs whose messages are kept in memory, for each engine."""

Read = Callable[[str], Awaitable["tuple[Run, History] | None"]]
"""Reads a run's row and journal."""

_Kept = OrderedDict[str, "tuple[str, list[ModelMessage]]"]
"""By run id: the run before it, and what was said in it."""

_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
"""By engine, because two stores may each have a run of the same id."""


async def messages_before(run_id: str) -> list[ModelMessage]:
    """What was said in a run and in those before it, for the step that asks the model."""
    step = steps.current.get()
    return await earlier_messages(run_id, step.read_run, _kept.setdefault(step.engine, OrderedDict()))


async def earlier_messages(run_id: str, read: Read, kept: _Kept) -> list[ModelMessage]:
    """What was said in a run and in those before it."""
    chain: list[list[ModelMessage]] = []
    while run_id:
        if run_id not in kept:
            found = await read(run_id)
            if found is None:
                break
            run, history = found
            if run.state is not RunState.COMPLETED:
                run_id = run.previous
                continue
            kept[run_id] = (run.previous, rebuild(run.inputs, run.began_at, history.records).messages)
            while len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        else:
            kept.move_to_end(run_id)
        run_id, messages = kept[run_id]
        chain.append(messages)
    return [message for messages in reversed(chain) for message in messages]
