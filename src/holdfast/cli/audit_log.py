"""``holdfast audit``: who asked a server for what."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import format_local_time, print_json, to_one_line
from holdfast.cli.store_access import open_client
from holdfast.cli.tables import print_table
from holdfast.services.audit_log import AuditEntry


def show_audit_log(url: str | None, limit: int, *, as_json: bool) -> None:
    """Print the newest entries."""
    found = run_in_loop(_fetch_entries(url, limit))
    if as_json:
        print_json([{**asdict(one), "at": one.at.isoformat()} for one in found])
        return
    if not found:
        print("nobody has asked a server to change anything in this namespace yet")
        return
    head = ("when", "outcome", "action", "target", "key", "from")
    rows = [
        (
            format_local_time(one.at.timestamp()),
            one.outcome,
            one.action,
            to_one_line(one.target, 60),
            to_one_line(f"{one.key_name} ({one.key_id})" if one.key_id else "none was needed"),
            to_one_line(one.remote_address),
        )
        for one in found
    ]
    print_table(head, rows)


async def _fetch_entries(url: str | None, limit: int) -> list[AuditEntry]:
    async with open_client(url) as client:
        return await client.audit(limit)
