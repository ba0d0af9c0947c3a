"""``holdfast signal``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.cli.event_loop import in_loop
from holdfast.cli.opening import not_found, reached, seen
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.values import json_or_text
from holdfast.errors import HoldfastError, RunNotFound


def send_signal(url: str | None, run_id: str, name: str, value: str | None, dedup: str | None, *, as_json: bool) -> int:
    """Send a signal, and say what became of it."""
    sent = None if value is None else json_or_text(value)
    outcome = in_loop(_send(url, run_id, name, sent, dedup))
    if outcome.stalled is not None and not as_json:
        kept = f"{outcome.message}\nit is kept until the run goes on; {outcome.stalled}"
        outcome = replace(outcome, message=kept, stalled=None)
    return report(url, [outcome], as_json=as_json)


async def _send(url: str | None, run_id: str, name: str, value: Any, dedup: str | None) -> Outcome:
    async with reached(url) as client:
        try:
            changed = await client.signal(run_id, name, value, id=dedup)
            run = await seen(client, run_id)
        except RunNotFound:
            return await failure(client, run_id, await not_found(client, run_id))
        except HoldfastError as error:
            return await failure(client, run_id, error)
    message = (
        f"sent signal {name!r} to run {run_id!r}"
        if changed
        else f"a signal with id {dedup!r} was sent to run {run_id!r} before: nothing changed"
    )
    if run is None:
        return Outcome(run_id, None, changed, message, more={"signal": name})
    return Outcome.of(run, changed=changed, message=message, signal=name)
