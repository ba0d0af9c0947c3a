"""An agent's memory: tools with which its model stores values for later runs and finds them again.

The agent's code chooses the namespace, never the model: a name, or a function of the run's context, for agents that
serve many users. A change of the memory is committed together with the record of the tool's step, so it happens once,
also in a crash.
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

MAX_RESULTS = 20

MAX_LISTED_KEYS = 200
"""Maximum number of keys in the error for a memory that cannot be searched."""


def validate_namespace(value: object, subject: str) -> MemoryNamespace:
    """The namespace for ``Agent(memory=...)``. Raises ``DefinitionError``."""
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
        row = await _get_store().memories.get(_validate_key(get_namespace(ctx), key), key)
        if row is None:
            return f"Nothing is remembered under {key!r}."
        return _format_value(memories.entry_from_row(row).value)

    @tool(effect="read")
    async def search_memory(ctx: RunContext[Any], words: str, limit: int = 5) -> list[dict[str, str]]:
        """Search what is remembered, the best match first.

        Args:
            words: words to look for; what has any of them is found.
            limit: at most so many.
        """
        namespace, store = get_namespace(ctx), _get_store()
        try:
            found = await memories.search_values(store, namespace, words, max(1, min(limit, MAX_RESULTS)))
        except UsageError as error:  # the store is encrypted
            keys = [entry.key for entry in await store.memories.list(namespace, limit=MAX_LISTED_KEYS)]
            raise ModelRetry(f"The memory cannot be searched ({error}). Recall one of its keys: {keys}.") from None
        return [
            {
                "key": entry.key,
                "text": _format_value(entry.value),
                "remembered": f"{entry.updated_at:%Y-%m-%d %H:%M} UTC",
            }
            for entry in found
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
    """The namespace, if the model's key is valid in it. Raises ``ModelRetry``."""
    try:
        memories.check_location(namespace, key)
    except InputError as error:
        raise ModelRetry(str(error)) from None
    return namespace


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
