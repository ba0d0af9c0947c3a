"""Checks of links between runs: which run waits for which, and every end that is delivered.

A link is *pending* while the other run has not ended, *notified* when the end was put into the mailbox of the waiting
run, and *late* when no run waited. So an end is delivered once for each time a link became pending, with the outcome
that the row has at that moment.
"""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.records import RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import is_answer
from holdfast.stores.operations import AppendRecord, ParkRun, Run, RunLink, StartResult

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker, RunModel

LinkPosition = tuple[int, int]
"""The key of a run that waits, and the position of its command."""


class LinkState(Enum):
    """Whether the end was delivered."""

    ARMED = "armed"
    DELIVERED = "told"
    LATE = "late"


class LinkModel(NamedTuple):
    """A link: the awaited run, and whether its end was delivered."""

    child: int
    state: LinkState


class LinkChecker:
    """Links, and the ends that go through them."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker
        self.links: dict[LinkPosition, LinkModel] = {}
        self.removed_links: dict[LinkPosition, None] = {}
        """Places of links that a retry has removed."""

    def _fail(self, invariant: str, details: str) -> None:
        self._checker.fail(invariant, details)

    def check_link(self, link: RunLink, answer: StartResult) -> None:
        """A held run has asked for another one and got an answer."""
        if not link.is_awaited:
            return
        place, child = (link.parent_key, link.position), answer.run
        known = self.links.get(place)
        if known is not None and known.child != child.key:  # of a command that a retry has taken back
            self.remove_end(place)
            known = None
        goes_on = not self._checker.runs[child.key].row.state.is_terminal
        expected = goes_on or (known is not None and known.state is not LinkState.LATE)
        if answer.is_linked is not expected:
            self._fail(
                "who waits for a run is linked to its end, or told how it ended",
                f"{self._format_position(place)} asked for {child.id} ({child.state.value}), linked: "
                f"{answer.is_linked}",
            )
        if known is None or known.state is LinkState.LATE:
            self.links[place] = LinkModel(child.key, LinkState.ARMED if goes_on else LinkState.LATE)

    def is_awaited(self, key: int) -> bool:
        """Whether an unfinished run waits for the end of this one."""
        waiting = [place[0] for place, tie in self.links.items() if tie == (key, LinkState.ARMED)]
        return any(not self._checker.runs[one].row.state.is_terminal for one in waiting)

    def check_end(self, row: Run) -> None:
        """A run has ended: waiting runs get its end in the same transaction."""
        for place, tie in self.links.items():
            if tie == (row.key, LinkState.ARMED):
                waiting = self._checker.runs[place[0]]
                self.links[place] = LinkModel(
                    row.key, LinkState.LATE if waiting.row.state.is_terminal else LinkState.DELIVERED
                )
                if not waiting.row.state.is_terminal:
                    self._check_end_delivered(place, waiting, row)

    def _check_end_delivered(self, position: LinkPosition, waiting: RunModel, row: Run) -> None:
        database = self._checker.database
        which = f"the end of {row.id} ({row.state.value}) for {self._format_position(position)}"
        mailbox = database._mailboxes.get(position[0], {})
        new = [one for one in mailbox.values() if one.position == position[1] and one.id not in waiting.mailbox]
        if len(new) != 1:
            self._fail("the end of a run reaches whoever waits, once", f"{which}: {len(new)} in the mailbox")
            return
        payload = row.output if row.output is not None else row.error if row.error is not None else b"null"
        if (new[0].name, new[0].payload) != (row.state, payload):
            self._fail("the end of a run is told as it is", f"{which} is told as {new[0].name}")
        waiting.mailbox[new[0].id] = new[0]
        before, after = waiting.row, database._runs[position[0]]
        if before.state is RunState.WAITING and before.paused_at is None:
            if after != replace(before, wake_at=database.now()):
                self._fail("an end wakes whoever is parked for it", f"{which}: it wakes at {after.wake_at}")
            waiting.row = after
        self._checker.world.reach_action_point("told", None, before.id)

    def check_record(self, model: RunModel, op: AppendRecord, mailbox: dict[int, Signal], context: str) -> None:
        """A record of kind ``CHILD`` was appended."""
        place, record = (op.key, op.record.position), op.record
        outcome = _decode_outcome(record.ok, record.payload or b"null")
        asked_for = self._checker.commands[model.row.id, record.position][2].split()
        child = self._checker.runs_by_id.get(asked_for[0])
        if outcome is not None and child is not None and asked_for[1:] not in ([], [child.row.digest.hex()]):
            self._fail("a result is that of the inputs that were asked for", context)
        if op.consumed_signal_id is not None:
            signal = model.mailbox.get(op.consumed_signal_id)
            if signal is None or signal.position != record.position:
                self._fail("an end is consumed once, by the command that waits for it", context)
                return
            if outcome != (signal.name, signal.payload):
                self._fail("an end is recorded as it was told", f"{context}: {signal}")
            tie = self.links.get(place)
            whose = None if tie is None else self._checker.runs[tie.child].row.id
            if whose != record.preview:
                self._fail("an end is recorded for whom it was told", f"{context}: of {whose}, for {record.preview}")
            self._check_not_self_cancelled(model, record.preview, outcome, context)
            if signal.id in mailbox:
                self._fail("an end is consumed by its record", context)
            return
        if outcome is None:
            return  # the run was not there, or was not the one that was meant
        tie = self.links.get(place)
        if tie is None or tie.state is not LinkState.LATE:
            self._fail("an end is recorded once", f"{context}: its link is {tie}")
            return
        ends = self._checker.world.endings.get(record.preview, [])
        if outcome not in [(end.state, _get_payload(end)) for end in ends]:
            self._fail("an end is recorded as it is", context)
        self._check_not_self_cancelled(model, record.preview, outcome, context)

    def _check_not_self_cancelled(
        self, model: RunModel, child_id: str, outcome: tuple[str, bytes] | None, context: str
    ) -> None:
        child = self._checker.runs_by_id[child_id]
        mine = child_id.startswith(f"{model.row.id}:")
        if mine and outcome is not None and outcome[0] == "cancelled" and child.cancel_sources == {"parent"}:
            # Known: children cancelled by a failing run stay cancelled when it is retried. A second retry repairs that.
            if model.reopened_epoch < 0:
                self._fail("no run is told that a child was cancelled which it had cancelled itself", context)
            self._checker.world.counts["retried runs that met a child they had cancelled"] += 1

    def check_park(self, model: RunModel, op: ParkRun, context: str) -> None:
        """A park has taken effect."""
        sent = [one for one in model.mailbox.values() if one.position is not None and not is_answer(one.name)]
        if any(one.position in op.awaited_positions for one in sent):
            self._fail("no end falls between a wait and its park", context)

    def check_abandoned_children(self, model: RunModel, context: str) -> None:
        """A run has ended by its own code: the children it called and no longer awaits were cancelled."""
        row = model.row
        answered = {record.position for record in model.journal if record.kind is RecordKind.CHILD}
        started = [record for record in model.journal if record.kind is RecordKind.START and record.ok]
        on_their_own = {json.loads(record.payload or b"null") for record in started}
        for (parent, position), tie in self.links.items():
            child = self._checker.runs[tie.child]
            # Only runs that it started itself: not those it joined, nor those under an id that several runs share.
            mine = child.row.id.startswith(f"{row.id}:") and child.row.id not in on_their_own
            if parent != row.key or position in answered or not mine or child.row.state.is_terminal:
                continue
            if not child.is_cancel_accepted and child.reopened_epoch < 0:
                self._fail("a run that its caller no longer waits for is cancelled", f"{context}: {child.row.id}")

    def remove_end(self, position: LinkPosition) -> None:
        """An end that is no longer awaited is taken out of the mailbox."""
        model = self._checker.runs[position[0]]
        model.mailbox = {
            at: one for at, one in model.mailbox.items() if one.position != position[1] or is_answer(one.name)
        }

    def _format_position(self, position: LinkPosition) -> str:
        return f"{self._checker.runs[position[0]].row.id} #{position[1] + 1}"


def _get_payload(end: Run) -> bytes:
    return end.output if end.output is not None else end.error if end.error is not None else b"null"


def _decode_outcome(ok: bool, payload: bytes) -> tuple[str, bytes] | None:
    """State and payload of the end in a record; ``None`` if it has none."""
    if ok:
        return RunState.COMPLETED, payload
    failure = json.loads(payload)
    if "child" not in failure:
        return None
    error = failure["error"]
    return failure["state"], b"null" if error is None else error.encode()
