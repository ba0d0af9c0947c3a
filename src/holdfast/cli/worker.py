"""``holdfast worker``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from socket import socket

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
from holdfast.cli.shared.service import run_service, service_options
from holdfast.processes.readiness import Readiness
from holdfast.telemetry.environment import configure_from_environment
from holdfast.worker.worker_process import serve
from holdfast.worker.workflow_loader import load_workflows


@command(
    "holdfast worker app:etl",
    "holdfast worker agents:researcher",
    "holdfast worker jobs/app.py --queue nightly --concurrency 20",
    "holdfast worker app --processes 4 --probe-address 0.0.0.0:7180",
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
@service_options(
    "--processes",
    help="Start this many worker processes, and replace those that die. Default: this process is the only one.",
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
    process_count: int | None,
    probe_address: tuple[str, int] | None,
    log_level: str | None,
    log_format: str | None,
    url: str | None,
) -> None:
    """Execute runs of the workflows and agents in TARGET.

    TARGET is `module`, `module:workflow`, `path/to/app.py`, or `app.py:workflow`. You can name an agent instead of a
    workflow: it is served with its sub-agents. Without a name, everything that the module defines or imports is served.
    Start as many workers as you like, on the same store; --processes starts several at once, to use several cores.
    SIGTERM or Ctrl-C stops a worker cleanly: what is in flight may finish, the rest is handed over. Retries, failures,
    and takeovers are logged to stderr.

    An agent with a `deps_type` cannot get its deps here: serve it from your own program, with
    `agent.run_worker(deps=...)`.
    """
    set_up = partial(set_up_log, "holdfast.worker", log_level, log_format)

    def execute(readiness: Readiness, _: Sequence[socket]) -> None:
        workflows = load_workflows(target)  # before the log is set up: a module may do so itself
        print_line = set_up()
        configure_from_environment("holdfast-worker")
        run_in_loop(
            serve(
                workflows,
                print_line=print_line,
                url=url,
                queues=queues or None,
                concurrency=concurrency,
                lease_s=lease_s,
                grace_s=grace_s,
                max_blocked_s=max_blocked_s,
                readiness=readiness,
            )
        )

    run_service(
        execute,
        kind="worker",
        url=url,
        process_count=process_count,
        probe_address=probe_address,
        set_up_log=set_up,
        max_silence_s=max_blocked_s,
    )
