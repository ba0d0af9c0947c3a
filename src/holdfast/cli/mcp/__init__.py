"""``holdfast mcp``: runs as tools of an assistant, over the Model Context Protocol on stdin and stdout.

The assistant starts the command as a subprocess. ``tools`` has what it can do, each tool a method over a ``Client``, so
it works alike on a store and on a server. ``results`` has the form of the results, and ``excerpts`` bounds their size.
``server`` speaks the protocol. It alone imports the package ``mcp``, and only when the command runs.
"""

from __future__ import annotations

from importlib.util import find_spec

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.options import command, log_options, set_up_log, url_option
from holdfast.errors import UsageError


@command(
    "holdfast mcp --url sqlite:////var/lib/app/runs.db",
    "holdfast mcp --url https://holdfast.example --as ann",
    "holdfast mcp --read-only",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that read.")
@click.option(
    "--as",
    "actor",
    metavar="WHO",
    help="Who answers approvals. Default: the user of this machine, or the name of the API key.",
)
@log_options
@url_option
def mcp(read_only: bool, actor: str | None, log_level: str | None, log_format: str | None, url: str | None) -> None:
    """Let an assistant list, inspect, approve, retry, and fork runs, as an MCP server on stdin and stdout.

    The assistant starts this command: name it in its configuration. On a store, the assistant may use all tools; over a
    server, those that the scopes of HOLDFAST_API_KEY allow. The command ends when stdin is closed, or with Ctrl-C.
    """
    if find_spec("mcp") is None:
        raise UsageError(
            "`holdfast mcp` needs the package `mcp`, which is not installed here: pip install 'holdfast-agents[mcp]'"
        )
    from holdfast.cli.mcp.server import serve_stdio

    print_line = set_up_log("holdfast.mcp", log_level, log_format)
    try:
        run_in_loop(serve_stdio(url, read_only=read_only, actor=actor, print_line=print_line))
    except KeyboardInterrupt:
        pass  # Ctrl-C ends it, like the end of stdin
