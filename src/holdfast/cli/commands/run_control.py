"""Commands that change runs, or what becomes of them."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from holdfast.cli.datetimes import parse_past_datetime
from holdfast.cli.options import (
    RETRYABLE_STATES,
    YES_HELP,
    format_example,
    json_changes_option,
    json_option,
    run_ids_argument,
    url_option,
)
from holdfast.core.states import RunState


@click.command(epilog=format_example("holdfast cancel etl-acme", "holdfast cancel etl-acme etl-bolt --wait 30"))
@run_ids_argument
@click.option(
    "--wait",
    type=click.FloatRange(min=0.0),
    metavar="S",
    help="So many seconds, until they have ended; exits with 1 if not.",
)
@json_changes_option
@url_option
def cancel(run_ids: tuple[str, ...], wait: float | None, as_json: bool, url: str | None) -> None:
    """Cancel runs.

    A run that nobody has begun is cancelled at once. Else its worker interrupts what it is doing, its `finally` blocks
    run, and steps with a compensation are undone. A paused run goes on, to be cancelled.
    """
    from holdfast.cli.run_control import cancel_runs

    sys.exit(cancel_runs(url, run_ids, wait_s=wait, as_json=as_json))


@click.command(epilog=format_example("holdfast pause etl-acme"))
@run_ids_argument
@json_changes_option
@url_option
def pause(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Keep runs from going on, until they are resumed.

    Steps in flight may end, and are recorded. Signals are kept, and timers that pass meanwhile are seen to afterwards.
    """
    from holdfast.cli.run_control import pause_runs

    sys.exit(pause_runs(url, run_ids, as_json=as_json))


