"""Who waits for whose end: the checker's own book of links, and what must be true of every end that is told.

A link is *armed* while the end is to come, *told* when it has been put into the mailbox of the run that waits, *late*
when there was nobody to tell. So an end is told once for each time that a link was armed, with the outcome that the row
has at that moment.
"""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.records import Kind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import is_answer
from holdfast.stores.operations import AppendRecord, Link, ParkRun, Run, Started

if TYPE_CHECKING:
    from simulation.invariants import Checker, RunModel

Place = tuple[int, int]
"""The key of a run that waits, and the position of its command."""


class Told(Enum):
    """Whether an end was told."""

    ARMED = "armed"
    TOLD = "told"
    LATE = "late"


class Tie(NamedTuple):
    """A link: to which run, and whether its end was told."""

    child: int
    told: Told


class Family:
    """Links, and the ends that go through them."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.ties: dict[Place, Tie] = {}
        self.held_back: dict[Place, None] = {}
        """Places of links that a retry has removed."""

    def _fail(self, invariant: str, what: str) -> None:
        self._checker.fail(invariant, what)

    def asked(self, link: Link, answer: Started) -> None:
        """A held run has asked for another one, and was answered."""
        if not link.awaited:
            return
        place, child = (link.parent, link.position), answer.run
        known = self.ties.get(place)
        if known is not None and known.child != child.key:  # of a command that a retry has taken back
            self.drop_end(place)
            known = None
        goes_on = not self._checker.runs[child.key].row.state.is_terminal
        expected = goes_on or (known is not None and known.told is not Told.LATE)
        if answer.linked is not expected:
            self._fail(
                "who waits for a run is linked to its end, or told how it ended",
                f"{self._name(place)} asked for {child.id} ({child.state.value}), linked: {answer.linked}",
            )
        if known is None or known.told is Told.LATE:
            self.ties[place] = Tie(child.key, Told.ARMED if goes_on else Told.LATE)

    def is_awaited(self, key: int) -> bool:
        """Whether an unfinished run is to be told of this one's end."""
        waiting = [place[0] for place, tie in self.ties.items() if tie == (key, Told.ARMED)]
        return any(not self._checker.runs[one].row.state.is_terminal for one in waiting)

    def ended(self, row: Run) -> None:
        """A run has come to its end: whoever waits is told, in the same transaction."""
        for place, tie in self.ties.items():
            if tie == (row.key, Told.ARMED):
                waiting = self._checker.runs[place[0]]
                self.ties[place] = Tie(row.key, Told.LATE if waiting.row.state.is_terminal else Told.TOLD)
                if not waiting.row.state.is_terminal:
                    self._check_told(place, waiting, row)

    def _check_told(self, place: Place, waiting: RunModel, row: Run) -> None:
        database = self._checker.database
        which = f"the end of {row.id} ({row.state.value}) for {self._name(place)}"
        mailbox = database._mailboxes.get(place[0], {})
        new = [one for one in mailbox.values() if one.position == place[1] and one.id not in waiting.mailbox]
        if len(new) != 1:
            self._fail("the end of a run reaches whoever waits, once", f"{which}: {len(new)} in the mailbox")
            return
        payload = row.output if row.output is not None else row.error if row.error is not None else b"null"
        if (new[0].name, new[0].payload) != (row.state, payload):
            self._fail("the end of a run is told as it is", f"{which} is told as {new[0].name}")
        waiting.mailbox[new[0].id] = new[0]
        before, after = waiting.row, database._runs[place[0]]
        if before.state is RunState.WAITING and before.paused_at is None:
            if after != replace(before, wake_at=database.now()):
                self._fail("an end wakes whoever is parked for it", f"{which}: it wakes at {after.wake_at}")
            waiting.row = after
        self._checker.world.occasion("told", None, before.id)

    def recorded(self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], told: str) -> None:
        """A record of kind ``CHILD`` was appended."""
        place, record = (op.key, op.record.position), op.record
        outcome = _outcome(record.ok, record.payload or b"null")
        asked_for = self._checker.commands[model.row.id, record.position][2].split()
        child = self._checker.by_id.get(asked_for[0])
        if outcome is not None and child is not None and asked_for[1:] not in ([], [child.row.digest.hex()]):
            self._fail("a result is that of the inputs that were asked for", told)
        if op.consume is not None:
            signal = model.mailbox.get(op.consume)
            if signal is None or signal.position != record.position:
                self._fail("an end is consumed once, by the command that waits for it", told)
                return
            if outcome != (signal.name, signal.payload):
                self._fail("an end is recorded as it was told", f"{told}: {signal}")
            tie = self.ties.get(place)
            whose = None if tie is None else self._checker.runs[tie.child].row.id
            if whose != record.preview:
                self._fail("an end is recorded for whom it was told", f"{told}: of {whose}, for {record.preview}")
            self._check_not_by_itself(model, record.preview, outcome, told)
            if signal.id in mailbox:
                self._fail("an end is consumed by its record", told)
            return
        if outcome is None:
            return  # the run was not there, or was not the one that was meant
        tie = self.ties.get(place)
        if tie is None or tie.told is not Told.LATE:
            self._fail("an end is recorded once", f"{told}: its link is {tie}")
            return
        ends = self._checker.world.endings.get(record.preview, [])
        if outcome not in [(end.state, _payload(end)) for end in ends]:
            self._fail("an end is recorded as it is", told)
        self._check_not_by_itself(model, record.preview, outcome, told)

    def _check_not_by_itself(
        self, model: RunModel, child_id: str, outcome: tuple[str, bytes] | None, told: str
    ) -> None:
        child = self._checker.by_id[child_id]
        mine = child_id.startswith(f"{model.row.id}:")
        if mine and outcome is not None and outcome[0] == "cancelled" and child.cancelled_by == {"parent"}:
            # Known: what a run cancels when it fails is still cancelled when it is retried. A second retry mends it.
            if model.reopened_at < 0:
                self._fail("no run is told that a child was cancelled which it had cancelled itself", told)
            self._checker.world.counts["retried runs that met a child they had cancelled"] += 1

    def parked(self, model: RunModel, op: ParkRun, told: str) -> None:
        """A park has taken effect."""
        sent = [one for one in model.mailbox.values() if one.position is not None and not is_answer(one.name)]
        if any(one.position in op.awaited for one in sent):
            self._fail("no end falls between a wait and its park", told)

    def left_alone(self, model: RunModel, told: str) -> None:
        """A run has ended by its own code: what it called and no longer waits for was cancelled."""
        row = model.row
        answered = {record.position for record in model.journal if record.kind is Kind.CHILD}
        started = [record for record in model.journal if record.kind is Kind.START and record.ok]
        on_their_own = {json.loads(record.payload or b"null") for record in started}
        for (parent, position), tie in self.ties.items():
            child = self._checker.runs[tie.child]
            # Only what it has started itself: not what it has joined, nor what is under an id that others share.
            mine = child.row.id.startswith(f"{row.id}:") and child.row.id not in on_their_own
            if parent != row.key or position in answered or not mine or child.row.state.is_terminal:
                continue
            if not child.cancel_accepted and child.reopened_at < 0:
                self._fail("a run that its caller no longer waits for is cancelled", f"{told}: {child.row.id}")

    def drop_end(self, place: Place) -> None:
        """An end that nobody waits for any more is taken out of the mailbox."""
        model = self._checker.runs[place[0]]
        model.mailbox = {
            at: one for at, one in model.mailbox.items() if one.position != place[1] or is_answer(one.name)
        }

    def _name(self, place: Place) -> str:
        return f"{self._checker.runs[place[0]].row.id} #{place[1] + 1}"


def _payload(end: Run) -> bytes:
    return end.output if end.output is not None else end.error if end.error is not None else b"null"


def _outcome(ok: bool, payload: bytes) -> tuple[str, bytes] | None:
    """State and payload of the end that a record tells of; nothing if it tells of none."""
    if ok:
        return RunState.COMPLETED, payload
    failure = json.loads(payload)
    if "child" not in failure:
        return None
    error = failure["error"]
    return failure["state"], b"null" if error is None else error.encode()
