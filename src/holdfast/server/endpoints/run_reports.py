"""A run's story: all that is known of it, for people who look at it, and its conversation and family."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from holdfast.core.states import RunState
from holdfast.reports.conversations import read_conversation, said_as_json
from holdfast.reports.report_reader import PAGE, read_entry, read_story
from holdfast.reports.run_tree import Member, read_family
from holdfast.reports.serialization import with_values
from holdfast.reports.types import Entry, Story
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import LARGEST_INT, Limit, Spent
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import Api, Body
from holdfast.services.wire_values import VALUES

api = Api("runs")


class StoryQuery(Body):
    """Which part of the journal, and how much of it."""

    after: Annotated[
        int | None, Field(ge=-1, le=LARGEST_INT, description="Records behind the one with this `seq`.")
    ] = None
    limit: Limit = PAGE
    values: Annotated[
        Literal["brief", "full"],
        Field(description="`brief`: of values over 4 KiB, only the beginning, as text; the record is `cut`."),
    ] = "brief"


@api("GET", "/v1/runs/{id}/story", scope=Scope.READ, headers=(VALUES,))
async def get_story(call: Call, id: str, query: StoryQuery) -> Story:
    """All that is known of a run, with a page of its journal.

    `told` says in words what it did and what that cost, `advice` what to do now. If there is `more`, ask again with
    the `seq` of the last record as `after`.
    """
    after = -1 if query.after is None else query.after
    story = await read_story(await call.store(), id, after, query.limit, brief=query.values == "brief")
    size = sum(entry.size for entry in story.journal if not entry.cut) + (story.output_size or 0)
    return await call.off_loop(size, lambda: with_values(story, call.out))


@api("GET", "/v1/runs/{id}/records/{seq}", scope=Scope.READ, headers=(VALUES,))
async def get_record(call: Call, id: str, seq: str) -> Entry:
    """One record of a run's journal, whole, however large it is."""
    is_number = seq.isascii() and seq.isdigit() and len(seq) <= 15
    entry = await read_entry(await call.store(), id, int(seq) if is_number else LARGEST_INT)
    if entry is None:
        raise Problem(
            404,
            "record-not-found",
            "The run has no such record",
            f"Run {id!r} has no record {seq[:20]!r}: its story tells the `seq` of those that it has. A retry may have "
            f"taken it back.",
            run_id=id,
        )
    return await call.off_loop(entry.size, lambda: with_values(entry, call.out))


class Conversation(BaseModel):
    """What was said, in its order."""

    items: Annotated[
        list[dict[str, Any]],
        Field(
            description="Each with a `role` (`system`, `user`, `model`, `tool`, `correction`, `summary` or `note`), "
            "the `number` of its record, and whether it was said `before_this_run`; the rest depends on the role."
        ),
    ]


@api("GET", "/v1/runs/{id}/conversation", scope=Scope.READ)
async def get_conversation(call: Call, id: str) -> Conversation:
    """What was said in an agent's run so far; empty for other runs."""
    said = await read_conversation(await call.store(), id)
    return Conversation(items=[said_as_json(one) for one in said])


class FamilyMember(BaseModel):
    """A run in a family."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    forked_from: str | None
    created_at: datetime
    finished_at: datetime | None
    usage: Annotated[Spent | None, Field(description="What it has used, with the runs below it; null: nothing.")]
    stalled: Annotated[str | None, Field(description="Why it does not go on, if it does not.")]

    @classmethod
    def of(cls, member: Member) -> FamilyMember:
        """As it is told."""
        known = {name: getattr(member, name) for name in cls.model_fields if name != "usage"}
        return cls(**known, usage=None if member.usage is None else Spent.of(member.usage))


class FamilyTree(BaseModel):
    """The tree of runs that a run is in."""

    root: Annotated[str, Field(description="The topmost run.")]
    items: list[FamilyMember]
    more: Annotated[bool, Field(description="There are runs that are not told.")]


@api("GET", "/v1/runs/{id}/family", scope=Scope.READ)
async def get_family(call: Call, id: str) -> FamilyTree:
    """The tree of runs that a run is in, from its topmost ancestor down, at most 500 of them."""
    family = await read_family(await call.store(), id)
    return FamilyTree(root=family.root, items=[FamilyMember.of(one) for one in family], more=family.more)
