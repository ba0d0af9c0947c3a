"""Conversations over several runs.

Each run of a session has a link to the previous one (``Run.previous_run``). Earlier messages are not recorded again:
the process that calls the model rebuilds them from the journals and caches them for the next call. Only completed runs
count, and these never change. A run continues the context of the previous one: if that was compacted, the messages
before the summary are not read.
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
"""Maximum number of runs in the cache of each engine."""

RunReader = Callable[[str], Awaitable["tuple[Run, History] | None"]]
"""Reads a run's row and journal."""

_ConversationCache = OrderedDict[str, tuple[str, Conversation]]
"""By run id: the previous run, and the conversation of this one."""

_cache_by_engine: weakref.WeakKeyDictionary[Any, _ConversationCache] = weakref.WeakKeyDictionary()
"""By engine, because two stores may have runs with the same id."""


async def read_context(run_id: str) -> list[ModelMessage]:
    """The context of a run and of the runs before it, for the step that calls the model."""
    executor = get_step_executor()
    chain: list[Conversation] = []
    async for conversation in _iterate_backwards(
        run_id, executor.read_run, _cache_by_engine.setdefault(executor.engine, OrderedDict())
    ):
        chain.append(conversation)
        if conversation.earlier_count == 0:
            break  # its context has no messages of earlier runs
    context: list[ModelMessage] = []
    for conversation in reversed(chain):
        context = conversation.build_context(context)
    return context


async def read_messages(run_id: str, read_run: RunReader) -> list[ModelMessage]:
    """All messages of a run and of the runs before it."""
    chain = [conversation.messages async for conversation in _iterate_backwards(run_id, read_run, OrderedDict())]
    return [message for messages in reversed(chain) for message in messages]


async def _iterate_backwards(
    run_id: str, read_run: RunReader, cache: _ConversationCache
) -> AsyncIterator[Conversation]:
    """The conversations of a run and of the runs before it, newest first."""
    while run_id:
        if run_id not in cache:
            found = await read_run(run_id)
            if found is None:
                log.info("a conversation lacks its beginning: the earlier run %r no longer exists", run_id)
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