@click.command(epilog=format_example("holdfast resume etl-acme"))
@run_ids_argument
@json_changes_option
@url_option
def resume(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Let paused runs go on."""
    from holdfast.cli.run_control import resume_runs

    sys.exit(resume_runs(url, run_ids, as_json=as_json))


@click.command(epilog=format_example("holdfast budget research-7", "holdfast budget research-7 --usd 5 --turns 40"))
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
@json_changes_option
@url_option
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


@click.command(
    epilog=format_example(
        "holdfast retry etl-acme",
        "holdfast retry --workflow research --since 2h",
        "holdfast retry --state failed --state dead --error 'status 503' --yes",
    )
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--workflow", metavar="W", help="All runs of this workflow that failed.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(RETRYABLE_STATES),
    help="All runs in this state; may be repeated. Default, with other filters: failed.",
)
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Only runs that ended then or later: 2026-11-15, 2026-11-15T08:30, or 90m, 2h, 3d ago.",
)
@click.option("--error", metavar="TEXT", help="Only runs with this in the type or message of their error.")
@click.option("--run-again", is_flag=True, help="A `once` step of unknown outcome did not happen: run it again.")
@click.option("--version", metavar="VERSION", help="Let the code of another version of its workflow go on with it.")
@click.option("--yes", is_flag=True, help=YES_HELP)
@json_changes_option
@url_option
def retry(
    run_ids: tuple[str, ...],
    workflow: str | None,
    states: tuple[str, ...],
    since: datetime | None,
    error: str | None,
    run_again: bool,
    version: str | None,
    yes: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Let failed, cancelled or dead runs go on: some by their ids, or all that match.

    The records that ended a run are taken back, with what came of them; the rest is kept, and does not run again.
    `holdfast show ID` tells what that would be. A `once` step is run a second time only if you say that it may. A run
    that another one has started, and that made it fail, is retried with that one.
    """
    from holdfast.cli.retry import RunSelection, retry_runs, retry_selected

    filtered = bool(workflow or states or since or error)
    if bool(run_ids) == filtered:
        raise click.UsageError("say which: some ids, or --workflow, --state, --since or --error.")
    if run_ids:
        sys.exit(retry_runs(url, run_ids, run_again=run_again, version=version, as_json=as_json))
    selection = RunSelection(tuple(map(RunState, states)) or (RunState.FAILED,), workflow, since, error)
    sys.exit(retry_selected(url, selection, run_again=run_again, version=version, yes=yes, as_json=as_json))


@click.command(
    epilog=format_example(
        'holdfast settle pay-17 charge --output \'{"receipt": "r-42"}\'', "holdfast settle pay-17 2 --did-not-happen"
    )
)
@click.argument("run_id", metavar="ID")
@click.argument("step")
@click.option("--output", metavar="JSON", help="It happened, and this is what it returned (null, if nothing).")
@click.option("--did-not-happen", is_flag=True, help="It did not happen: run it again.")
@json_changes_option
@url_option
def settle(run_id: str, step: str, output: str | None, did_not_happen: bool, as_json: bool, url: str | None) -> None:
    """Say what came of a `once` step whose worker died in it.

    Nobody but you can find out: look whether it happened. Then the run, which has failed because of that, goes on: with
    the output that you give, or by running STEP (its number in `show`, or its name) again. No other `once` step is run
    again. If it is a run started by another one that has failed, `holdfast retry` the other one afterwards.
    """
    from holdfast.cli.settlement import settle_step

    sys.exit(settle_step(url, run_id, step, output=output, did_not_happen=did_not_happen, as_json=as_json))


@click.command(
    epilog=format_example(
        "holdfast fork etl-acme --at load", "holdfast fork etl-acme --at 3 --output '[1, 2]' --id etl-acme-b"
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--at", metavar="STEP", help="Go on from this step: its number in `show`, or its name. It runs again.")
@click.option("--output", metavar="JSON", help="What that step is taken to have returned; then it does not run.")
@click.option("--id", "new_id", metavar="NEW", help="The id of the new run; made up unless given.")
@json_changes_option
@url_option
def fork(run_id: str, at: str | None, output: str | None, new_id: str | None, as_json: bool, url: str | None) -> None:
    """Start a new run that shares what was recorded of another.

    All that was recorded before STEP is shared, and does not run again; without STEP, all that there is. The other run
    is left as it is.
    """
    from holdfast.cli.forks import fork_run

    sys.exit(fork_run(url, run_id, at=at, output=output, new_id=new_id, as_json=as_json))


@click.command(
    epilog=format_example(
        "holdfast disable researcher", 'holdfast disable researcher --reason "wrong prices"', "holdfast disable"
    )
)
@click.argument("workflow", required=False)
@click.option("--reason", default="", help="Why, for others to read.")
@json_option(
    "A JSON object: workflow, disabled, changed, run_count (unfinished runs), stall_reason, message; without a "
    "WORKFLOW, an array of what is disabled: workflow, since, by, reason, run_count."
)
@url_option
def disable(workflow: str | None, reason: str, as_json: bool, url: str | None) -> None:
    """Disable a workflow or an agent, everywhere.

    Its runs stop at the next recorded point: a step in flight ends and is recorded, nothing else starts (`holdfast
    cancel` interrupts a step as well). No run starts or continues until you enable the workflow. Nothing that was
    recorded is lost. Without a WORKFLOW, lists what is disabled.
    """
    from holdfast.cli.disabled_workflows import set_workflow_enabled, show_disabled_workflows

    if workflow is None:
        show_disabled_workflows(url, as_json=as_json)
    else:
        set_workflow_enabled(url, workflow, enabled=False, reason=reason, as_json=as_json)


@click.command(epilog=format_example("holdfast enable researcher"))
@click.argument("workflow")
@json_option("A JSON object: workflow, disabled, changed, run_count (unfinished runs), stall_reason, message.")
@url_option
def enable(workflow: str, as_json: bool, url: str | None) -> None:
    """Enable a workflow or an agent that was disabled: its runs continue."""
    from holdfast.cli.disabled_workflows import set_workflow_enabled

    set_workflow_enabled(url, workflow, enabled=True, reason="", as_json=as_json)
