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

from holdfast.admission.usage import Limits
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.served_versions import served_name
from holdfast.stores.temporal.identifiers import ANNOUNCED_AS, ANNOUNCEMENT
from holdfast.stores.temporal.pointers import look_up, point
from holdfast.stores.temporal.visibility import executions

_SPEC = "spec"
_LOOKS, _PAUSE = 50, 0.1
"""How often is looked for what was announced, and how many seconds lie between: five seconds in all."""


async def announce(client: Client, specs: Sequence[WorkflowSpec], now: float) -> None:
    """Make these known, and wait until everybody can see them."""
    new = {served_name(spec.name, spec.version): spec for spec in specs}
    changed = await asyncio.gather(*(_announce(client, name, spec, now) for name, spec in new.items()))
    if any(changed):
        for _ in range(_LOOKS):
            listed = await announced(client)
            if all(listed.get(name) == spec for name, spec in new.items()):
                return
            await asyncio.sleep(_PAUSE)


async def _announce(client: Client, name: str, spec: WorkflowSpec, now: float) -> bool:
    """Make one known; false: it was."""
    id = ANNOUNCED_AS + name
    found = await look_up(client, id)
    before = None if found is None else spec_in(found.memo)
    if before == spec:
        return False
    first = now if before is None else before.announced_at
    await point(client, ANNOUNCEMENT, id, {_SPEC: json.loads(json.dumps(asdict(replace(spec, announced_at=first))))})
    return True


async def announced(client: Client) -> Mapping[str, WorkflowSpec]:
    """All that was ever announced, by served name."""
    found: dict[str, WorkflowSpec] = {}
    async for told in executions(client, f"WorkflowType = '{ANNOUNCEMENT}' AND ExecutionStatus = 'Running'"):
        spec = spec_in(told.memo)
        if spec is not None:
            found.setdefault(served_name(spec.name, spec.version), spec)
    return found


def spec_in(memo: Mapping[str, Any]) -> WorkflowSpec | None:
    """The announcement in a memo; ``None`` if there is none that this version can read."""
    told = memo.get(_SPEC)
    if not isinstance(told, dict) or "name" not in told:
        return None
    known = {one.name for one in fields(WorkflowSpec)}
    given: dict[str, Any] = {
        str(name): tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in told.items()  # pyright: ignore[reportUnknownVariableType]
        if name in known
    }
    if given.get("budget") is not None:
        given["budget"] = Limits(*given["budget"])
    return WorkflowSpec(**given)
