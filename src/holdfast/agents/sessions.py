"""Conversations that go on over several runs.

A run in a session knows the run before it (``Run.previous_run``), and that one the run before it. Nothing of what they
said is recorded again: it is rebuilt from their journals in the process that asks the model and kept there for the next
call. Only runs that have completed count, and those never change. A run goes on from the context of the one before it:
where that was compacted, what came before the summary is not read any more.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.agents.conversation import Conversation, rebuild_conversation
from holdfast.core.states import RunState
from holdfast.engine.step_context import get_step_executor
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

log = logging.getLogger("holdfast.agents")

MAX_CACHED_RUNS = 1000
"""Runs whose messages are kept in memory, for each engine."""

RunReader = Callable[[str], Awaitable["tuple[Run, History] | None"]]
"""Reads a run's row and journal."""

_ConversationCache = OrderedDict[str, tuple[str, Conversation]]
"""By run id: the run before it, and what was said in it."""

_cache_by_engine: weakref.WeakKeyDictionary[Any, _ConversationCache] = weakref.WeakKeyDictionary()
"""By engine, because two stores may each have a run of the same id."""


async def read_context(run_id: str) -> list[ModelMessage]:
    """What a model would be sent of a run and of those before it, for the step that asks the model."""
    executor = get_step_executor()
    chain: list[Conversation] = []
    async for conversation in _iterate_backwards(
        run_id, executor.read_run, _cache_by_engine.setdefault(executor.engine, OrderedDict())
    ):
        chain.append(conversation)
        if conversation.earlier_count == 0:
            break  # it sends nothing of those before it
    context: list[ModelMessage] = []
    for conversation in reversed(chain):
        context = conversation.build_context(context)
    return context


async def read_messages(run_id: str, read_run: RunReader) -> list[ModelMessage]:
    """All that was said in a run and in those before it."""
    chain = [conversation.messages async for conversation in _iterate_backwards(run_id, read_run, OrderedDict())]
    return [message for messages in reversed(chain) for message in messages]


async def _iterate_backwards(
    run_id: str, read_run: RunReader, cache: _ConversationCache
) -> AsyncIterator[Conversation]:
    """The conversations of a run and of those before it, the newest first."""
    while run_id:
        if run_id not in cache:
            found = await read_run(run_id)
            if found is None:
                log.info("a conversation is told without its beginning: run %r, which it goes on from, is gone", run_id)
                break
            run, history = found
            if run.state is not RunState.COMPLETED:
                run_id = run.previous_run
                continue
            cache[run_id] = (run.previous_run, rebuild_conversation(run.inputs, run.clock_started_at, history.records))
            while len(cache) > MAX_CACHED_RUNS:
                cache.popitem(last=False)
        else:
            cache.move_to_end(run_id)
        run_id, conversation = cache[run_id]
        yield conversation
