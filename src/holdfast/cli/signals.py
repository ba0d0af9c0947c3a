"""``holdfast signal``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import print_warning
from holdfast.cli.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.store_access import build_run_not_found, open_client, try_get_run
from holdfast.cli.values import parse_json_or_text
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reports.run_info import RunInfo


def send_signal(url: str | None, run_id: str, name: str, value: str | None, dedup: str | None, *, as_json: bool) -> int:
    """Send a signal, and say what became of it."""
    sent = None if value is None else parse_json_or_text(value)
    outcome = run_in_loop(_send_signal(url, run_id, name, sent, dedup))
    if outcome.stall_reason is not None and not as_json:
        kept = f"{outcome.message}\nit is kept until the run goes on; {outcome.stall_reason}"
        outcome = replace(outcome, message=kept, stall_reason=None)
    if (warning := outcome.extra.get("warning")) and not as_json:
        print_warning(warning)
    return print_outcomes(url, [outcome], as_json=as_json)


async def _send_signal(url: str | None, run_id: str, name: str, value: Any, dedup: str | None) -> Outcome:
    async with open_client(url) as client:
        try:
            before = await try_get_run(client, run_id)
            changed = await client.signal(run_id, name, value, id=dedup)
            run = await try_get_run(client, run_id)
        except RunNotFound:
            return await outcome_from_error(client, run_id, await build_run_not_found(client, run_id))
        except HoldfastError as error:
            return await outcome_from_error(client, run_id, error)
    message = (
        f"sent signal {name!r} to run {run_id!r}"
        if changed
        else f"a signal with id {dedup!r} was sent to run {run_id!r} before: nothing changed"
    )
    more = {"signal": name, "warning": _build_warning(before, name) if changed else None}
    if run is None:
        return Outcome(run_id, None, changed, message, extra=more)
    return Outcome.from_run(run, changed=changed, message=message, **more)


def _build_warning(run: RunInfo | None, name: str) -> str | None:
    """What is wrong with a signal that its run does not wait for; of a run that is executed now, nobody can tell."""
    if run is None or not run.waits_for or f"signal {name!r}" in run.waits_for:
        return None
    return (
        f"run {run.id!r} does not wait for signal {name!r}: it waits for {run.waits_for}. The signal is kept, in case "
        f"the run asks for it later."
    )
