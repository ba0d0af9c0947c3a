"""``holdfast worker``."""

from __future__ import annotations

import click

from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.options import (
    command,
    count_option,
    duration_option,
    log_options,
    set_up_log,
    store_only_option,
)
from holdfast.worker.worker_process import serve
from holdfast.worker.workflow_loader import load_workflows


@command(
    "holdfast worker app:etl",
    "holdfast worker agents:researcher",
    "holdfast worker jobs/app.py --queue nightly --concurrency 20",
)
@click.argument("target")
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Serve only this queue; may be repeated.")
@count_option("--concurrency", default=1000, help="Maximum number of runs held at once.")
@duration_option(
    "--lease",
    "lease_s",
    min_s=1,
    default="10 s",
    help="How long this worker may be silent before it counts as dead, where nothing detects it sooner.",
)
@duration_option(
    "--grace",
    "grace_s",
    min_s=0,
    default="30 s",
    help="How long steps in flight may take to finish when the worker stops.",
)
@duration_option(
    "--max-blocked",
    "max_blocked_s",
    min_s=1,
    default="60 s",
    help="How long a step may block the event loop before this worker exits and others take over.",
)
@log_options
@store_only_option(
    "give the URL that the server was given. A process that can reach only the server listens on an address: see "
    "`Client.listen`."
)
def worker(
    target: str,
    queues: tuple[str, ...],
    concurrency: int,
    lease_s: float,
    grace_s: float,
    max_blocked_s: float,
    log_level: str | None,
    log_format: str | None,
    url: str | None,
) -> None:
    """Execute runs of the workflows and agents in TARGET.

    TARGET is `module`, `module:workflow`, `path/to/app.py`, or `app.py:workflow`. You can name an agent instead of a
    workflow: it is served with its sub-agents. Without a name, everything that the module defines or imports is served.
    Start as many workers as you like, on the same store. SIGTERM or Ctrl-C stops a worker cleanly: what is in
    flight may finish, the rest is handed over. Retries, failures, and takeovers are logged to stderr.

    An agent with a `deps_type` cannot get its deps here: serve it from your own program, with
    `agent.run_worker(deps=...)`.
    """
    workflows = load_workflows(target)
    run_in_loop(
        serve(
            workflows,
            print_line=set_up_log("holdfast.worker", log_level, log_format),
            url=url,
            queues=queues or None,
            concurrency=concurrency,
            lease_s=lease_s,
            grace_s=grace_s,
            max_blocked_s=max_blocked_s,
        )
    )
