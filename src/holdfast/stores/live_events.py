"""Live events: what steps in flight are doing, so that a reader can follow a run live.

A live event says that a step has begun, or contains a piece of a model's answer. It is written in the background,
nothing waits for it, and it is deleted when the outcome of its step is recorded: the record contains everything. The
live events of steps without an outcome (withdrawn, or in flight when the run was cancelled or its worker died for the
last time) stay until the run ends, and are deleted in the same transaction. So a run that has ended has none of them.
Events that are not tied to a step in flight stay after the run has ended: an approval was requested, a run was
reopened, and which steps of a class workflow were skipped, which is written with the end of the run. A fork starts with
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
"""An attempt of a step has begun, or a run that is awaited."""
TEXT = "text"
"""A piece of a model's answer. The data is the text, and ``number`` is how many characters of the stream came
before."""

APPROVAL_REQUESTED = "requested"
"""Written by ``RequestApproval``, at the position of the command that waits. The data is the id."""
APPROVAL_REMINDED = "reminded"
"""Written by ``RemindApproval``. The data is ``{"id", "assignee", "reminder_count"}``."""
APPROVAL_WITHDRAWN = "withdrawn"
"""Written by ``WithdrawApproval``. The data is the id."""
REOPENED = "reopened"
"""Written by ``ReopenRun``, at position -1. The data is the ``seq`` of the last record that stays, or -1. Later numbers
are used again."""

DELIVERED = "delivered"
"""A run by delivery was handed to a listener, at position -1. The stream is ``delivery``, the number is the epoch, and
the data is JSON that servers write and read."""
RETURNED = "returned"
"""A listener has released a run by delivery. The fields are those of ``DELIVERED``."""

SKIPPED = "skipped"
"""A class workflow has ended without running a step, at position -1. The stream is the epoch (a retry may run the step
after all), the number is the step's, and the data is ``{"name", "position"}``, with the position of the next
command."""

LASTING_KINDS = frozenset(
    {APPROVAL_REQUESTED, APPROVAL_REMINDED, APPROVAL_WITHDRAWN, REOPENED, DELIVERED, RETURNED, SKIPPED}
)
"""The kinds of events that stay. Events that stores write themselves have the stream ``""``, which no other writer
uses."""


@dataclass(frozen=True, slots=True)
class RunUpdates:
    """What is new in a run, all read at one moment."""

    run: Run
    records: Sequence[Record]
    """The records after the given ``seq``, oldest first."""
    live_events: Sequence[tuple[int, LiveEvent]]
    """The events after the given id, oldest first, with their ids."""
