"""The report of a run: everything known about it, for display; its conversation and its run tree."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from holdfast.reports.conversation_reader import read_conversation
from holdfast.reports.conversations import message_to_json
from holdfast.reports.report_reader import PAGE_SIZE, read_entry, read_report
from holdfast.reports.run_tree import RunTree, read_run_tree
from holdfast.reports.types import JournalEntry, RunReport
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import MAX_INT, PageSize
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.problems import Problem
from holdfast.services.wire_values import VALUES_HEADER

router = Router("runs")


class RunReportQuery(RequestModel):
    """Which part of the journal, and how much of each value."""

    after: Annotated[int | None, Field(ge=-1, le=MAX_INT, description="Records after the one with this `seq`.")] = None
    limit: PageSize = PAGE_SIZE
    values: Annotated[
        Literal["brief", "full"],
        Field(description="`brief`: only the beginning of values over 4 KiB, as text; the record has `is_truncated`."),
    ] = "brief"


@router("GET", "/v1/runs/{id}/report", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_run_report(call: Call, id: str, query: RunReportQuery) -> RunReport:
    """Everything known about a run, with a page of its journal.

    `summary` describes what it did and what that cost, `advice` what to do next. If `has_more`, ask again with
    the `seq` of the last record as `after`.
    """
    after = -1 if query.after is None else query.after
    report = await read_report(call.store, id, after, query.limit, brief=query.values == "brief")
    call.value_bytes += report.output_size or 0
    call.value_bytes += sum(entry.size for entry in report.journal if not entry.is_truncated)
    return report


@router("GET", "/v1/runs/{id}/records/{seq}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_record(call: Call, id: str, seq: str) -> JournalEntry:
    """One record of a run's journal, not truncated, however large it is."""
    is_number = seq.isascii() and seq.isdigit() and len(seq) <= 15
    entry = await read_entry(call.store, id, int(seq) if is_number else MAX_INT)
    if entry is None:
        raise Problem(
            404,
            "record-not-found",
            "The run has no such record",
            f"Run {id!r} has no record {seq[:20]!r}: its report lists the `seq` of each record. A retry may have "
            f"taken it back.",
            run_id=id,
        )
    call.value_bytes += entry.size
    return entry


class Conversation(BaseModel):
    """The messages of a conversation, in their order."""

    items: Annotated[
        list[dict[str, Any]],
        Field(
            description="Each with a `role` (`system`, `user`, `model`, `tool`, `correction`, `summary` or `note`), "
            "the `number` of its record, and whether it is from before this run (`is_history`). The rest "
            "depends on the role."
        ),
    ]


@router("GET", "/v1/runs/{id}/conversation", scope=Scope.READ)
async def get_conversation(call: Call, id: str) -> Conversation:
    """The conversation of an agent's run so far; empty for other runs."""
    return Conversation(items=[message_to_json(message) for message in await read_conversation(call.store, id)])


@router("GET", "/v1/runs/{id}/tree", scope=Scope.READ)
async def get_run_tree(call: Call, id: str) -> RunTree:
    """The run tree that a run is in, from its topmost ancestor down, at most 500 runs."""
    return await read_run_tree(call.store, id)
