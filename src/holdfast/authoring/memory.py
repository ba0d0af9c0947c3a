"""``memory``: values that outlive runs.

In workflow code each call is a recorded step: a value that was read is the same on every replay, and a put or delete is
committed in the same transaction as the step's record, so it happens once, whatever crashes. In a step, in a tool, and
outside of runs, a call goes to the store at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, overload

from typing_extensions import override

from holdfast.authoring.runtime import Runtime, StepStoreProvider
from holdfast.authoring.step import invoke
from holdfast.client.resources import ClientMemory
from holdfast.codec import codec_for
from holdfast.core.execution import Execution, get_current_execution
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.step_context import find_step_executor, get_step_executor
from holdfast.services import memories
from holdfast.services.memories import AsyncMemory, MemoryEntry
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.contract import Store
from holdfast.stores.memories import MemoryChange
from holdfast.sync_methods import run_sync

T = TypeVar("T")

_MISSING = object()


class _CurrentStoreProvider(StoreProvider):
    """The store of the calling step, or of this loop's runtime."""

    async def _find(self) -> StoreProvider:
        executor = find_step_executor()
        return (await Runtime.current()).store_provider if executor is None else StepStoreProvider(executor.engine)

    @override
    async def store(self) -> Store:
        return await (await self._find()).store()

    @override
    async def change_memory(self, change: MemoryChange) -> None:
        await (await self._find()).change_memory(change)


_outside_runs = ClientMemory(_CurrentStoreProvider(), run_sync)


class WorkflowMemory(AsyncMemory):
    """Memory for the calling code: recorded in workflow code, immediate anywhere else."""

    @override
    async def put(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> None:
        """Store a value under a key, replacing any earlier one.

        Args:
            namespace: who or what it belongs to, such as ``"user/42"``. Namespaces are independent of each other.
            key: its name in the namespace.
            value: anything that can be recorded: plain data, a dataclass, a pydantic model.
            text: the words that ``search`` finds it by (default: the words of the value).
        """
        if (execution := get_current_execution()) is None:
            return await _outside_runs.put(namespace, key, value, text=text)
        put = partial(_put, namespace, key, value, text)
        return await _invoke_as_step(execution, "memory.put", put, None, namespace, key)

    @overload
    async def get(self, namespace: str, key: str, default: Any = None) -> Any: ...
    @overload
    async def get(self, namespace: str, key: str, default: T | None = None, *, type: type[T]) -> T | None: ...
    async def get(self, namespace: str, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, or ``default``. With a ``type``, the value is validated and returned as that type."""
        if (execution := get_current_execution()) is None:
            return await _outside_runs.get(namespace, key, default, type=type)
        read = partial(_get, namespace, key, type)
        found = await _invoke_as_step(execution, "memory.get", read, list[type], namespace, key)
        return found[0] if found else default

    async def search(self, namespace: str, query: str, *, limit: int = 10) -> list[MemoryEntry]:
        """Values that contain some of these words (or have them in their key), the best match first."""
        if (execution := get_current_execution()) is None:
            return await _outside_runs.search(namespace, query, limit=limit)
        read = partial(_search, namespace, query, limit)
        return await _invoke_as_step(execution, "memory.search", read, list[MemoryEntry], namespace, query)

    async def list(self, namespace: str, *, after: str = "", limit: int = 100) -> list[MemoryEntry]:
        """Values in the order of their keys, starting after the key ``after``."""
        if (execution := get_current_execution()) is None:
            return await _outside_runs.list(namespace, after=after, limit=limit)
        read = partial(_list, namespace, after, limit)
        return await _invoke_as_step(execution, "memory.list", read, list[MemoryEntry], namespace, after)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; harmless if there is none."""
        if (execution := get_current_execution()) is None:
            return await _outside_runs.delete(namespace, key)
        return await _invoke_as_step(execution, "memory.delete", partial(_delete, namespace, key), None, namespace, key)


memory = WorkflowMemory()
"""The one that users import."""


async def _invoke_as_step(
    execution: Execution, name: str, function: Callable[..., Coroutine[Any, Any, Any]], output: Any, *preview_args: str
) -> Any:
    async def call(namespace: str, target: str) -> Any:
        return await function()

    step = StepDefinition(name, call, True, codec_for(output), ("namespace", "what"), {})
    return await invoke(execution, step, preview_args, {})


# The functions of the steps


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
