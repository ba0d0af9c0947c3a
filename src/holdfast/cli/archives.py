"""Many runs in a file, with all that belongs to them: what ``holdfast export --all`` writes, and ``import`` reads.

JSON lines. The first says what the file is, the last how many runs there are, so that a file that was cut off is
noticed; each of the others is a run, with its fields as in a journal's file (see ``services.journal_files``). A run
comes before those that it has started. **Recorded values are in the file as the store hands them out**: sealed or
opened.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from typing import IO, Any, cast

from holdfast.admission.usage import Limits, Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.errors import UsageError
from holdfast.services.journal_files import to_json
from holdfast.services.json_fields import (
    ATTEMPT_FIELDS,
    BYTES,
    FLAG,
    NAMES,
    RECORD_FIELDS,
    RUN_FIELDS,
    SECONDS,
    SIGNAL_FIELDS,
    TEXT,
    WHOLE,
    WHOLES,
    Fields,
    Form,
    is_nothing,
    read_all,
    read_fields,
    write_fields,
)
from holdfast.services.lookup import find_run
from holdfast.stores.approvals import Approval, ApprovalFilter, ApprovalState, Question
from holdfast.stores.archives import Archived, ArchivedLink, Belongings
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.encrypted import check_that_it_is_open
from holdfast.stores.live_events import STAYING
from holdfast.stores.operations import Notice, Run

FORMAT = "holdfast-archive"
VERSION = 1
"""Rises when an older Holdfast would misread the file. A field more is no reason: those unknown are passed over."""

_HOW = "`holdfast export --all` writes such files."
_MOST = 100_000
"""Questions and notices of one run."""

_SUMS = tuple(one.name for one in fields(Usage))
_APPROVAL: Fields = {
    "id": TEXT,
    "position": WHOLE,
    "state": Form(f"one of {', '.join(ApprovalState)}", ApprovalState, str),
    "asked_at": SECONDS,
    "expires_at": SECONDS.or_none(),
    "asked_of": TEXT,
    "reminders": WHOLE,
    "reminded_at": SECONDS.or_none(),
    "answer": BYTES.or_none(),
    "answered_by": TEXT,
    "answered_at": SECONDS.or_none(),
}
_QUESTION: Fields = {
    "text": TEXT,
    "asked_of": TEXT,
    "choices": NAMES,
    "form": BYTES,
    "tool": TEXT,
    "arguments": BYTES,
    "reason": TEXT,
}
_NOTICE: Fields = {"position": WHOLE, "part": TEXT, "number": WHOLE, "kind": TEXT, "data": BYTES, "at": SECONDS}
_LINK: Fields = {"position": WHOLE, "child": TEXT, "is_late": FLAG.unless(is_nothing)}
_USAGE: Fields = {name: SECONDS if name == "seconds" else WHOLE for name in _SUMS}
_BUDGET: Fields = {name: SECONDS.or_none() for name in Limits._fields}
_BELONGINGS: Fields = {
    "is_generated": FLAG.unless(is_nothing),
    "is_unclaimed": FLAG.unless(is_nothing),
    "signal_keys": NAMES.unless(is_nothing),
    "short": WHOLES.unless(is_nothing),
}


# From a store


async def archive_run(store: Store, run_id: str) -> Archived:
    """A run and all that belongs to it, as it is now. Raises ``RunNotFound``."""
    while True:
        run = await find_run(store, run_id)
        [history] = await store.histories([run.key])
        feed = await store.feed(run_id, len(history.records), 0, _MOST)
        archived = Archived(
            replace(run, key=0, owner=None, starter=None),
            tuple(history.records),
            tuple(attempt for _, attempt in sorted(history.attempts.items())),
            tuple(history.signals),
            (await store.usages([run_id])).get(run_id, RunUsage()),
            tuple(await store.approvals(ApprovalFilter(run_id=run_id, only_open=False), _MOST)),
            () if feed is None else tuple(notice for _, notice in feed.notices if notice.kind in STAYING),
            await store.belongings(run.key),
        )
        # Somebody who goes on with the run between two readings would leave something out.
        after = await store.get(run_id)
        if after is not None and (after.epoch, after.state) == (run.epoch, run.state):
            return archived


async def lines(store: Store, run_ids: list[str], *, opened: bool = False) -> AsyncIterator[str]:
    """The lines of a file with these runs, which are in the order of their creation.

    ``opened``: raises ``UndecryptableValue`` if something in them is sealed.
    """
    yield to_json({"format": FORMAT, "version": VERSION})
    for run_id in run_ids:
        archived = await archive_run(store, run_id)
        if opened:
            check_that_it_is_open(archived)
        yield dumps(archived)
    yield to_json({"runs": len(run_ids)})


# Writing and reading


def dumps(archived: Archived) -> str:
    """A line."""
    told: dict[str, Any] = {
        "run": write_fields(RUN_FIELDS, archived.run),
        "records": [write_fields(RECORD_FIELDS, record) for record in archived.records],
    }
    signals = [write_fields(SIGNAL_FIELDS, signal) for signal in archived.signals]
    for number, signal in enumerate(signals, 1):
        signal["id"] = number  # only their order means something elsewhere
    more: dict[str, Any] = {
        "attempts": [write_fields(ATTEMPT_FIELDS, attempt) for attempt in archived.attempts],
        "signals": signals,
        "approvals": [
            {**write_fields(_APPROVAL, one), "question": write_fields(_QUESTION, one.question)}
            for one in archived.approvals
        ],
        "notices": [write_fields(_NOTICE, notice) for notice in archived.notices],
        "links": [write_fields(_LINK, link) for link in archived.belongings.links],
        "usage": write_fields(_USAGE, archived.usage.used) if archived.usage.used != Usage() else None,
        "budget": None if archived.usage.budget is None else write_fields(_BUDGET, archived.usage.budget),
        "belongings": write_fields(_BELONGINGS, archived.belongings),
    }
    return to_json({**told, **{name: value for name, value in more.items() if value}})


def loads(text: str, source: str) -> Archived:
    """The run in a line; ``source`` names the file and the line. Raises ``UsageError``."""
    content = _object(text, source)
    row = read_fields(RUN_FIELDS, content.get("run"), source, "run")
    began_at = row.pop("began_at", None)
    run = Run(key=0, owner=None, starter=None, began_at=row["created_at"] if began_at is None else began_at, **row)
    none: dict[str, Any] = {name: [] for name in ("attempts", "signals", "approvals", "notices", "links")}
    given = none | content
    usage, budget = given.get("usage"), given.get("budget")
    told = read_fields(_BELONGINGS, given.get("belongings", {}), source, "belongings")
    return Archived(
        run,
        tuple(Record(**one) for one in read_all(RECORD_FIELDS, given, source, "records")),
        tuple(Attempt(**one) for one in read_all(ATTEMPT_FIELDS, given, source, "attempts")),
        tuple(Signal(**one) for one in read_all(SIGNAL_FIELDS, given, source, "signals")),
        RunUsage(
            Usage() if usage is None else Usage(**read_fields(_USAGE, usage, source, "usage")),
            None if budget is None else Limits(**read_fields(_BUDGET, budget, source, "budget")),
        ),
        tuple(_approvals(run, given, source)),
        tuple(Notice(**one) for one in read_all(_NOTICE, given, source, "notices")),
        Belongings(
            **told,
            links=tuple(ArchivedLink(**one) for one in read_all(_LINK, given, source, "links")),
        ),
    )


def _approvals(run: Run, given: dict[str, Any], source: str) -> Iterator[Approval]:
    read = read_all(_APPROVAL, given, source, "approvals")
    for at, (one, raw) in enumerate(zip(read, given["approvals"], strict=True)):
        question = Question(**read_fields(_QUESTION, raw.get("question"), source, f"approvals[{at}].question"))
        yield Approval(run_id=run.id, workflow=run.workflow, question=question, **one)


def read_archive(file: IO[str], name: str) -> Iterator[Archived]:
    """The runs of a file, one after the other. Raises ``UsageError`` if it is no archive, or not a whole one."""
    _check_head(file.readline(), name)
    count = 0
    for number, line in enumerate(file, 2):
        source = f"{name}, line {number},"
        content = _object(line, source)
        if "run" not in content:
            if content.get("runs") != count:
                raise UsageError(f"{source} says that there are {content.get('runs')} runs, and there are {count}.")
            return
        yield loads(line, source)
        count += 1
    raise UsageError(f"{name} was cut off behind {count} runs: its last line is missing. Export it again.")


def _check_head(line: str, name: str) -> None:
    try:
        head: Any = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or cast("dict[str, Any]", head).get("format") != FORMAT:
        raise UsageError(f'{name} is no archive of runs: its first line has no "format": "{FORMAT}". {_HOW}')
    version = cast("dict[str, Any]", head).get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f"{name}: 'version' in its first line must be a whole number, 1 or more. {_HOW}")
    if version > VERSION:
        raise UsageError(
            f"{name} was written by a newer Holdfast (archive version {version}; this one reads up to {VERSION}). "
            f"Import it with that one."
        )


def _object(line: str, source: str) -> dict[str, Any]:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON ({error}). {_HOW}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{source} is no object. {_HOW}")
    return cast("dict[str, Any]", content)
