"""Questions that runs ask people, as the stores keep them.

A run that asks hands in ``RequestApproval`` for the command that waits, and may leave memory. Whoever answers hands in
``AnswerApproval``; the answer goes into the run's mailbox under the command's position, like the end of a run that it
waits for, and wakes it in the same transaction. So none can get lost between asking, parking and answering, and the
process that asked need not live.

A row is *open* until it is answered or withdrawn, and is answered once: who comes second is told who was first. When a
run ends, its open questions are withdrawn in the same transaction; if it is reopened, whoever takes it up asks again.

**An answer belongs to one question.** The position alone does not tell: a deploy, or a retry, may put another question
there. So the id stands for what is asked, too: a question with another text, other choices, another tool or other
arguments has another id. The signal that brings an answer names the id, and only the command that asked under it takes
it.

At one position a run asks one question. Whoever asks another one there takes the former one's place: it is withdrawn,
and its answer, if that is still in the mailbox, is removed from it. Whoever answers it after that is told so. And when
a run is reopened, answers that the retry takes back are gone for good: those whose record is removed are not put back
into the mailbox, and those in the mailbox for a command behind the place that the run goes back to are removed from it.
Their rows are withdrawn. What was asked before that place keeps its answer. In both cases the rows still tell who had
answered what, and whoever asks again under their id asks anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

ANSWER_PREFIX = "answer:"
"""What the name of the signal that an answer comes as begins with. No state in which a run ends does."""


def make_answer_name(id: str) -> str:
    """The name of the signal that brings the answer to this question."""
    return ANSWER_PREFIX + id


def is_answer(signal_name: str) -> bool:
    """Whether a signal that has a position, and this name, is an answer, and not the end of a run."""
    return signal_name.startswith(ANSWER_PREFIX)


class ApprovalState(StrEnum):
    """What has become of a question."""

    OPEN = "open"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"
    """The run does not wait for it any more: its time was over, or the run has ended, or a retry has gone back, or
    it asks something else in its place."""


class ApprovalRequest(NamedTuple):
    """What is asked, all of it as people are shown it. It never changes while it is open."""

    question: str
    assignee: str = ""
    """Who is asked first; ``""``: whoever sees it."""
    choices: tuple[str, ...] = ()
    """What can be answered, if it is not yes or no."""
    form_schema: bytes = b""
    """The JSON schema of the answer, if a form is to be filled in; of the arguments, if a call is to be approved."""
    tool: str = ""
    """The tool whose call is to be approved; ``""``: the workflow asks for itself."""
    arguments: bytes = b""
    """The arguments of that call, as canonical JSON: the approval is for these and no others."""
    reason: str = ""
    """Why the call needs an approval, if the tool says so."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A row: a question, and what has become of it."""

    id: str
    run_id: str
    workflow: str
    position: int
    request: ApprovalRequest
    state: ApprovalState
    requested_at: float
    expires_at: float | None
    """When the run goes on without an answer, or asks the next person."""
    assignee: str
    """Who is asked now, after all escalations."""
    reminder_count: int
    """How often people were reminded."""
    reminded_at: float | None
    answer: bytes | None = None
    """The record's payload, once it is answered: see ``services.approvals``."""
    answered_by: str = ""
    answered_at: float | None = None


class RequestApproval(NamedTuple):
    """Put a question to people for a held run.

    Repeated, also by another worker that has taken the run over, it changes nothing, also if the question has been
    answered meanwhile. One that was withdrawn under an earlier epoch is open again, as if it had never been asked:
    whoever has taken the run over does not know of that, or has come back to it by a retry. (Under the same epoch
    nobody asks again; it is a repeat that reaches the store late, and nobody would wait for the answer.)

    When it opens a question, it withdraws all others of this run and position, under this epoch, and removes their
    answers from the mailbox. ``REFUSED`` when another run has this id.
    """

    key: int
    epoch: int
    position: int
    id: str
    """Drawn from the run's seed, the position and what is asked: whoever asks the same again does so under the same."""
    request: ApprovalRequest
    at: float
    expires_at: float | None = None


class RemindApproval(NamedTuple):
    """Note that people were reminded of an open question of a held run, or that somebody else is asked from now on.

    ``REFUSED`` when it is not open any more, ``UNKNOWN_APPROVAL`` when this run has asked no such question.
    """

    key: int
    epoch: int
    id: str
    reminder_count: int
    """How many there have been with this one: repeating it counts once."""
    assignee: str
    at: float
    expires_at: float | None = None


class WithdrawApproval(NamedTuple):
    """A held run does not wait for an answer any more. ``REFUSED`` when it has been answered: the answer counts.

    Repeated, it is ``DONE``. ``UNKNOWN_APPROVAL`` when this run has asked no such question.
    """

    key: int
    epoch: int
    id: str
    at: float


class AnswerApproval(NamedTuple):
    """Answer an open question. Its run has the answer in its mailbox, under its position, and is claimable at once.

    ``DUPLICATE`` when it was answered before, ``ENDED`` when it was withdrawn or its run has ended,
    ``UNKNOWN_APPROVAL`` when there is none. A paused run has the answer, and stays paused. The signal's name is
    ``make_answer_name(id)``.
    """

    id: str
    payload: bytes
    answered_by: str
    at: float


class ApprovalFilter(NamedTuple):
    """Which approvals to list; what is given must match."""

    run_id: str | None = None
    only_open: bool = True
    workflow: str | None = None
    assignee: str | None = None
    id_prefix: str | None = None
    """The id begins with exactly this."""
    only_closed: bool = False
    """Only those that take no answer any more, the one that was asked last first; ``only_open`` is then without
    meaning."""
    after: tuple[float, str] | None = None
    """Only those that are listed after the one with this id, which was asked at this time, whatever became of it
    since. If it is gone, or was asked again, those that were asked at the same time may be listed once more."""

    def matches(self, approval: Approval) -> bool:
        """Whether this one is among them."""
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
    """The approvals that match, ordered by when they were asked; those asked at the same time, as they stand."""
    ordered = sorted(approvals, key=lambda one: one.requested_at)
    if where.only_closed:
        ordered.reverse()
    if where.after is not None:
        at, id = where.after
        place = next((n for n, one in enumerate(ordered, 1) if (one.requested_at, one.id) == (at, id)), None)
        if place is None:
            place = sum(one.requested_at > at if where.only_closed else one.requested_at < at for one in ordered)
        ordered = ordered[place:]
    return [one for one in ordered if where.matches(one)][:limit]
