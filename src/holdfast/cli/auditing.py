"""``holdfast audit``: who asked a server for what."""

from __future__ import annotations

import asyncio

from holdfast.cli.opening import existing_store
from holdfast.cli.tables import print_table
from holdfast.cli.wording import clock_time, echo_json, iso, one_line
from holdfast.stores.auditing import Audit

_AT_ONCE = 1000


def show_audit(url: str | None, limit: int, *, as_json: bool) -> None:
    """Print the newest entries."""
    found = asyncio.run(_read(url, limit))
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    if not found:
        print("nobody has asked a server to change anything in this namespace yet")
        return
    head = ("when", "outcome", "action", "target", "key", "from")
    rows = [
        (
            clock_time(one.what.at),
            one.what.outcome,
            one.what.action,
            one_line(one.what.target, 60),
            one_line(f"{one.what.name} ({one.what.who})" if one.what.who else "none was needed"),
            one_line(one.what.remote),
        )
        for one in found
    ]
    print_table(head, rows)


async def _read(url: str | None, limit: int) -> list[Audit]:
    found: list[Audit] = []
    async with existing_store(url) as store:
        while len(found) < limit:
            before = found[-1].id if found else None
            page = await store.audit(before=before, limit=min(_AT_ONCE, limit - len(found)))
            found += page
            if not page:
                break
    return found


def _as_json(one: Audit) -> dict[str, str | int | None]:
    what = one.what
    return {
        "id": one.id,
        "at": iso(what.at),
        "key": what.who or None,
        "name": what.name,
        "action": what.action,
        "target": what.target,
        "outcome": what.outcome,
        "remote": what.remote,
    }
