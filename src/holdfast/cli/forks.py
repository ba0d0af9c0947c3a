"""``holdfast fork``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from holdfast.cli.liveness import look_around
from holdfast.cli.opening import existing_store, find_run
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.retrying import in_words
from holdfast.cli.wording import counted
from holdfast.client.client import Client
from holdfast.client.forking import GIVEN, find_step
from holdfast.errors import HoldfastError, UsageError


def fork(url: str | None, run_id: str, *, at: str | None, output: str | None, new_id: str | None, as_json: bool) -> int:
    """Make a new run that shares the beginning of another one, and say where it goes on."""
    value = GIVEN if output is None else _value(output)
    if output is not None and at is None:
        raise UsageError("--output is the output of a step: say which with --at STEP")
    return report([asyncio.run(_fork(url, run_id, _step(at), value, new_id))], as_json=as_json)


def _step(at: str | None) -> int | str | None:
    """Numbers are what ``show`` tells; anything else is a name."""
    return int(at) if at is not None and at.isdecimal() else at


def _value(text: str) -> Any:
    # Not taken for a string, as `signal` does: a mistyped object would become the output of a step.
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--output is not JSON ({error}): a string needs its quotation marks, such as --output '\"yes\"'"
        ) from None


async def _fork(url: str | None, run_id: str, at: int | str | None, output: Any, new_id: str | None) -> Outcome:
    async with existing_store(url) as store, Client(url) as client:
        try:
            origin = await find_run(store, run_id)
            [history] = await store.histories([origin.key])
            step = None if at is None else find_step(history.records, at, run_id)
            made = await client.fork(run_id, at=at, with_output=output, id=new_id)
            run = await find_run(store, made.run_id)
            around = await look_around(store, [run])
        except HoldfastError as error:
            return await failure(store, run_id, error)
        shared = sum(record.seq < step.seq for record in history.records) if step else len(history.records)
        if step is None:
            then = "goes on from there"
        elif output is GIVEN:
            then = f"{in_words(step)} runs again"
        else:
            then = f"{in_words(step)} is taken to have returned what you gave"
        return Outcome.of(
            run,
            around,
            changed=True,
            message=f"run {run.id!r} is a fork of {run_id!r}: it shares {counted(shared, 'record')}, and {then}",
            forked_from=run_id,
            shared=shared,
        )
