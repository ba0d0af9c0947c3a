"""``holdfast audit``: who asked a server for what."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import clock_time, echo_json, one_line
from holdfast.cli.store_access import reached
from holdfast.cli.tables import print_table
from holdfast.services.audit_log import AuditEntry


def show_audit(url: str | None, limit: int, *, as_json: bool) -> None:
    """Print the newest entries."""
    found = in_loop(_read(url, limit))
    if as_json:
        echo_json([{**asdict(one), "at": one.at.isoformat()} for one in found])
        return
    if not found:
        print("nobody has asked a server to change anything in this namespace yet")
        return
    head = ("when", "outcome", "action", "target", "key", "from")
    rows = [
        (
            clock_time(one.at.timestamp()),
            one.outcome,
            one.action,
            one_line(one.target, 60),
            one_line(f"{one.name} ({one.key})" if one.key else "none was needed"),
            one_line(one.remote),
        )
        for one in found
    ]
    print_table(head, rows)


async def _read(url: str | None, limit: int) -> list[AuditEntry]:
    async with reached(url) as client:
        return await client.audit(limit)
