"""The report of a run: all that is known of it, for people who look at it; its conversation and its tree of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from holdfast.core.states import RunState
from holdfast.reports.conversations import message_to_json, read_conversation
from holdfast.reports.report_reader import PAGE_SIZE, read_entry, read_report
from holdfast.reports.run_tree import RunTreeNode, read_run_tree
from holdfast.reports.serialization import map_user_values
from holdfast.reports.types import JournalEntry, RunReport
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import MAX_INT, PageSize, UsageInfo
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import RequestModel, Router
from holdfast.services.wire_values import VALUES_HEADER

router = Router("runs")


class RunReportQuery(RequestModel):
    """Which part of the journal, and how much of it."""

    after: Annotated[int | None, Field(ge=-1, le=MAX_INT, description="Records behind the one with this `seq`.")] = None
    limit: PageSize = PAGE_SIZE
    values: Annotated[
        Literal["brief", "full"],
        Field(description="`brief`: of values over 4 KiB, only the beginning, as text; the record has `is_truncated`."),
    ] = "brief"


@router("GET", "/v1/runs/{id}/report", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_run_report(call: Call, id: str, query: RunReportQuery) -> RunReport:
    """All that is known of a run, with a page of its journal.

    `summary` describes what it did and what that cost, `advice` what to do next. If `has_more`, ask again with
    the `seq` of the last record as `after`.
    """
    after = -1 if query.after is None else query.after
    story = await read_report(await call.store(), id, after, query.limit, brief=query.values == "brief")
    size = sum(entry.size for entry in story.journal if not entry.is_truncated) + (story.output_size or 0)
    return await call.run_body_work(size, lambda: map_user_values(story, call.encode_value))


@router("GET", "/v1/runs/{id}/records/{seq}", scope=Scope.READ, headers=(VALUES_HEADER,))
async def get_record(call: Call, id: str, seq: str) -> JournalEntry:
    """One record of a run's journal, whole, however large it is."""
    is_number = seq.isascii() and seq.isdigit() and len(seq) <= 15
    entry = await read_entry(await call.store(), id, int(seq) if is_number else MAX_INT)
    if entry is None:
        raise Problem(
            404,
            "record-not-found",
            "The run has no such record",
            f"Run {id!r} has no record {seq[:20]!r}: its report lists the `seq` of each record. A retry may have "
            f"taken it back.",
            run_id=id,
        )
    return await call.run_body_work(entry.size, lambda: map_user_values(entry, call.encode_value))


class Conversation(BaseModel):
    """What was said, in its order."""

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
    """What was said in an agent's run so far; empty for other runs."""
    said = await read_conversation(await call.store(), id)
    return Conversation(items=[message_to_json(one) for one in said])


class RunTreeMember(BaseModel):
    """A run in a tree of runs."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    forked_from: str | None
    created_at: datetime
    finished_at: datetime | None
    usage: Annotated[UsageInfo | None, Field(description="What it has used, with the runs below it; null: nothing.")]
    stall_reason: Annotated[str | None, Field(description="Why it does not go on, if it does not.")]

    @classmethod
    def from_node(cls, node: RunTreeNode) -> RunTreeMember:
        """As it is told."""
        known = {name: getattr(node, name) for name in cls.model_fields if name != "usage"}
        return cls(**known, usage=None if node.usage is None else UsageInfo.from_usage(node.usage))


class RunTreeInfo(BaseModel):
    """The tree of runs that a run is in."""

    root: Annotated[str, Field(description="The topmost run.")]
    items: list[RunTreeMember]
    has_more: Annotated[bool, Field(description="There are runs that are not told.")]


@router("GET", "/v1/runs/{id}/tree", scope=Scope.READ)
async def get_run_tree(call: Call, id: str) -> RunTreeInfo:
    """The tree of runs that a run is in, from its topmost ancestor down, at most 500 of them."""
    family = await read_run_tree(await call.store(), id)
    return RunTreeInfo(
        root=family.root, items=[RunTreeMember.from_node(one) for one in family], has_more=family.has_more
    )
