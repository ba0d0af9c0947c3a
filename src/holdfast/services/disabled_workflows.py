"""Disabling and enabling workflows.

A name that nothing in the store has is most likely mistyped. It is refused, because otherwise the caller would believe
that a workflow has stopped while it still runs.
"""

from __future__ import annotations

from holdfast.errors import UnknownWorkflow
from holdfast.services.approvals import get_os_user
from holdfast.services.lookup import suggest_name
from holdfast.stores.contract import Store


async def disable_workflow(
    store: Store, workflow: str, *, reason: str = "", by: str | None = None, allow_unknown: bool = False
) -> bool:
    """Disable a workflow. False when it was disabled before. Raises ``UnknownWorkflow``.

    Args:
        store: where.
        workflow: its name.
        reason: why, for people to read.
        by: who does it; default: the user of the operating system.
        allow_unknown: accept a name that no worker has announced yet.
    """
    if not allow_unknown:
        await _check_known(store, workflow)
    return await store.disabled_workflows.disable(workflow, get_os_user() if by is None else by, reason)


async def enable_workflow(store: Store, workflow: str) -> bool:
    """Enable a workflow. False when it was not disabled. Raises ``UnknownWorkflow``."""
    await _check_known(store, workflow)
    return await store.disabled_workflows.enable(workflow)


async def _check_known(store: Store, workflow: str) -> None:
    """Raise ``UnknownWorkflow`` unless the workflow was announced, is disabled, or has runs."""
    known = {spec.name for spec in (await store.get_workflow_specs()).values()}
    if workflow in known or workflow in await store.disabled_workflows.get_all():
        return
    known |= {name for name, _ in await store.count_runs(max_ended=1)}
    if workflow not in known:
        raise UnknownWorkflow(
            f"there is no workflow {workflow!r} in {store.url}, so nothing changed: "
            f"{suggest_name(workflow, sorted(known))}"
        )
