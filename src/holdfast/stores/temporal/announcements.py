"""What workers announce of their workflows, so that a client can start them without their code.

Each served name has a pointer (see ``pointers``) with what was announced last. The list of them all comes from
Temporal's visibility store, which learns of it a moment later: so whoever announces waits until it is listed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from temporalio.client import Client

from holdfast.admission.usage import BudgetLimits
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.temporal.identifiers import ANNOUNCEMENT_ID_PREFIX, ANNOUNCEMENT_TYPE
from holdfast.stores.temporal.pointers import read_pointer, set_pointer
from holdfast.stores.temporal.visibility import list_executions

_SPEC_KEY = "spec"
_MAX_POLLS, _POLL_INTERVAL_S = 50, 0.1
"""How often is looked for what was announced, and how many seconds lie between: five seconds in all."""


async def announce(client: Client, specs: Sequence[WorkflowSpec], now: float) -> None:
    """Make these known, and wait until everybody can see them."""
    new = {make_served_name(spec.name, spec.version): spec for spec in specs}
    changed = await asyncio.gather(*(_announce_one(client, name, spec, now) for name, spec in new.items()))
    if any(changed):
        for _ in range(_MAX_POLLS):
            listed = await list_announced(client)
            if all(listed.get(name) == spec for name, spec in new.items()):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)


async def _announce_one(client: Client, name: str, spec: WorkflowSpec, now: float) -> bool:
    """Make one known; false: it was."""
    id = ANNOUNCEMENT_ID_PREFIX + name
    found = await read_pointer(client, id)
    before = None if found is None else spec_from_memo(found.memo)
    if before == spec:
        return False
    first = now if before is None else before.announced_at
    await set_pointer(client, ANNOUNCEMENT_TYPE, id, {_SPEC_KEY: _spec_to_memo(replace(spec, announced_at=first))})
    return True


async def list_announced(client: Client) -> Mapping[str, WorkflowSpec]:
    """All that was ever announced, by served name."""
    found: dict[str, WorkflowSpec] = {}
    async for told in list_executions(client, f"WorkflowType = '{ANNOUNCEMENT_TYPE}' AND ExecutionStatus = 'Running'"):
        spec = spec_from_memo(told.memo)
        if spec is not None:
            found.setdefault(make_served_name(spec.name, spec.version), spec)
    return found


def _spec_to_memo(spec: WorkflowSpec) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(spec)))


def spec_from_memo(memo: Mapping[str, Any]) -> WorkflowSpec | None:
    """The announcement in a memo; ``None`` if there is none that this version can read."""
    told = memo.get(_SPEC_KEY)
    if not isinstance(told, dict) or "name" not in told:
        return None
    known = {one.name for one in fields(WorkflowSpec)}
    given: dict[str, Any] = {
        str(key): tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
        for key, value in told.items()  # pyright: ignore[reportUnknownVariableType]
        if key in known
    }
    if given.get("budget") is not None:
        given["budget"] = BudgetLimits(*given["budget"])
    return WorkflowSpec(**given)
