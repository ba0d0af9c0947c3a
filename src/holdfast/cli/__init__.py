"""The ``holdfast`` command: what it offers, in one place.

Each command is declared here, with its help, and carried out by the module that its function imports: so ``--help`` is
quick, and a command loads only what it needs. Errors of Holdfast are shown as one message, without a traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast import __version__
from holdfast.cli.moments import moment
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
    from holdfast.cli.wording import tell_error

    tell_error(error)


def _url(command: F) -> F:
    option = click.option("--url", metavar="URL", help="The store; HOLDFAST_URL or ./.holdfast/runs.db unless given.")
    return option(command)


def _json(command: F) -> F:
    """For a command that changes runs."""
    option = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="A JSON object for each run, one to a line: id, workflow, state, changed, paused, cancelling, stalled "
        "(why it does not go on), message, error, and what only this command has to tell.",
    )
    return option(command)


_ids = click.argument("run_ids", metavar="ID...", nargs=-1, required=True)


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


@main.command(epilog=_example("holdfast demo", "holdfast demo --model openai:gpt-4o-mini"))
@click.option("--fast", is_flag=True, help="The model thinks less: about three seconds in all.")
@click.option("--model", metavar="PROVIDER:NAME", help="Ask a real model, which needs its package and a key.")
def demo(fast: bool, model: str | None) -> None:
    """See an agent survive kill -9.

    Starts two worker processes and an agent of 12 turns, kills the worker that executes it in the middle of turn 9, and
    counts afterwards, outside the database, how often the model was asked and each tool was called: what was not paid
    for twice. Offline, with a model that answers by a script; takes a few seconds.
    """
    from holdfast.cli.demo import run_demo

    sys.exit(run_demo(fast=fast, model=model))


@main.command(
    epilog=_example(
        "holdfast worker app:etl",
        "holdfast worker agents:researcher",
        "holdfast worker jobs/app.py --queue nightly --concurrency 20",
    )
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
    """Execute runs of the workflows and agents in TARGET.

    TARGET is `module`, `module:workflow`, `path/to/app.py` or `app.py:workflow`, where an agent may stand for the
    workflow: it is served with its sub-agents. Without a name, all that the module defines or imports are served.
    Start as many workers as you like, on the same store. SIGTERM or Ctrl-C stops a worker in good order: what is in
    flight may end, the rest is handed over.

    An agent with a `deps_type` cannot be handed its deps here: serve it from a program of yours, with
    `agent.run_worker(deps=...)`.
    """
    from holdfast.cli.working import work

    work(target, url=url, queues=queues or None, concurrency=concurrency, lease=lease, grace=grace)


@main.command(
    epilog=_example(
        "holdfast runs --state failed --state dead --since 2h", "holdfast runs --workflow etl --text acme --json"
    )
)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only runs in this state; may be repeated."
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--tag", metavar="T", help="Only runs with this tag.")
@click.option("--text", metavar="TEXT", help="Only runs with this in their id, workflow, tags or error.")
@click.option("--parent", metavar="ID", help="Only runs that this run has started.")
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    help="Only runs created then or later: 2026-11-15, 2026-11-15T08:30, or 90m, 2h, 3d ago.",
)
@click.option("--until", type=moment, metavar="WHEN", help="Only runs created before then.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--before", metavar="ID", help="Go on behind this run: the last one of the page before.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, for programs.")
@_url
def runs(as_json: bool, url: str | None, **wanted: Any) -> None:
    """List runs, newest first.

    What there is no room for is a page further: the list ends with the command that shows it.
    """
    from holdfast.cli.runs import Wanted, show_runs

    show_runs(url, Wanted(**wanted), as_json=as_json)


@main.command(
    epilog=_example(
        "holdfast show etl-acme", "holdfast show research-7 --conversation --full", "holdfast show etl-acme --json"
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--conversation", is_flag=True, help="Of an agent's run: what was said, in place of the journal.")
@click.option("--full", is_flag=True, help="With --conversation: long texts, too, from beginning to end.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with everything, for programs.")
@_url
def show(run_id: str, conversation: bool, full: bool, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a run.

    Its journal, who executed what and when, what was replayed, what it waits for, which runs it started, how it ended,
    and what a retry would do. Of model calls: which model answered, tokens and cost, and what is left of a budget.
    """
    if conversation:
        from holdfast.cli.speaking import show_conversation

        show_conversation(url, run_id, full=full, as_json=as_json)
        return
    if full:
        raise click.UsageError("--full goes with --conversation; all that is recorded of a run is told by --json.")
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


@main.command(epilog=_example("holdfast cancel etl-acme", "holdfast cancel etl-acme etl-bolt --wait 30"))
@_ids
@click.option(
    "--wait", type=click.FloatRange(min=0.0), metavar="SECONDS", help="Until they have ended; exits with 1 if not."
)
@_json
@_url
def cancel(run_ids: tuple[str, ...], wait: float | None, as_json: bool, url: str | None) -> None:
    """Cancel runs.

    A run that nobody has begun is cancelled at once. Else its worker interrupts what it is doing, its `finally` blocks
    run, and steps with a compensation are undone. A paused run goes on, to be cancelled.
    """
    from holdfast.cli.control import cancel_runs

    sys.exit(cancel_runs(url, run_ids, wait=wait, as_json=as_json))


