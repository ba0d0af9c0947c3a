"""``holdfast audit``."""

from __future__ import annotations

from holdfast.cli.shared.formatting import format_local_time, to_one_line
from holdfast.cli.shared.options import command, json_option, limit_option, url_option
from holdfast.cli.shared.store_access import run_client
from holdfast.cli.shared.tables import print_listing


@command("holdfast audit --limit 20", "holdfast audit --namespace acme --json")
@limit_option
@json_option("A JSON array of entries, each as in `GET /v1/audit`.")
@url_option
def audit(limit: int, as_json: bool, url: str | None) -> None:
    """Show who asked a server to change what, newest first, including refused requests.

    Actions are the names of operations in `GET /v1/openapi.json`. The log does not contain what is done on this command
    line, or by programs that open the store themselves.
    """
    found = run_client(url, lambda client: client.audit(limit))
    header = ("when", "outcome", "action", "target", "key", "from")
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
    empty_text = "no changes were requested through a server in this namespace yet"
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text)
