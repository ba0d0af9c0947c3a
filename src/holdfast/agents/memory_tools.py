"""An agent's memory: tools by which its model keeps things for later runs, and finds them again.

Which namespace they work in is decided by the agent's code, never by the model: a name, or a function of the run's
context, for agents that serve many users. What is kept or forgotten changes together with the record of the tool's
step, so it happens once, whatever crashes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from holdfast.agents.run_context import RunContext
from holdfast.agents.tools import Tool, tool
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import DefinitionError, InputError, ModelRetry, UsageError
from holdfast.services import memories
from holdfast.stores.contract import Store

MemoryNamespace = str | Callable[[RunContext[Any]], str]

MEMORY_GUIDANCE = (
    "You have a memory that outlives this conversation. Search it with `search_memory` before you ask for what you may "
    "have been told before, and keep what will matter later with `remember`: facts, preferences, decisions; one thing "
    "under one key. Correct what has changed by remembering it anew under the same key, and `forget` what is wrong."
)

MAX_TEXT_CHARS = 20_000
"""Characters of one thing to remember."""

MAX_RESULTS = 20

MAX_LISTED_KEYS = 200
"""Keys that a model is told where it cannot search."""


def validate_namespace(value: object, subject: str) -> MemoryNamespace:
    """A namespace as it is given to an agent."""
    if callable(value):
        if len(inspect.signature(value).parameters) != 1:
            raise DefinitionError(f"{subject}: memory is a function of one argument, the RunContext")
        return cast("MemoryNamespace", value)
    try:
        return memories.validate_memory_namespace(value, f"{subject}: memory")
    except InputError as error:
        raise DefinitionError(f"{error}; or a function of the RunContext that returns one") from None


def make_memory_tools(namespace: MemoryNamespace) -> list[Tool]:
    """The tools of an agent with a memory."""

    def get_namespace(ctx: RunContext[Any]) -> str:
        return memories.validate_memory_namespace(namespace(ctx) if callable(namespace) else namespace)

    @tool
    async def remember(ctx: RunContext[Any], key: str, text: str) -> str:
        """Keep something for later conversations, in place of what is under the key now.

        Args:
            key: a short name for it, such as "favourite colour". Use the same key to correct it later.
            text: what to remember, in words that it can be found by.
        """
        if len(text) > MAX_TEXT_CHARS:
            raise ModelRetry(f"That is {len(text):,} characters; remember at most {MAX_TEXT_CHARS:,} under one key.")
        executor, namespace = get_step_executor(), _validate_key(get_namespace(ctx), key)
        executor.memory_change = memories.build_put(namespace, key, text, None, executor.engine.clock.now())
        return f"Remembered under {key!r}."

    @tool(effect="read")
    async def recall(ctx: RunContext[Any], key: str) -> str:
        """Read what is remembered under a key.

        Args:
            key: the key, exactly as it was remembered.
        """
        found = await _get_store().memories.get(_validate_key(get_namespace(ctx), key), key)
        return (
            f"Nothing is remembered under {key!r}."
            if found is None
            else _format_value(memories.entry_from_row(found).value)
        )

    @tool(effect="read")
    async def search_memory(ctx: RunContext[Any], words: str, limit: int = 5) -> list[dict[str, str]]:
        """Search what is remembered, the best match first.

        Args:
            words: words to look for; what has any of them is found.
            limit: at most so many.
        """
        most = max(1, min(limit, MAX_RESULTS))
        namespace, store = get_namespace(ctx), _get_store()
        try:
            found = await memories.search_values(store, namespace, words, most)
        except UsageError as error:  # it is encrypted
            keys = [one.key for one in await store.memories.list(namespace, limit=MAX_LISTED_KEYS)]
            raise ModelRetry(f"The memory cannot be searched ({error}). Recall one of its keys: {keys}.") from None
        return [
            {"key": one.key, "text": _format_value(one.value), "remembered": f"{one.updated_at:%Y-%m-%d %H:%M} UTC"}
            for one in found
        ]

    @tool
    async def forget(ctx: RunContext[Any], key: str) -> str:
        """Remove what is remembered under a key.

        Args:
            key: the key, exactly as it was remembered.
        """
        namespace = _validate_key(get_namespace(ctx), key)
        get_step_executor().memory_change = memories.build_delete(namespace, key)
        return f"Nothing is remembered under {key!r} any more."

    return [remember, recall, search_memory, forget]


def _get_store() -> Store:
    return get_step_executor().engine.store


def _validate_key(namespace: str, key: str) -> str:
    """The namespace, if the model's key can be one there."""
    try:
        memories.check_location(namespace, key)
    except InputError as error:
        raise ModelRetry(str(error)) from None
    return namespace


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
