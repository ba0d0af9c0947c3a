"""Conversations that go on over several runs.

A run in a session knows the run before it (``Run.previous``), and that one the run before it. Nothing of what they said
is recorded again: it is rebuilt from their journals in the process that asks the model, and kept there for the next
call. Only runs that have completed count, and those never change. A run goes on from the context of the one before it:
where that was compacted, what came before the summary is not read any more.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.agents.conversation import Conversation, rebuild
from holdfast.core.states import RunState
from holdfast.engine import step_context
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

log = logging.getLogger("holdfast.agents")

MOST_KEPT = 1000
"""Runs whose messages are kept in memory, for each engine."""

Read = Callable[[str], Awaitable["tuple[Run, History] | None"]]
"""Reads a run's row and journal."""

_Kept = OrderedDict[str, tuple[str, Conversation]]
"""By run id: the run before it, and what was said in it."""

_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
"""By engine, because two stores may each have a run of the same id."""


async def context_before(run_id: str) -> list[ModelMessage]:
    """What a model would be sent of a run and of those before it, for the step that asks the model."""
    step = step_context.current.get()
    chain: list[Conversation] = []
    async for conversation in _backwards(run_id, step.read_run, _kept.setdefault(step.engine, OrderedDict())):
        chain.append(conversation)
        if conversation.earlier == 0:
            break  # it sends nothing of those before it
    context: list[ModelMessage] = []
    for conversation in reversed(chain):
        context = conversation.after(context)
    return context


async def earlier_messages(run_id: str, read: Read) -> list[ModelMessage]:
    """All that was said in a run and in those before it."""
    chain = [conversation.messages async for conversation in _backwards(run_id, read, OrderedDict())]
    return [message for messages in reversed(chain) for message in messages]


async def _backwards(run_id: str, read: Read, kept: _Kept) -> AsyncIterator[Conversation]:
    """The conversations of a run and of those before it, the newest first."""
    while run_id:
        if run_id not in kept:
            found = await read(run_id)
            if found is None:
                log.info("a conversation is told without its beginning: run %r, which it goes on from, is gone", run_id)
                break
            run, history = found
            if run.state is not RunState.COMPLETED:
                run_id = run.previous
                continue
            kept[run_id] = (run.previous, rebuild(run.inputs, run.began_at, history.records))
            while len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        else:
            kept.move_to_end(run_id)
        run_id, conversation = kept[run_id]
        yield conversation
