"""``holdfast signal``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import tell_warning
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.store_access import not_found, reached, seen
from holdfast.cli.values import json_or_text
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reports.run_info import RunInfo


def send_signal(url: str | None, run_id: str, name: str, value: str | None, dedup: str | None, *, as_json: bool) -> int:
    """Send a signal, and say what became of it."""
    sent = None if value is None else json_or_text(value)
    outcome = in_loop(_send(url, run_id, name, sent, dedup))
    if outcome.stalled is not None and not as_json:
        kept = f"{outcome.message}\nit is kept until the run goes on; {outcome.stalled}"
        outcome = replace(outcome, message=kept, stalled=None)
    if (warning := outcome.more.get("warning")) and not as_json:
        tell_warning(warning)
    return report(url, [outcome], as_json=as_json)


async def _send(url: str | None, run_id: str, name: str, value: Any, dedup: str | None) -> Outcome:
    async with reached(url) as client:
        try:
            before = await seen(client, run_id)
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
    more = {"signal": name, "warning": _warning(before, name) if changed else None}
    if run is None:
        return Outcome(run_id, None, changed, message, more=more)
    return Outcome.of(run, changed=changed, message=message, **more)


def _warning(run: RunInfo | None, name: str) -> str | None:
    """What is wrong with a signal that its run does not wait for; of a run that is executed now, nobody can tell."""
    if run is None or not run.waits_for or f"signal {name!r}" in run.waits_for:
        return None
    return (
        f"run {run.id!r} does not wait for signal {name!r}: it waits for {run.waits_for}. The signal is kept, in case "
        f"the run asks for it later."
    )
