"""``holdfast policies``: what agents may use up in a day, how the day is, and what people do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_count, make_printable, print_json, to_one_line, value_to_json
from holdfast.cli.store_access import open_client
from holdfast.cli.tables import print_table
from holdfast.services.policies import Policy, PolicyInfo

_BREACH_EFFECTS = {
    "notify": "only tells",
    "refuse": "refuses new runs",
    "pause": "disables it for the day",
    "disable": "disables it",
}


def show_policies(url: str | None, *, as_json: bool) -> None:
    """Print all policies, and how the day is for each."""
    found = run_in_loop(_fetch_policies(url))
    if as_json:
        print_json(value_to_json([asdict(one) for one in found]))
        return
    if not found:
        create_console().print(
            "there is no policy yet: `holdfast policies set AGENT --usd 20 --on-breach pause` makes one", soft_wrap=True
        )
        return
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
    print_table(("agent", "runs today", "spent today", "on breach", "now"), rows)


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


async def _fetch_policies(url: str | None) -> list[PolicyInfo]:
    async with open_client(url) as client:
        return await client.policies.list()


def set_policy(
    url: str | None, name: str, runs: int | None, usd: float | None, on_breach: Any, *, as_json: bool
) -> None:
    """Give an agent a policy, and say what that means."""
    changed = run_in_loop(_set_policy(url, name, Policy(runs, usd, on_breach)))
    limits = [*([] if runs is None else [format_count(runs, "run")]), *([] if usd is None else [f"${usd:g}"])]
    before = "" if changed else "this was its policy before, and nothing changed: "
    message = (
        f"{before}{name!r} may have {' and '.join(limits)} a day (of UTC); when that is reached, the policy "
        f"{_BREACH_EFFECTS[on_breach]}. Servers see to it: one must be running (`holdfast serve`)"
    )
    _print_change(name, changed, message, as_json)


async def _set_policy(url: str | None, name: str, policy: Policy) -> bool:
    async with open_client(url) as client:
        before = next((one.policy for one in await client.policies.list() if one.name == name), None)
        await client.policies.set(name, policy)
        return before != policy


def delete_policy(url: str | None, name: str, *, as_json: bool) -> None:
    """Take a policy away, and say so."""
    changed = run_in_loop(_delete_policy(url, name))
    message = f"{name!r} has no policy any more" if changed else f"{name!r} had no policy: nothing changed"
    _print_change(name, changed, message, as_json)


def _print_change(name: str, changed: bool, message: str, as_json: bool) -> None:
    print(json.dumps({"name": name, "changed": changed, "message": message}) if as_json else make_printable(message))


async def _delete_policy(url: str | None, name: str) -> bool:
    async with open_client(url) as client:
        return await client.policies.delete(name)