@main.command(epilog=_example("holdfast pause etl-acme"))
@_ids
@_json
@_url
def pause(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Keep runs from going on, until they are resumed.

    Steps in flight may end, and are recorded. Signals are kept, and timers that pass meanwhile are seen to afterwards.
    """
    from holdfast.cli.control import pause_runs

    sys.exit(pause_runs(url, run_ids, as_json=as_json))


@main.command(epilog=_example("holdfast resume etl-acme"))
@_ids
@_json
@_url
def resume(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Let paused runs go on."""
    from holdfast.cli.control import resume_runs

    sys.exit(resume_runs(url, run_ids, as_json=as_json))


@main.command(epilog=_example("holdfast budget research-7", "holdfast budget research-7 --usd 5 --turns 40"))
@click.argument("run_id", metavar="ID")
@click.option("--usd", type=click.FloatRange(min=0.0, min_open=True), metavar="DOLLARS", help="What it may cost.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Input and output tokens.")
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Model calls.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="S",
    help="Time at work, in model calls and tools; the time that a run waits does not count.",
)
@_json
@_url
def budget(
    run_id: str,
    usd: float | None,
    tokens: int | None,
    turns: int | None,
    seconds: float | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Tell what a run has used of its budget, or give it another one.

    A budget holds for a run together with all the runs below it, from the run's start on: what is used already counts.
    What is not given stays as it is. Runs whose next model call was refused ask again, and go on.
    """
    from holdfast.cli.budgets import set_budget, show_budget

    limits = {"usd": usd, "tokens": tokens, "turns": turns, "seconds": seconds}
    given = {name: most for name, most in limits.items() if most is not None}
    sys.exit(set_budget(url, run_id, given, as_json=as_json) if given else show_budget(url, run_id, as_json=as_json))


@main.command(epilog=_example("holdfast retry etl-acme"))
@click.argument("run_id", metavar="ID")
@click.option("--run-again", is_flag=True, help="A `once` step of unknown outcome did not happen: run it again.")
@_json
@_url
def retry(run_id: str, run_again: bool, as_json: bool, url: str | None) -> None:
    """Let a failed, cancelled or dead run go on.

    The records that ended it are taken back, with what came of them; the rest is kept, and does not run again.
    `holdfast show ID` tells what that would be. A `once` step is run a second time only if you say that it may.
    """
    from holdfast.cli.retrying import retry_run

    sys.exit(retry_run(url, run_id, run_again=run_again, as_json=as_json))


@main.command(
    epilog=_example(
        "holdfast fork etl-acme --at load", "holdfast fork etl-acme --at 3 --output '[1, 2]' --id etl-acme-b"
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--at", metavar="STEP", help="Go on from this step: its number in `show`, or its name. It runs again.")
@click.option("--output", metavar="JSON", help="What that step is taken to have returned; then it does not run.")
@click.option("--id", "new_id", metavar="NEW", help="The id of the new run; made up unless given.")
@_json
@_url
def fork(run_id: str, at: str | None, output: str | None, new_id: str | None, as_json: bool, url: str | None) -> None:
    """Start a new run that shares what was recorded of another.

    All that was recorded before STEP is shared, and does not run again; without STEP, all that there is. The other run
    is left as it is.
    """
    from holdfast.cli.forks import fork

    sys.exit(fork(url, run_id, at=at, output=output, new_id=new_id, as_json=as_json))


@main.command(epilog=_example("holdfast kill etl", "holdfast kill etl --lift", "holdfast kill"))
@click.argument("workflow", required=False)
@click.option("--lift", is_flag=True, help="Switch it on again: its runs go on.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON object: workflow, switched_off, changed, runs (unfinished ones), stalled, message; without a "
    "WORKFLOW, an array of what is switched off.",
)
@_url
def kill(workflow: str | None, lift: bool, as_json: bool, url: str | None) -> None:
    """Switch a workflow off, everywhere and at once.

    Its runs stand still: what they are doing is interrupted, and none is started or taken up until the switch is
    lifted. Nothing that was recorded is lost. Without a WORKFLOW, tells what is switched off.
    """
    from holdfast.cli.switching import show_switched_off, switch

    if workflow is not None:
        switch(url, workflow, on=lift, as_json=as_json)
    elif lift:
        raise click.UsageError("--lift needs the name of a WORKFLOW; `holdfast kill` lists what is switched off.")
    else:
        show_switched_off(url, as_json=as_json)


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


@main.command(epilog=_example("holdfast check app.py", "holdfast check jobs/ pkg.flows --json"))
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, for programs.")
def check(targets: tuple[str, ...], as_json: bool) -> None:
    """Look for what does not replay in workflow code.

    TARGET is a file, a folder or a module. Its source is read; nothing is imported, nothing runs. Each finding is a
    line with its place, what is wrong, and the way out. `# holdfast: ignore` on the line silences it, and `# holdfast:
    ignore[clock]` only that kind. Exits with 0 if nothing is found, with 1 if something is, and with 2 if something
    cannot be read.
    """
    from holdfast.cli.checking import check_targets

    try:
        code = check_targets(targets, as_json=as_json)
    except HoldfastError as error:
        _tell_error(error)
        code = 2
    sys.exit(code)


@main.command(epilog=_example("holdfast doctor", "holdfast doctor --url sqlite:////var/lib/app/runs.db --json"))
@click.option("--json", "as_json", is_flag=True, help="A JSON object, for programs.")
@_url
def doctor(as_json: bool, url: str | None) -> None:
    """Check the machine and the store.

    Says of each thing whether it is well, and what to do if not: also which model providers can be asked from here.
    Changes nothing, and shows no key. Exits with 1 if something fails.
    """
    from holdfast.cli.doctor import examine

    sys.exit(examine(url, as_json=as_json))
