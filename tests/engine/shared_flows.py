"""Workflows that many tests of the engine need. Each test defines its own: see ``conftest``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import step, wait_for_signal, workflow
from holdfast.authoring.registry import definitions
from holdfast.authoring.workflow import Workflow
from waits import wait_until


def define_waiting(name: str = "flow", *, signal: str = "go") -> Workflow[[], Any]:
    """A workflow that waits for a signal and returns its value."""

    @workflow(name=name)
    async def waiting() -> Any:
        return await wait_for_signal(signal)

    return waiting


def define_calling(callee: Callable[[], Coroutine[Any, Any, Any]], name: str = "flow") -> Workflow[[], Any]:
    """A workflow that returns the result of one step, or of one child."""

    @workflow(name=name)
    async def calling() -> Any:
        return await callee()

    return calling


def define_cleaning_up(log: list[str]) -> Workflow[[], None]:
    """A workflow that waits until it is cancelled, and then runs a step, which writes to the log."""

    @step
    async def clean_up() -> None:
        log.append("cleaned up")

    @workflow(name="flow")
    async def cleaning_up() -> None:
        try:
            await wait_for_signal("never")
        finally:
            await clean_up()

    return cleaning_up


def deploy(function: Callable[..., Any], name: str = "flow") -> Workflow[..., Any]:
    """Other code for a workflow that is known already, as a new deploy brings it."""
    definitions.pop(name, None)
    return workflow(name=name)(function)


async def wait_for_approval(handle: Any, index: int = 0) -> Any:
    """The open approval of a run, once it is requested."""

    async def requested() -> Any:
        found = await handle.approvals()
        return found[index] if len(found) > index else None

    return await wait_until(requested)
