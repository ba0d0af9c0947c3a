"""Approvals: questions that runs ask people.

A run commits ``RequestApproval`` for the command that waits, and may then leave memory. A person's answer is an
``AnswerApproval``. It goes into the run's mailbox under the command's position, like the end of an awaited run, and
wakes the run in the same transaction. So no answer is lost between requesting, parking, and answering, and the process
that asked need not live.

An approval is *open* until it is answered or withdrawn. It is answered once: a second answer is refused, with the name
of the first person. When a run ends, its open approvals are withdrawn in the same transaction; if it is reopened, its
next worker requests them again.

**An answer belongs to one question.** The position alone does not identify it: a deploy or a retry may put another
question there. So the id depends on the question, too: another text, other choices, another tool, or other arguments
make another id. The signal that brings an answer contains the id, and only the command that asked under this id takes
it.

A run asks one question at a position. Another request there replaces the first: that one is withdrawn, its answer, if
still in the mailbox, is removed, and later answers to it are refused. When a run is reopened, the answers after the
point to which it goes back are gone for good: those whose record is removed are not put back into the mailbox, and
those in the mailbox are removed. Their approvals are withdrawn. Approvals requested before that point keep their
answers. In both cases the rows still say who answered what, and a new request under the same id starts over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

ANSWER_PREFIX = "answer:"
"""The prefix of the name of a signal that brings an answer. No final state of a run begins with it."""


def make_answer_name(id: str) -> str:
    """The name of the signal that brings the answer to this approval."""
    return ANSWER_PREFIX + id


def is_answer(signal_name: str) -> bool:
    """Whether a signal with a position and this name is an answer, and not the end of a run."""
    return signal_name.startswith(ANSWER_PREFIX)


class ApprovalState(StrEnum):
    """The state of an approval."""

    OPEN = "open"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"
    """The run no longer waits for it: it expired, the run ended, a retry went back before it, or the run asks something
    else in its place."""


class ApprovalRequest(NamedTuple):
    """The question as people see it. It never changes while the approval is open."""

    question: str
    assignee: str = ""
    """The first person to ask; ``""``: anyone."""
    choices: tuple[str, ...] = ()
    """The possible answers, if not yes or no."""
    form_schema: bytes = b""
    """The JSON schema of the form to fill in, or of the arguments of the call to approve."""
    tool: str = ""
    """The tool whose call needs approval; ``""``: the workflow itself asks."""
    arguments: bytes = b""
    """The arguments of that call, as canonical JSON. The approval is for these and no others."""
    reason: str = ""
    """Why the call needs an approval, if the tool gives a reason."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The row of an approval."""

    id: str
    run_id: str
    workflow: str
    position: int
    request: ApprovalRequest
    state: ApprovalState
    requested_at: float
    expires_at: float | None
    """When the run continues without an answer, or asks the next person."""
    assignee: str
    """The person asked now, after all escalations."""
    reminder_count: int
    reminded_at: float | None
    answer: bytes | None = None
    """The payload of the answer's record: see ``services.approvals``."""
    answered_by: str = ""
    answered_at: float | None = None


class RequestApproval(NamedTuple):
    """Ask people a question for a held run.

    A repeat changes nothing, also from another worker that has taken the run over, and also after an answer. An
    approval that was withdrawn under an earlier epoch is opened anew: the new worker does not know of the withdrawal,
    or a retry has come back to the question. (Under the same epoch a run does not ask again. Such a request is a late
    repeat, and no command would wait for its answer.)

    Opening an approval withdraws all others of this run and position, under this epoch, and removes their answers from
    the mailbox. ``REFUSED`` when another run has this id.
    """

    key: int
    epoch: int
    position: int
    id: str
    """Derived from the run's seed, the position, and the question, so asking the same again has the same id."""
    request: ApprovalRequest
    at: float
    expires_at: float | None = None


class RemindApproval(NamedTuple):
    """Save that people were reminded of an open approval of a held run, or that it has another assignee.

    ``REFUSED`` when it is no longer open, ``UNKNOWN_APPROVAL`` when this run has no such approval.
    """

    key: int
    epoch: int
    id: str
    reminder_count: int
    """The number of reminders including this one, so a repeat counts once."""
    assignee: str
    at: float
    expires_at: float | None = None


class WithdrawApproval(NamedTuple):
    """A held run no longer waits for an answer. ``REFUSED`` when there is one: the answer counts.

    A repeat is ``DONE``. ``UNKNOWN_APPROVAL`` when this run has no such approval.
    """

    key: int
    epoch: int
    id: str
    at: float


class AnswerApproval(NamedTuple):
    """Answer an open approval. Its run gets the answer in its mailbox, under its position, and is claimable at once.

    ``DUPLICATE`` when it was answered before, ``ENDED`` when it was withdrawn or its run has ended,
    ``UNKNOWN_APPROVAL`` when there is none. A paused run gets the answer and stays paused. The signal's name is
    ``make_answer_name(id)``.
    """

    id: str
    payload: bytes
    answered_by: str
    at: float


class ApprovalFilter(NamedTuple):
    """Which approvals to list; every field that is set must match."""

    run_id: str | None = None
    only_open: bool = True
    workflow: str | None = None
    assignee: str | None = None
    id_prefix: str | None = None
    only_closed: bool = False
    """Only approvals that take no answer any more, newest first; ``only_open`` is then ignored."""
    after: tuple[float, str] | None = None
    """Only approvals that come after the one with this time and id in the list. If that one is gone, or was requested
    again, approvals requested at the same time may be listed once more."""

    def matches(self, approval: Approval) -> bool:
        """Whether an approval passes this filter."""
        return (
            self._matches_state(approval.state)
            and (self.run_id is None or approval.run_id == self.run_id)
            and (self.workflow is None or approval.workflow == self.workflow)
            and (self.assignee is None or approval.assignee == self.assignee)
            and (self.id_prefix is None or approval.id.startswith(self.id_prefix))
        )

    def _matches_state(self, state: ApprovalState) -> bool:
        is_open = state is ApprovalState.OPEN
        return not is_open if self.only_closed else is_open or not self.only_open


def select_approvals(approvals: Iterable[Approval], where: ApprovalFilter, limit: int) -> list[Approval]:
    """The approvals that match, ordered by the time of the request; equal times keep their order."""
    ordered = sorted(approvals, key=lambda approval: approval.requested_at)
    if where.only_closed:
        ordered.reverse()
    if where.after is not None:
        cursors = [(approval.requested_at, approval.id) for approval in ordered]
        if where.after in cursors:
            start = cursors.index(where.after) + 1
        else:
            after = where.after[0]
            start = sum(at > after if where.only_closed else at < after for at, _ in cursors)
        ordered = ordered[start:]
    return [approval for approval in ordered if where.matches(approval)][:limit]
