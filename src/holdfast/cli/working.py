"""``holdfast worker``."""

from __future__ import annotations

import logging
from collections.abc import Collection

import click

from holdfast.cli.event_loop import in_loop
from holdfast.worker.loading import load
from holdfast.worker.serve import serve


def work(
    target: str, *, url: str | None, queues: Collection[str] | None, concurrency: int, lease: float, grace: float
) -> None:
    """Load the target's workflows and serve them until told to stop."""
    workflows = load(target)
    # Does nothing where the user's module has set up logging itself.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if logging.getLogger("holdfast").level == logging.NOTSET:
        logging.getLogger("holdfast").setLevel(logging.INFO)
    in_loop(serve(workflows, say=_say, url=url, queues=queues, concurrency=concurrency, lease=lease, grace=grace))


def _say(line: str) -> None:
    click.echo(line, err=True)  # with the log: a worker's stdout belongs to the steps that print
