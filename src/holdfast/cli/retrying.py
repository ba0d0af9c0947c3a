"""``holdfast retry``."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.event_loop import in_loop
from holdfast.cli.opening import get_run, reached
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.wording import counted, listed
from holdfast.client.client import Client
from holdfast.client.run_info import RunInfo
from holdfast.client.stories.retrying import in_words, reopened, retried_as_well, taken_back
from holdfast.core.records import Kind, Record
from holdfast.errors import HoldfastError, RunNotFound


def retry_run(url: str | None, run_id: str, *, run_again: bool, version: str | None, as_json: bool) -> int:
    """Reopen a failed, cancelled or dead run, and say how it goes on."""
    return report(url, in_loop(retry_each(url, [run_id], run_again, version)), as_json=as_json)


async def retry_each(
    url: str | None, run_ids: Sequence[str], run_again: bool, version: str | None = None
) -> list[Outcome]:
    """Reopen runs."""
    async with reached(url) as client:
        return [await _retry(client, run_id, run_again, version) for run_id in run_ids]


async def _retry(client: Client, run_id: str, run_again: bool, version: str | None) -> Outcome:
    try:
        await get_run(client, run_id)
        before = await client.export(run_id)
        taken = taken_back(before.run, before.records)
        children = reopened(before.run, taken, await _named(client, taken))
        await client.retry(run_id, run_again=run_again, version=version)
        run = await client.get(run_id)
    except HoldfastError as error:
        return await failure(client, run_id, error)
    kept = len(before.records) - len(taken)
    message = f"run {run_id!r} goes on (it was {before.run.state}): its journal keeps {counted(kept, 'record')}"
    return Outcome.of(
        run,
        changed=True,
        message=message + _anew(taken) + (f"; {retried_as_well(children)}" if children else ""),
        kept=kept,
        taken_back=[record.seq for record in taken],
        retried_as_well=[child.id for child in children],
    )


async def _named(client: Client, records: Sequence[Record]) -> dict[str, RunInfo]:
    """The runs whose ends these records are, by id."""
    found: dict[str, RunInfo] = {}
    for record in records:
        if record.kind is Kind.CHILD and record.preview and record.preview not in found:
            try:
                found[record.preview] = await client.get(record.preview)
            except RunNotFound:
                pass  # it was deleted since
    return found


def _anew(taken: Sequence[Record]) -> str:
    """What becomes of what is taken back: failed steps are tried again, the rest is gone."""
    anew = [record for record in taken if record.kind in (Kind.STEP, Kind.COMPENSATION) and not record.ok]
    rest = [record for record in taken if record not in anew and record.kind is not Kind.CHILD]
    words = ""
    if anew:
        words += f", and {listed([in_words(record) for record in anew])} {'is' if len(anew) == 1 else 'are'} tried anew"
    if rest:
        words += f"; taken back: {listed([in_words(record) for record in rest])}"
    return words
