"""Commands that tell of runs and agents, and change nothing."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from holdfast.cli.datetimes import parse_day, parse_past_datetime
from holdfast.cli.options import STATES, format_example, json_option, limit_option, url_option


@click.command(
    epilog=format_example(
        "holdfast runs --state failed --state dead --since 2h", "holdfast runs --workflow etl --text acme --json"
    )
)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only runs in this state; may be repeated."
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--tag", metavar="T", help="Only runs with this tag.")
@click.option("--text", metavar="TEXT", help="Only runs with this in their id, workflow, tags or error.")
@click.option("--parent", metavar="ID", help="Only runs that this run has started.")
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Only runs created then or later: 2026-11-15, 2026-11-15T08:30, or 90m, 2h, 3d ago.",
)
@click.option("--until", type=parse_past_datetime, metavar="WHEN", help="Only runs created before then.")
@limit_option
@click.option("--before", metavar="ID", help="Go on behind this run: the last one of the page before.")
@json_option(
    "A JSON array of objects: id, workflow, version, state, queue, queue_key, tags, created_at, finished_at, "
    "duration_s, waits_for, wake_at, is_paused, is_cancelling, parent, forked_from, usage, error."
)
@url_option
def runs(as_json: bool, url: str | None, **wanted: Any) -> None:
    """List runs, newest first.

    What there is no room for is a page further: the list ends with the command that shows it.
    """
    from holdfast.cli.runs import RunQuery, show_runs

    show_runs(url, RunQuery(**wanted), as_json=as_json)


@click.command(
    epilog=format_example(
        "holdfast show etl-acme", "holdfast show research-7 --conversation --full", "holdfast show etl-acme --json"
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--conversation", is_flag=True, help="Of an agent's run: what was said, in place of the journal.")
@click.option("--full", is_flag=True, help="With --conversation: long texts, too, from beginning to end.")
@json_option("A JSON object with everything, for programs.")
@url_option
def show(run_id: str, conversation: bool, full: bool, as_json: bool, url: str | None) -> None:
    """Tell all that is known of a run.

    Its journal, who executed what and when, what was replayed, what it waits for, which runs it started, how it ended,
    and what a retry would do. Of model calls: which model answered, tokens and cost, and what is left of a budget.
    """
    if conversation:
        from holdfast.cli.conversation import show_conversation

        show_conversation(url, run_id, full=full, as_json=as_json)
        return
    if full:
        raise click.UsageError("--full goes with --conversation; all that is recorded of a run is told by --json.")
    from holdfast.cli.show import show_run

    show_run(url, run_id, as_json=as_json)


@click.command(
    epilog=format_example(
        "holdfast events research-7 --follow", "holdfast events research-7 --follow --json --after WzEs..."
    )
)
@click.argument("run_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Go on as things happen, until the run has ended.")
@click.option("--after", metavar="OFFSET", help="Only what comes behind the event with this offset.")
@json_option("A JSON object for each event, one to a line, with its offset.")
@url_option
def events(run_id: str, follow: bool, after: str | None, as_json: bool, url: str | None) -> None:
    """Tell what happens in a run, as it happens: answers word by word, tool calls, steps, plans, questions.

    From any process and at any time: a reader that was gone goes on behind the last event that it had, without loss
    and without repeats. What an answer said that was cut off, because its process died, is taken back.
    """
    from holdfast.cli.events import show_events

    show_events(url, run_id, follow=follow, after=after, as_json=as_json)


@click.command(
    epilog=format_example(
        "holdfast tail",
        "holdfast tail --state failed --state dead",
        "holdfast tail --workflow research --since 1h --json",
    )
)
@click.option("--workflow", metavar="W", help="Only of runs of this workflow.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only of runs in this state; may be repeated."
)
@click.option("--tag", metavar="T", help="Only of runs with this tag.")
@click.option(
    "--since",
    type=parse_past_datetime,
    metavar="WHEN",
    help="Also what has happened since then: 10m, 2h, or 2026-11-15T08:30.",
)
@json_option("A JSON object for each, one to a line: at, run_id, workflow, state, kind, step, name, worker, usd, data.")
@url_option
def tail(as_json: bool, url: str | None, **wanted: Any) -> None:
    """Follow what happens in all runs, a line for each thing, until Ctrl-C.

    Runs that begin, steps that end, answers with what they cost, questions, failures, takeovers and ends; of one run,
    `holdfast events` tells more. Over HTTP it goes on where it was when the server was away.
    """
    from holdfast.cli.tail import TailQuery, follow_runs

    follow_runs(url, TailQuery(**wanted), as_json=as_json)


@click.command(epilog=format_example("holdfast agents", "holdfast agents --all --json"))
@click.option("--all", "everything", is_flag=True, help="Workflows as well.")
@json_option(
    "A JSON array of objects: name, is_agent, state, worker_count, versions, heartbeat_at, disabled_at, run_counts (a "
    "number for each state), capped_states (states with more runs than were counted)."
)
@url_option
def agents(everything: bool, as_json: bool, url: str | None) -> None:
    """List agents, and whether live workers serve them.

    An agent is `serving` when a worker that serves it has sent a heartbeat within its lease, `silent` when its workers
    have stopped to send any, `unserved` when it has none, and `off` when it was disabled (see `holdfast disable`).
    """
    from holdfast.cli.agents import show_agents

    show_agents(url, include_workflows=everything, as_json=as_json)


@click.command(epilog=format_example("holdfast costs", "holdfast costs --since 2026-11-01 --workflow research --json"))
@click.option(
    "--since",
    type=parse_day,
    metavar="DAY",
    help="From this day on: 2026-11-01, or 7d ago; the last 30 days unless given.",
)
@click.option("--until", type=parse_day, metavar="DAY", help="To this day, which is included; today unless given.")
@click.option("--workflow", metavar="W", help="Only what runs of this agent or workflow have used.")
@json_option(
    "A JSON object: since, until, total, daily_usage (by day, workflow and model), daily_runs (by day and workflow)."
)
@url_option
def costs(since: date | None, until: date | None, workflow: str | None, as_json: bool, url: str | None) -> None:
    """Tell what model calls have used, by day, agent and model.

    Days are those of UTC. What a sub-agent has used is told with the sub-agent. Deleting runs changes nothing of it.
    """
    from holdfast.cli.costs import show_costs

    show_costs(url, since, until, workflow, as_json=as_json)
