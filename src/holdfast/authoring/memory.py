"""``memory``: values that outlive runs.

In workflow code each call is a recorded step: what was read is the same on every replay, and what is put or deleted
changes in the same transaction as the step's record, so it happens once, whatever crashes. In a step, in a tool and
outside of runs a call goes to the store at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, overload

from holdfast.authoring.runtime import current_runtime
from holdfast.authoring.step import invoke
from holdfast.client.store_resources import StoreMemory
from holdfast.codec import codec_for
from holdfast.core.execution import Execution, get_current_execution
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.step_context import find_step_executor, get_step_executor
from holdfast.services import memories
from holdfast.services.memories import AsyncMemory, MemoryEntry
from holdfast.stores.contract import Store
from holdfast.stores.memories import MemoryChange

T = TypeVar("T")

_MISSING = object()


class _CurrentStoreAccess:
    """The store of the step that calls, or of this loop's runtime."""

    async def store(self) -> Store:
        executor = find_step_executor()
        if executor is not None:
            return executor.engine.store
        return await (await current_runtime()).store()

    async def change_memory(self, change: MemoryChange) -> None:
        executor = find_step_executor()
        if executor is not None:
            await executor.engine.writer.perform(change)
        else:
            await (await current_runtime()).change_memory(change)


class WorkflowMemory(AsyncMemory):
    """Memory as the calling code may use it: recorded in workflow code, at once anywhere else."""

    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        """Keep a value under a key, in place of the one that is there.

        Args:
            namespace: who or what it belongs to, such as ``"user/42"``. Namespaces know nothing of each other.
            key: its name there.
            value: what can be recorded: plain data, a dataclass, a pydantic model.
            text: the words that ``search`` finds it by; those of the value unless given.
        """
        execution = get_current_execution()
        if execution is None:
            await super().put(namespace, key, value, text=text)
            return
        await _invoke_as_step(execution, "memory.put", partial(_put, namespace, key, value, text), None, namespace, key)

    @overload
    async def get(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, or ``default``. With a ``type``, it is checked against it, and comes back as one."""
        execution = get_current_execution()
        if execution is None:
            return await super().get(namespace, key, default, type=type)
        read = partial(_get, namespace, key, type)
        found = await _invoke_as_step(execution, "memory.get", read, list[type], namespace, key)
        return found[0] if found else default

    async def search(self, namespace: str, query: str, *, limit: int = 10) -> list[MemoryEntry]:
        """Values that have some of these words in them (or in their key), the best match first."""
        execution = get_current_execution()
        if execution is None:
            return await super().search(namespace, query, limit=limit)
        read = partial(_search, namespace, query, limit)
        return await _invoke_as_step(execution, "memory.search", read, list[MemoryEntry], namespace, query)

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[MemoryEntry]:
        """Values in the order of their keys, those behind the key ``after``."""
        execution = get_current_execution()
        if execution is None:
            return await super().list(namespace, after=after, limit=limit)
        read = partial(_list, namespace, after, limit)
        return await _invoke_as_step(execution, "memory.list", read, list[MemoryEntry], namespace, after)

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value; harmless if there is none."""
        execution = get_current_execution()
        if execution is None:
            await super().delete(namespace, key)
            return
        await _invoke_as_step(execution, "memory.delete", partial(_delete, namespace, key), None, namespace, key)


memory = WorkflowMemory(StoreMemory(_CurrentStoreAccess()))
"""The one that users import."""


async def _invoke_as_step(
    execution: Execution, name: str, function: Callable[..., Coroutine[Any, Any, Any]], output: Any, *preview_args: str
) -> Any:
    async def carry_out(namespace: str, target: str) -> Any:
        return await function()

    step = StepDefinition(name, carry_out, True, codec_for(output), ("namespace", "what"), {})
    return await invoke(execution, step, preview_args, {})


# What the steps do


async def _put(namespace: str, key: str, value: Any, text: str | None) -> None:
    executor = get_step_executor()
    now, max_value = executor.engine.clock.now(), executor.engine.max_value
    executor.memory_change = memories.build_put(namespace, key, value, text, now, max_value)


async def _get(namespace: str, key: str, type: Any) -> list[Any]:
    """A list of one, or an empty one: a default need not be recordable."""
    found = await memories.read_value(get_step_executor().engine.store, namespace, key, _MISSING, type)
    return [] if found is _MISSING else [found]


async def _search(namespace: str, query: str, limit: int) -> list[MemoryEntry]:
    return await memories.search_values(get_step_executor().engine.store, namespace, query, limit)


async def _list(namespace: str, after: str, limit: int) -> list[MemoryEntry]:
    return await memories.list_values(get_step_executor().engine.store, namespace, after, limit)


async def _delete(namespace: str, key: str) -> None:
    get_step_executor().memory_change = memories.build_delete(namespace, key)
