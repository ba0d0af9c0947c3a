"""``holdfast policies``: what agents may use up in a day, how the day is, and what people do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import console, counted, echo_json, jsonable, one_line, printable
from holdfast.cli.store_access import reached
from holdfast.cli.tables import print_table
from holdfast.services.policies import Policy, PolicyInfo

_DOES = {
    "notify": "only tells",
    "refuse": "refuses new runs",
    "pause": "switches off for the day",
    "kill": "switches off",
}


def show_policies(url: str | None, *, as_json: bool) -> None:
    """Print all policies, and how the day is for each."""
    found = in_loop(_read(url))
    if as_json:
        echo_json(jsonable([asdict(one) for one in found]))
        return
    if not found:
        console().print(
            "there is no policy yet: `holdfast policies set AGENT --usd 20 --on-breach pause` makes one", soft_wrap=True
        )
        return
    rows = [
        (
            one_line(one.name),
            _of(str(one.runs), one.policy.runs_per_day),
            _of(f"${one.usd:.2f}", None if one.policy.usd_per_day is None else f"${one.policy.usd_per_day:g}"),
            _DOES[one.policy.on_breach],
            _now(one),
        )
        for one in found
    ]
    print_table(("agent", "runs today", "spent today", "on breach", "now"), rows)


def _now(one: PolicyInfo) -> str:
    if one.breach is not None:
        return f"has reached its {one.breach.limit}"
    return f"has reached its {one.reached}, and no server has seen it yet" if one.reached else "within its limits"


def _of(used: str, most: object) -> str:
    return used if most is None else f"{used} of {most}"


async def _read(url: str | None) -> list[PolicyInfo]:
    async with reached(url) as client:
        return await client.policies.list()


def set_policy(
    url: str | None, name: str, runs: int | None, usd: float | None, on_breach: Any, *, as_json: bool
) -> None:
    """Give an agent a policy, and say what that means."""
    changed = in_loop(_set(url, name, Policy(runs, usd, on_breach)))
    limits = [*([] if runs is None else [counted(runs, "run")]), *([] if usd is None else [f"${usd:g}"])]
    before = "" if changed else "this was its policy before, and nothing changed: "
    message = (
        f"{before}{name!r} may have {' and '.join(limits)} a day (of UTC); when that is reached, the policy "
        f"{_DOES[on_breach]}. Servers see to it: one must be running (`holdfast serve`)"
    )
    _tell(name, changed, message, as_json)


async def _set(url: str | None, name: str, policy: Policy) -> bool:
    async with reached(url) as client:
        before = next((one.policy for one in await client.policies.list() if one.name == name), None)
        await client.policies.set(name, policy)
        return before != policy


def forget_policy(url: str | None, name: str, *, as_json: bool) -> None:
    """Take a policy away, and say so."""
    changed = in_loop(_forget(url, name))
    message = f"{name!r} has no policy any more" if changed else f"{name!r} had no policy: nothing changed"
    _tell(name, changed, message, as_json)


def _tell(name: str, changed: bool, message: str, as_json: bool) -> None:
    print(json.dumps({"name": name, "changed": changed, "message": message}) if as_json else printable(message))


async def _forget(url: str | None, name: str) -> bool:
    async with reached(url) as client:
        return await client.policies.delete(name)
