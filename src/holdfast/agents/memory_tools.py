"""An agent's memory: tools by which its model keeps things for later runs, and finds them again.

Which namespace they work in is decided by the agent's code, never by the model: a name, or a function of the run's
context, for agents that serve many users. What is kept or forgotten changes together with the record of the tool's
step, so it happens once, whatever crashes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from holdfast.agents.tools import RunContext, Tool, tool
from holdfast.engine import step_context
from holdfast.errors import DefinitionError, InputError, ModelRetry, UsageError
from holdfast.services import memories
from holdfast.stores.contract import Store

Namespace = str | Callable[[RunContext[Any]], str]

GUIDANCE = (
    "You have a memory that outlives this conversation. Search it with `search_memory` before you ask for what you may "
    "have been told before, and keep what will matter later with `remember`: facts, preferences, decisions; one thing "
    "under one key. Correct what has changed by remembering it anew under the same key, and `forget` what is wrong."
)

LONGEST = 20_000
"""Characters of one thing to remember."""

MOST_FOUND = 20

MOST_NAMED = 200
"""Keys that a model is told where it cannot search."""


def check_namespace(given: object, where: str) -> Namespace:
    """A namespace as it is given to an agent."""
    if callable(given):
        if len(inspect.signature(given).parameters) != 1:
            raise DefinitionError(f"{where}: memory is a function of one argument, the RunContext")
        return cast("Namespace", given)
    try:
        return memories.check_namespace(given, f"{where}: memory")
    except InputError as error:
        raise DefinitionError(f"{error}; or a function of the RunContext that returns one") from None


def memory_tools(namespace: Namespace) -> list[Tool]:
    """The tools of an agent with a memory."""

    def place(ctx: RunContext[Any]) -> str:
        return memories.check_namespace(namespace(ctx) if callable(namespace) else namespace)

    @tool
    async def remember(ctx: RunContext[Any], key: str, text: str) -> str:
        """Keep something for later conversations, in place of what is under the key now.

        Args:
            key: a short name for it, such as "favourite colour". Use the same key to correct it later.
            text: what to remember, in words that it can be found by.
        """
        if len(text) > LONGEST:
            raise ModelRetry(f"That is {len(text):,} characters; remember at most {LONGEST:,} under one key.")
        step = step_context.current.get()
        namespace = _checked(place(ctx), key)
        step.remember(memories.to_put(namespace, key, text, None, step.engine.clock.now()))
        return f"Remembered under {key!r}."

    @tool(effect="read")
    async def recall(ctx: RunContext[Any], key: str) -> str:
        """Read what is remembered under a key.

        Args:
            key: the key, exactly as it was remembered.
        """
        found = await _store().get_memory(_checked(place(ctx), key), key)
        return f"Nothing is remembered under {key!r}." if found is None else _told(memories.remembered(found).value)

    @tool(effect="read")
    async def search_memory(ctx: RunContext[Any], words: str, limit: int = 5) -> list[dict[str, str]]:
        """Search what is remembered, the best match first.

        Args:
            words: words to look for; what has any of them is found.
            limit: at most so many.
        """
        most = max(1, min(limit, MOST_FOUND))
        namespace, store = place(ctx), _store()
        try:
            found = await memories.search(store, namespace, words, most)
        except UsageError as error:  # it is encrypted
            keys = [one.key for one in await store.list_memories(namespace, limit=MOST_NAMED)]
            raise ModelRetry(f"The memory cannot be searched ({error}). Recall one of its keys: {keys}.") from None
        return [
            {"key": one.key, "text": _told(one.value), "remembered": f"{one.updated_at:%Y-%m-%d %H:%M} UTC"}
            for one in found
        ]

    @tool
    async def forget(ctx: RunContext[Any], key: str) -> str:
        """Remove what is remembered under a key.

        Args:
            key: the key, exactly as it was remembered.
        """
        step_context.current.get().remember(memories.to_delete(_checked(place(ctx), key), key))
        return f"Nothing is remembered under {key!r} any more."

    return [remember, recall, search_memory, forget]


def _store() -> Store:
    return step_context.current.get().engine.store


def _checked(namespace: str, key: str) -> str:
    """The namespace, if the model's key can be one there."""
    try:
        memories.check_place(namespace, key)
    except InputError as error:
        raise ModelRetry(str(error)) from None
    return namespace


def _told(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
