"""``holdfast demo``: the run of an agent survives ``kill -9``."""

from __future__ import annotations

import sys

import click

from holdfast.cli.shared.options import command


@command("holdfast demo", "holdfast demo --open", "holdfast demo --model openai:gpt-4o-mini")
@click.option("--fast", is_flag=True, help="The model thinks less: about three seconds in all.")
@click.option("--model", metavar="PROVIDER:NAME", help="Use a real model, which needs its package and a key.")
@click.option("--open", "in_browser", is_flag=True, help="Show it in the dashboard in a browser, slow enough to watch.")
def demo(fast: bool, model: str | None, in_browser: bool) -> None:
    """See an agent survive kill -9.

    Starts two worker processes and an agent of 12 turns, kills the worker that executes it in the middle of turn 9, and
    then counts, outside the database, how often the model and each tool were called: what was not paid for twice. It
    works offline, with a scripted model, and takes a few seconds.
    """
    click.echo("Loading Holdfast …")  # takes seconds where nothing is compiled yet
    from holdfast.cli.demo.scenario import run_demo

    sys.exit(run_demo(fast=fast, model=model, in_browser=in_browser))
