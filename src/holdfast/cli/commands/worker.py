"""Commands that execute runs: the demo, and workers."""

from __future__ import annotations

import sys

import click

from holdfast.cli.options import format_example, log_options, store_only_option


@click.command(
    epilog=format_example("holdfast demo", "holdfast demo --open", "holdfast demo --model openai:gpt-4o-mini")
)
@click.option("--fast", is_flag=True, help="The model thinks less: about three seconds in all.")
@click.option("--model", metavar="PROVIDER:NAME", help="Ask a real model, which needs its package and a key.")
@click.option(
    "--open", "in_browser", is_flag=True, help="Show it on the dashboard in a browser, slowly enough to watch."
)
def demo(fast: bool, model: str | None, in_browser: bool) -> None:
    """See an agent survive kill -9.

    Starts two worker processes and an agent of 12 turns, kills the worker that executes it in the middle of turn 9, and
    counts afterwards, outside the database, how often the model was asked and each tool was called: what was not paid
    for twice. Offline, with a model that answers by a script; takes a few seconds.
    """
    click.echo("Loading Holdfast …")  # takes seconds where nothing is compiled yet
    from holdfast.cli.demo import run_demo

    sys.exit(run_demo(fast=fast, model=model, in_browser=in_browser))


@click.command(
    epilog=format_example(
        "holdfast worker app:etl",
        "holdfast worker agents:researcher",
        "holdfast worker jobs/app.py --queue nightly --concurrency 20",
    )
)
@click.argument("target")
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Serve only this queue; may be repeated.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N", help="Runs held at once."
)
@click.option(
    "--lease",
    type=click.FloatRange(min=1.0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds of silence after which this worker counts as dead, where nothing quicker tells.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0.0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds that steps in flight get to end when the worker is told to stop.",
)
@click.option(
    "--max-blocked",
    "max_blocked_s",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for which a step may block the event loop before this worker ends, and others take over.",
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
    lease: float,
    grace: float,
    max_blocked_s: float,
    log_level: str | None,
    log_format: str | None,
    url: str | None,
) -> None:
    """Execute runs of the workflows and agents in TARGET.

    TARGET is `module`, `module:workflow`, `path/to/app.py` or `app.py:workflow`, where an agent may stand for the
    workflow: it is served with its sub-agents. Without a name, all that the module defines or imports are served.
    Start as many workers as you like, on the same store. SIGTERM or Ctrl-C stops a worker in good order: what is in
    flight may end, the rest is handed over. Retries, failures and takeovers are logged to stderr.

    An agent with a `deps_type` cannot be handed its deps here: serve it from a program of yours, with
    `agent.run_worker(deps=...)`.
    """
    from holdfast.cli.worker import run_worker

    run_worker(
        target,
        url=url,
        queues=queues or None,
        concurrency=concurrency,
        lease=lease,
        grace=grace,
        max_blocked_s=max_blocked_s,
        log_level=log_level,
        log_format=log_format,
    )
