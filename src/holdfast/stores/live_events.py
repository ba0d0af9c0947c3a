"""Live events: what is known about steps in flight, so that a reader can follow a run live.

A live event says that a step has begun, or contains a piece of a model's answer. It is written in the background,
nothing waits for it, and it is deleted when the outcome of its step is recorded: the record contains it all. The live
events of steps without an outcome (withdrawn, or in flight when the run was cancelled or its worker died for the last
time) stay until the run ends, and are deleted in the same transaction. So a run that has ended has none of them. Events
that are not tied to a step in flight stay, also when the run has ended: that an approval was requested, that a run was
reopened, and which steps of a class workflow were skipped, which is written with the end of the run. A fork begins with
none.

Records and live events are two streams, each with rising numbers. A reader that remembers how far it has come in each
(see ``Store.get_run_updates``) misses nothing and sees nothing twice. The numbers of live events have gaps, and a
reader that comes late does not find those of steps that have ended. A live event may itself arrive late, because a
commit was repeated: a reader that has seen the record of its position, now or in an earlier read, must ignore it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.records import Record
from holdfast.stores.operations import LiveEvent, Run

STARTED = "started"
"""The kind of the event that an attempt of a step has begun, or a run that is waited for."""
TEXT = "text"
"""The kind of the notice that hands on a piece of a model's answer: its data is the text, its ``number`` how many
characters of the part came before it."""

APPROVAL_REQUESTED = "requested"
"""The kind of the notice that ``RequestApproval`` leaves, at the position of the command that waits; its data is the
id."""
APPROVAL_REMINDED = "reminded"
"""The same for ``RemindApproval``; its data is ``{"id", "assignee", "reminder_count"}``."""
APPROVAL_WITHDRAWN = "withdrawn"
"""The same for ``WithdrawApproval``; its data is the id."""
REOPENED = "reopened"
"""The kind of the notice that ``ReopenRun`` leaves, at position -1: its data is the ``seq`` of the last record that was
kept, or -1. The numbers of records behind it will be used again."""

DELIVERED = "delivered"
"""The kind of the notice that a run by delivery was handed to somebody, at position -1; its part is ``delivery``, its
number the epoch; its data is JSON that servers make and read."""
RETURNED = "returned"
"""The same for one that its holder has given back."""

SKIPPED = "skipped"
"""The kind of the notice that a class workflow has ended without running a step, at position -1. Its part is the epoch
(a retry may run the step after all), its number the step's; its data is ``{"name", "position"}``, the position of the
next command."""

LASTING_KINDS = frozenset(
    {APPROVAL_REQUESTED, APPROVAL_REMINDED, APPROVAL_WITHDRAWN, REOPENED, DELIVERED, RETURNED, SKIPPED}
)
"""The kinds of notices that stay. Those that stores leave themselves have the part ``""``, in which nobody else tells
anything."""


@dataclass(frozen=True, slots=True)
class RunUpdates:
    """What is new of a run, all read at one moment."""

    run: Run
    records: Sequence[Record]
    """Those behind the given ``seq``, oldest first."""
    live_events: Sequence[tuple[int, LiveEvent]]
    """Those behind the given id, oldest first, with their ids."""
