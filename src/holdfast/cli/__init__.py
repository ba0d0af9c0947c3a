"""The ``holdfast`` command: what it offers, in one place.

Each command is declared here, with its help, and carried out by the module that its function imports: so ``--help`` is
quick, and a command loads only what it needs. Errors of Holdfast are shown as one message, without a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from holdfast import __version__
from holdfast.errors import HoldfastError

F = TypeVar("F", bound=Callable[..., Any])

_STATES = ("pending", "running", "waiting", "completed", "failed", "cancelled", "dead")


class _Group(click.Group):
    """Shows errors of Holdfast in red on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a narrow terminal encoding is no reason to fail
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            _tell_error(error)
            ctx.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which one meets them


def _tell_error(error: HoldfastError) -> None:
    from holdfast.cli.wording import printable

    colour = False if os.environ.get("NO_COLOR") else None
    click.secho(f"error: {printable(str(error))}", fg="red", err=True, color=colour)


def _url(command: F) -> F:
    option = click.option("--url", metavar="URL", help="The store; HOLDFAST_URL or ./.holdfast/runs.db unless given.")
    return option(command)


def _example(*lines: str) -> str:
    """An example for the end of a help text, as it stands."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nFirst time here?  holdfast demo",
)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Holdfast makes agent runs durable: every step's outcome is recorded before the run goes on, and another process
    takes over where a dead one stopped.
    """


@main.command(epilog=_example("holdfast demo"))
@click.option("--fast", is_flag=True, help="Shorter steps: about two seconds in all.")
def demo(fast: bool) -> None:
    """See a run survive kill -9.

    Starts two worker processes and a run of 12 steps, kills the worker that executes it in the middle of step 9, and
    counts afterwards, outside the database, how often each step ran. Offline; takes a few seconds.
    """
    from holdfast.cli.demo import run_demo

    sys.exit(run_demo(fast=fast))


@main.command(
    epilog=_example("holdfast worker app:etl", "holdfast worker jobs/app.py --queue nightly --concurrency 20")
)
@click.argument("target")
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Serve only this queue; may be repeated.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1000, show_default=True, help="Runs held at once.")
@click.option(
    "--lease",
    type=click.FloatRange(min=1.0),
    default=10.0,
    show_default=True,
    help="Seconds of silence after which this worker counts as dead, where nothing quicker tells.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0.0),
    default=30.0,
    show_default=True,
    help="Seconds that steps in flight get to end when the worker is told to stop.",
)
@_url
def worker(target: str, queues: tuple[str, ...], concurrency: int, lease: float, grace: float, url: str | None) -> None:
    """Execute runs of the workflows in TARGET.

    TARGET is `module`, `module:workflow`, `path/to/app.py` or `app.py:workflow`; without a workflow's name, all that
    the module defines or imports are served. Start as many workers as you like, on the same store. SIGTERM or Ctrl-C
    stops a worker in good order: what is in flight may end, the rest is handed over.
    """
    from holdfast.cli.working import work

    work(target, url=url, queues=queues or None, concurrency=concurrency, lease=lease, grace=grace)


@main.command(epilog=_example("holdfast runs --state failed --state dead", "holdfast runs --workflow etl --json"))
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only runs in this state; may be repeated."
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--tag", metavar="T", help="Only runs with this tag.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, for programs.")
@_url
def runs(
    states: Sequence[str], workflow: str | None, tag: str | None, limit: int, as_json: bool, url: str | None
) -> None:
    """List runs, newest first."""
    from holdfast.cli.runs import show_runs

    show_runs(url, states=states, workflow=workflow, tag=tag, limit=limit, as_json=as_json)


@main.command(epilog=_example("holdfast show etl-acme", "holdfast show etl-acme --json"))
@click.argument("run_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with everything, for programs.")
@_url
def show(run_id: str, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a run.

    Its journal, who executed what and when, what was replayed, what it waits for, and how it ended.
    """
    from holdfast.cli.show import show_run

    show_run(url, run_id, as_json=as_json)


@main.command(
    epilog=_example(
        "holdfast signal order-7 approved true", 'holdfast signal order-7 note "call first" --id note-from-ann'
    )
)
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--id", "dedup", metavar="DEDUP", help="Sending again under the same DEDUP changes nothing.")
@_url
def signal(run_id: str, name: str, value: str | None, dedup: str | None, url: str | None) -> None:
    """Send a value into a run, to its `wait_for_signal(NAME)`.

    VALUE is read as JSON (`true`, `3`, `{"by": "ann"}`); what is not JSON is sent as a string. Without a VALUE, None is
    sent.
    """
    from holdfast.cli.changes import send_signal

    send_signal(url, run_id, name, value, dedup)


@main.command(epilog=_example("holdfast retry etl-acme"))
@click.argument("run_id", metavar="ID")
@click.option("--run-again", is_flag=True, help="A `once` step of unknown outcome did not happen: run it again.")
@_url
def retry(run_id: str, run_again: bool, url: str | None) -> None:
    """Let a failed or dead run go on.

    Its journal is kept: nothing that was recorded runs again. If the last record is a failed step, that step is tried
    anew. A `once` step whose outcome is unknown is run again only if you say that it did not happen.
    """
    from holdfast.cli.changes import retry_run

    retry_run(url, run_id, run_again)


@main.command(epilog=_example("holdfast export etl-acme > etl-acme.json", "holdfast export etl-acme -o etl-acme.json"))
@click.argument("run_id", metavar="ID")
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
@_url
def export(run_id: str, output: str | None, url: str | None) -> None:
    """Write a run's journal as JSON, for `holdfast replay` and for tests.

    The file contains recorded values as they are: what the run was given, what its steps returned, and what was sent to
    it. Look through it before you share it or put it under version control.
    """
    from holdfast.cli.journals import write_journal

    write_journal(url, run_id, output)


@main.command(
    epilog=_example("holdfast replay etl-acme.json app:etl", "holdfast export etl-acme | holdfast replay - app.py")
)
@click.argument("file")
@click.argument("target")
def replay(file: str, target: str) -> None:
    """Try the code in TARGET against a recorded run.

    FILE is what `holdfast export` wrote (`-`: stdin). TARGET is `module`, `module:workflow`, `path/to/app.py` or
    `app.py:workflow`. The workflow's code is run through the journal as a worker would do it that takes the run over:
    no step is executed, and no store is touched. Exits with 0 if the code still does what was recorded, with 1 if it
    does not, and with 2 if there is nothing to compare.
    """
    from holdfast.cli.journals import replay_file

    try:
        code = replay_file(file, target)
    except HoldfastError as error:
        _tell_error(error)
        code = 2
    sys.exit(code)


@main.command(epilog=_example("holdfast doctor", "holdfast doctor --url sqlite:////var/lib/app/runs.db --json"))
@click.option("--json", "as_json", is_flag=True, help="A JSON object, for programs.")
@_url
def doctor(as_json: bool, url: str | None) -> None:
    """Check the machine and the store.

    Says of each thing whether it is well, and what to do if not. Changes nothing. Exits with 1 if something fails.
    """
    from holdfast.cli.doctor import examine

    sys.exit(examine(url, as_json=as_json))
