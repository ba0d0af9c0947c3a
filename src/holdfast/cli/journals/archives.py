"""Archives: many runs in a file, with everything that belongs to them (``holdfast export --all``, ``import``).

JSON lines. The first says what the file is, the last how many runs there are, so that a truncated file is noticed. Each
of the others is a run, with the fields of a journal's file (see ``services.journal_files``). A run comes before those
that it started. **Recorded values are in the file as the store returns them**: encrypted or decrypted.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from typing import IO, Any, cast

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.errors import UsageError
from holdfast.services.journal_files import to_json_line
from holdfast.services.json_fields import (
    ATTEMPT_FIELDS,
    BOOL,
    BYTES,
    INT,
    INTS,
    RECORD_FIELDS,
    RUN_FIELDS,
    SECONDS,
    SIGNAL_FIELDS,
    STRING,
    STRINGS,
    FieldCodec,
    FieldCodecs,
    is_empty,
    read_fields,
    read_list,
    write_fields,
)
from holdfast.services.lookup import find_run
from holdfast.stores.approvals import Approval, ApprovalFilter, ApprovalRequest, ApprovalState
from holdfast.stores.archives import ArchivedLink, ArchivedRun, RunExtras
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.encrypted import check_archive_decrypted
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.operations import LiveEvent, Run

FORMAT = "holdfast-archive"
VERSION = 1
"""Increases when an older Holdfast would misread the file. Not for new fields: unknown ones are ignored."""

_EXPORT_HINT = "`holdfast export --all` writes such files."
_MAX_ROWS = 100_000
"""Maximum number of approvals and of live events of one run."""

_USAGE_FIELD_NAMES = tuple(one.name for one in fields(Usage))
_APPROVAL_FIELDS: FieldCodecs = {
    "id": STRING,
    "position": INT,
    "state": FieldCodec(f"one of {', '.join(ApprovalState)}", ApprovalState, str),
    "requested_at": SECONDS,
    "expires_at": SECONDS.nullable(),
    "assignee": STRING,
    "reminder_count": INT,
    "reminded_at": SECONDS.nullable(),
    "answer": BYTES.nullable(),
    "answered_by": STRING,
    "answered_at": SECONDS.nullable(),
}
_REQUEST_FIELDS: FieldCodecs = {
    "question": STRING,
    "assignee": STRING,
    "choices": STRINGS,
    "form_schema": BYTES,
    "tool": STRING,
    "arguments": BYTES,
    "reason": STRING,
}
_LIVE_EVENT_FIELDS: FieldCodecs = {
    "position": INT,
    "stream": STRING,
    "number": INT,
    "kind": STRING,
    "data": BYTES,
    "at": SECONDS,
}
_LINK_FIELDS: FieldCodecs = {"position": INT, "child_id": STRING, "is_late": BOOL.omit_if(is_empty)}
_USAGE_FIELDS: FieldCodecs = {name: SECONDS if name == "seconds" else INT for name in _USAGE_FIELD_NAMES}
_BUDGET_FIELDS: FieldCodecs = {name: SECONDS.nullable() for name in BudgetLimits._fields}
_EXTRAS_FIELDS: FieldCodecs = {
    "has_generated_id": BOOL.omit_if(is_empty),
    "has_unclaimed_result": BOOL.omit_if(is_empty),
    "signal_dedup_keys": STRINGS.omit_if(is_empty),
    "short_positions": INTS.omit_if(is_empty),
}


# From a store


async def archive_run(store: Store, run_id: str) -> ArchivedRun:
    """A run and everything that belongs to it, as it is now. Raises ``RunNotFound``."""
    while True:
        run = await find_run(store, run_id)
        [history] = await store.get_histories([run.key])
        feed = await store.get_run_updates(run_id, len(history.records), 0, _MAX_ROWS)
        archived = ArchivedRun(
            replace(run, key=0, owner=None, starter=None),
            tuple(history.records),
            tuple(attempt for _, attempt in sorted(history.attempts.items())),
            tuple(history.signals),
            (await store.get_usages([run_id])).get(run_id, RunUsage()),
            tuple(await store.list_approvals(ApprovalFilter(run_id=run_id, only_open=False), _MAX_ROWS)),
            () if feed is None else tuple(notice for _, notice in feed.live_events if notice.kind in LASTING_KINDS),
            await store.archives.get_extras(run.key),
        )
        # If a worker changed the run between two reads, something may be missing: read again.
        after = await store.get_run(run_id)
        if after is not None and (after.epoch, after.state) == (run.epoch, run.state):
            return archived


async def iter_archive_lines(store: Store, run_ids: list[str], *, decrypted: bool = False) -> AsyncIterator[str]:
    """The lines of a file with these runs, which are oldest first.

    ``decrypted``: raises ``UndecryptableValue`` if something in them is encrypted.
    """
    yield to_json_line({"format": FORMAT, "version": VERSION})
    for run_id in run_ids:
        archived = await archive_run(store, run_id)
        if decrypted:
            check_archive_decrypted(archived)
        yield dump_run(archived)
    yield to_json_line({"runs": len(run_ids)})


# Writing and reading


def dump_run(archived: ArchivedRun) -> str:
    """The line of a run."""
    line: dict[str, Any] = {
        "run": write_fields(RUN_FIELDS, archived.run),
        "records": [write_fields(RECORD_FIELDS, record) for record in archived.records],
    }
    signals = [write_fields(SIGNAL_FIELDS, signal) for signal in archived.signals]
    for number, signal in enumerate(signals, 1):
        signal["id"] = number  # only their order matters in another store
    more: dict[str, Any] = {
        "attempts": [write_fields(ATTEMPT_FIELDS, attempt) for attempt in archived.attempts],
        "signals": signals,
        "approvals": [
            {**write_fields(_APPROVAL_FIELDS, one), "request": write_fields(_REQUEST_FIELDS, one.request)}
            for one in archived.approvals
        ],
        "live_events": [write_fields(_LIVE_EVENT_FIELDS, notice) for notice in archived.live_events],
        "links": [write_fields(_LINK_FIELDS, link) for link in archived.extras.links],
        "usage": write_fields(_USAGE_FIELDS, archived.usage.used) if archived.usage.used != Usage() else None,
        "budget": None if archived.usage.budget is None else write_fields(_BUDGET_FIELDS, archived.usage.budget),
        "extras": write_fields(_EXTRAS_FIELDS, archived.extras),
    }
    return to_json_line({**line, **{name: value for name, value in more.items() if value}})


def load_run(text: str, source: str) -> ArchivedRun:
    """The run in a line; ``source`` names the file and the line. Raises ``UsageError``."""
    content = _parse_object(text, source)
    row = read_fields(RUN_FIELDS, content.get("run"), source, "run")
    began_at = row.pop("clock_started_at", None)
    run = Run(
        key=0, owner=None, starter=None, clock_started_at=row["created_at"] if began_at is None else began_at, **row
    )
    none: dict[str, Any] = {name: [] for name in ("attempts", "signals", "approvals", "live_events", "links")}
    given = none | content
    usage, budget = given.get("usage"), given.get("budget")
    extras = read_fields(_EXTRAS_FIELDS, given.get("extras", {}), source, "extras")
    return ArchivedRun(
        run,
        tuple(Record(**one) for one in read_list(RECORD_FIELDS, given, source, "records")),
        tuple(Attempt(**one) for one in read_list(ATTEMPT_FIELDS, given, source, "attempts")),
        tuple(Signal(**one) for one in read_list(SIGNAL_FIELDS, given, source, "signals")),
        RunUsage(
            Usage() if usage is None else Usage(**read_fields(_USAGE_FIELDS, usage, source, "usage")),
            None if budget is None else BudgetLimits(**read_fields(_BUDGET_FIELDS, budget, source, "budget")),
        ),
        tuple(_load_approvals(run, given, source)),
        tuple(LiveEvent(**one) for one in read_list(_LIVE_EVENT_FIELDS, given, source, "live_events")),
        RunExtras(
            **extras, links=tuple(ArchivedLink(**one) for one in read_list(_LINK_FIELDS, given, source, "links"))
        ),
    )


def _load_approvals(run: Run, content: dict[str, Any], source: str) -> Iterator[Approval]:
    read = read_list(_APPROVAL_FIELDS, content, source, "approvals")
    for at, (one, raw) in enumerate(zip(read, content["approvals"], strict=True)):
        question = ApprovalRequest(
            **read_fields(_REQUEST_FIELDS, raw.get("request"), source, f"approvals[{at}].request")
        )
        yield Approval(run_id=run.id, workflow=run.workflow, request=question, **one)


def read_archive(file: IO[str], name: str) -> Iterator[ArchivedRun]:
    """The runs of a file, one after the other. Raises ``UsageError`` if it is no archive, or not a whole one."""
    _check_header(file.readline(), name)
    count = 0
    for number, line in enumerate(file, 2):
        source = f"{name}, line {number},"
        content = _parse_object(line, source)
        if "run" not in content:
            if content.get("runs") != count:
                raise UsageError(f"{source} says that there are {content.get('runs')} runs, and there are {count}.")
            return
        yield load_run(line, source)
        count += 1
    raise UsageError(f"{name} was cut off after {count} runs: its last line is missing. Export it again.")


def _check_header(line: str, name: str) -> None:
    try:
        head: Any = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or cast("dict[str, Any]", head).get("format") != FORMAT:
        raise UsageError(
            f'{name} is not an archive of runs: its first line has no "format": "{FORMAT}". {_EXPORT_HINT}'
        )
    version = cast("dict[str, Any]", head).get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f"{name}: 'version' in its first line must be a whole number, 1 or more. {_EXPORT_HINT}")
    if version > VERSION:
        raise UsageError(
            f"{name} was written by a newer Holdfast (archive version {version}; this one reads up to {VERSION}). "
            f"Import it with that one."
        )


def _parse_object(line: str, source: str) -> dict[str, Any]:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON ({error}). {_EXPORT_HINT}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{source} is not an object. {_EXPORT_HINT}")
    return cast("dict[str, Any]", content)
