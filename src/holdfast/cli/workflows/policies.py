"""``holdfast policies``."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.shared.formatting import (
    format_count,
    to_one_line,
)
from holdfast.cli.shared.options import format_example, json_option, listing_group, url_option
from holdfast.cli.shared.outcomes import print_change
from holdfast.cli.shared.store_access import run_client
from holdfast.cli.shared.tables import print_listing
from holdfast.client.client import Client
from holdfast.services.policies import Policy, PolicyInfo

_BREACH_EFFECTS = {
    "notify": "only reports it",
    "refuse": "refuses new runs",
    "pause": "disables it for the day",
    "disable": "disables it",
}


@listing_group("holdfast policies", "holdfast policies set researcher --usd 20 --on-breach pause")
@json_option("A JSON array of policies, each as in `GET /v1/policies`.")
@url_option
def policies(as_json: bool, url: str | None) -> None:
    """List policies: what agents may use in a day, and what they have used today.

    A policy limits the runs and the cost of an agent, a workflow, or an address in a day (UTC), and says what happens
    when a limit is reached. Servers enforce policies: one must be running (`holdfast serve`).
    """
    found = run_client(url, lambda client: client.policies.list())
    rows = [
        (
            to_one_line(one.name),
            _format_used(str(one.run_count), one.policy.runs_per_day),
            _format_used(f"${one.usd:.2f}", None if one.policy.usd_per_day is None else f"${one.policy.usd_per_day:g}"),
            _BREACH_EFFECTS[one.policy.on_breach],
            _describe_status(one),
        )
        for one in found
    ]
    header = ("agent", "runs today", "spent today", "on breach", "now")
    empty_text = "there is no policy yet: `holdfast policies set AGENT --usd 20 --on-breach pause` makes one"
    print_listing(found, header, rows, as_json=as_json, empty_text=empty_text)


def _describe_status(info: PolicyInfo) -> str:
    if info.breach is not None:
        return f"has reached its {info.breach.limit}"
    return (
        f"has reached its {info.reached_limit}, and no server has seen it yet"
        if info.reached_limit
        else "within its limits"
    )


def _format_used(used: str, maximum: object) -> str:
    return used if maximum is None else f"{used} of {maximum}"


_json_change_option = json_option("A JSON object: name, changed, message.")


@policies.command(
    name="set", epilog=format_example("holdfast policies set researcher --runs 500 --usd 20 --on-breach pause")
)
@click.argument("agent")
@click.option("--runs", type=click.IntRange(min=0), metavar="N", help="Maximum number of runs in a day.")
@click.option("--usd", type=click.FloatRange(min=0), metavar="X", help="Maximum cost in a day, in dollars.")
@click.option(
    "--on-breach",
    type=click.Choice(tuple(_BREACH_EFFECTS)),
    default="refuse",
    show_default=True,
    help="notify: only report it; refuse: no new runs through servers until the day is over; pause: disable it until "
    "then; disable: disable it until someone enables it.",
)
@_json_change_option
@url_option
def set_policy(agent: str, runs: int | None, usd: float | None, on_breach: Any, as_json: bool, url: str | None) -> None:
    """Limit what an agent may use in a day. Replaces the policy that it has."""
    if runs is None and usd is None:
        raise click.UsageError("that limits nothing: give --runs, --usd or both.")
    policy = Policy(runs, usd, on_breach)

    async def set_one(client: Client) -> bool:
        before = next((one.policy for one in await client.policies.list() if one.name == agent), None)
        await client.policies.set(agent, policy)
        return before != policy

    changed = run_client(url, set_one)
    limits = [*([] if runs is None else [format_count(runs, "run")]), *([] if usd is None else [f"${usd:g}"])]
    before = "" if changed else "this was its policy before, and nothing changed: "
    message = (
        f"{before}{agent!r} may have {' and '.join(limits)} a day (of UTC); when that is reached, the policy "
        f"{_BREACH_EFFECTS[on_breach]}. Servers enforce it: one must be running (`holdfast serve`)"
    )
    print_change(as_json, name=agent, changed=changed, message=message)


@policies.command(epilog=format_example("holdfast policies delete researcher"))
@click.argument("agent")
@_json_change_option
@url_option
def delete(agent: str, as_json: bool, url: str | None) -> None:
    """Delete the policy of an agent. An agent that the policy disabled for the day is enabled again."""
    changed = run_client(url, lambda client: client.policies.delete(agent))
    message = f"{agent!r} has no policy any more" if changed else f"{agent!r} had no policy: nothing changed"
    print_change(as_json, name=agent, changed=changed, message=message)
