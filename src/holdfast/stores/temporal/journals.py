"""A run's records, made from its history.

**Exactly.** In which order the code has seen what happened, and which command took which signal, only the code knows.
When a run fails, that order is written with its end (``rows.Ending.order``); of any other run, a worker that has its
code can be asked for it (the query ``naming.JOURNAL``). ``exact_records`` looks all of these up in the history. Whoever
retries or forks a run needs that.

**As far as it can be told.** For people who look, and for those who follow a run, ``told_records`` makes the records
from the history alone. They are the same ones, but for waits that leave no trace of their own, for signals and for runs
that were started before: that there was one is seen when a later command is issued, and leaves a gap in the numbers.
Until then, a signal counts as not heard. What was told once stays as it was told, however much is added to the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.patches import NOWHERE
from holdfast.core.records import Kind, Record, Signal
from holdfast.errors import StepFailed, StoreCorrupt
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.outcomes import (
    Asked,
    Outcomes,
    awaited_record,
    child_record,
    sent,
    signal_in,
    start_record,
    step_record,
)
from holdfast.stores.temporal.payloads import plain
from holdfast.stores.temporal.run_events import (
    Batch,
    CancelAsked,
    ChildEnded,
    ChildStarted,
    How,
    Signalled,
    StepEnded,
    TimerFired,
)

_UNKNOWN = (How.TIMED_OUT, How.HANDED_OVER, How.DEAD)


def next_seq(records: Sequence[Record]) -> int:
    """The number of the next record."""
    return records[-1].seq + 1 if records else 0


# Exactly


def exact_records(found: Outcomes, order: Sequence[Sequence[Any]], run_id: str) -> tuple[list[Record], list[Signal]]:
    """All records of a run, the last of them in this order, and the signals that none of them has consumed.

    An entry of the order has a record's kind, position, name and time; a sixth element may hold ``run``, the run that
    it is about, and ``error``, a failure that the history does not tell. Raises ``StoreCorrupt``.
    """
    records = list(found.carried)
    signals = sent(found.brought, found.batches)
    for entry in order:
        kind, position, name, at = Kind(entry[0]), int(entry[1]), str(entry[2]), float(entry[3])
        more: dict[str, Any] = entry[5] if len(entry) > 5 else {}
        seq = next_seq(records)
        if kind is Kind.SIGNAL:
            records.append(_consumed(seq, position, name, at, signals, run_id))
        else:
            records.append(_exact(found, seq, kind, position, name, at, more, run_id))
    return records, signals


def _consumed(seq: int, position: int, name: str, at: float, signals: list[Signal], run_id: str) -> Record:
    """The record of a wait: the oldest signal of a name goes to the oldest wait for it."""
    signal = next((one for one in signals if one.name == name), None)
    if signal is None:
        raise StoreCorrupt(f"the history of run {run_id!r} lacks signal {name!r}, which command {position + 1} has had")
    signals.remove(signal)
    return Record(seq, Kind.SIGNAL, position, name, True, signal.payload, at, signal.sent_at)


def _exact(
    found: Outcomes, seq: int, kind: Kind, position: int, name: str, at: float, more: dict[str, Any], run_id: str
) -> Record:
    about = str(more.get("run", ""))
    if "error" in more:
        return Record(seq, kind, position, name, False, str(more["error"]).encode(), at, at, preview=about)
    if kind in (Kind.STEP, Kind.COMPENSATION):
        ended = found.steps.get(position)
        if ended is None:  # it was refused before anybody was asked to carry it out
            error = encode_error(StepFailed(f"step {name!r} of run {run_id!r} was not carried out", name))
            return Record(seq, kind, position, name, False, error, at, at)
        return step_record(seq, kind, name, ended, at, run_id)
    if kind is Kind.APPROVAL:
        return _answered(found, seq, position, name, at, run_id)
    if kind in (Kind.CHILD, Kind.START):
        return _of_child(found, seq, kind, position, name, at, about, run_id)
    return Record(seq, kind, position, name, True, None, at, at)


def _answered(found: Outcomes, seq: int, position: int, name: str, at: float, run_id: str) -> Record:
    answers = [
        (id, asked) for id, asked in found.questions.items() if asked.position == position and asked.answer is not None
    ]
    if not answers:
        raise StoreCorrupt(f"the history of run {run_id!r} lacks the answer to question {name!r} ({position + 1})")
    id, asked = max(answers, key=lambda one: one[1].answered_at or 0.0)
    return Record(seq, Kind.APPROVAL, position, name, True, asked.answer, at, asked.answered_at or at, preview=id)


def _of_child(
    found: Outcomes, seq: int, kind: Kind, position: int, name: str, at: float, about: str, run_id: str
) -> Record:
    child, step = found.children.get(position), found.steps.get(position)
    if child is not None and step is not None:
        return awaited_record(seq, position, name, child, step, at)
    if child is not None and kind is Kind.START:
        return start_record(seq, position, name, child.run_id, at)
    if position in found.ends and child is not None:
        return child_record(seq, position, name, child.run_id, found.ends[position].ended, at)
    # It has waited for a child that another command had started, to go its own way.
    ended = [
        one
        for one in found.ends.values()
        if (one.run_id == about if about else one.name == name and not found.children[one.position].awaited)
    ]
    if len(ended) != 1:
        raise StoreCorrupt(
            f"the history of run {run_id!r} does not tell which run command {position + 1} ({name!r}) has waited for, "
            f"so nothing can be made of its records: start it anew under another id"
        )
    return child_record(seq, position, name, ended[0].run_id, ended[0].ended, at)


# As far as it can be told


def told_records(found: Outcomes, run_id: str) -> tuple[list[Record], list[Signal]]:
    """The records of a run, as far as its history tells, and the signals that none of them seems to have consumed."""
    telling = _Telling(found, run_id)
    for batch in found.batches:
        telling.take(batch)
    return telling.records, [*telling.waiting]


class _Telling:
    """Goes through a history, and knows at each point only what came before."""

    def __init__(self, found: Outcomes, run_id: str) -> None:
        self.records = list(found.carried)
        self.waiting = deque(found.brought)
        """Signals of which it is not known that a command has taken them."""
        self._found = found
        self._run_id = run_id
        self._seen: set[str] = set()
        self._ended: deque[ChildEnded] = deque()
        """Runs that were started to go their own way, and have ended: another command may have waited for that."""
        taken = [record.position for record in found.carried if record.kind.has_position]
        self._top = max(taken, default=-1)
        self._known = set(range(self._top + 1))
        self._numbered = len(found.brought)

    def take(self, batch: Batch) -> None:
        """What one workflow task has told the code, and what the code has asked for then."""
        self._batch = batch
        is_last = self._found.closed and batch.completed == self._found.ends_in
        signals = [one for one in batch.happenings if isinstance(one, Signalled)]
        for signal in signals:
            self._signalled(signal)
        issued = self._found.issued.get(batch.completed, set())
        self._top = max(self._top, *issued, -1)
        self._known |= issued
        for happening in batch.happenings:
            self._tell(happening, is_last)
        # Behind what has ended: most code waits for a signal because of that, and not beside it.
        self._fill_gaps()
        went_on = is_last or batch.patches or batch.completed in self._found.set_in
        if went_on and signals and not issued and self.waiting and len(batch.happenings) == len(signals):
            # It has ended, or set a timer, because of a signal: nothing else has come.
            self._consume(self.waiting.popleft(), self._top + 1)
        for name in batch.patches:
            self._add(Kind.PATCH, NOWHERE, name)

    def _add(self, kind: Kind, position: int, name: str) -> None:
        at = self._batch.at
        self.records.append(Record(next_seq(self.records), kind, position, name, True, None, at, at))

    def _signalled(self, told: Signalled) -> None:
        if told.name == identifiers.ANSWER:
            self._answered(str(plain(told.values[0])), told.at)
        elif (signal := signal_in(told, self._seen, self._numbered + 1)) is not None:
            self._numbered += 1
            self.waiting.append(signal)

    def _answered(self, id: str, at: float) -> None:
        asked: Asked | None = self._found.questions.get(id)
        if asked is None or asked.answered_at != at:
            return
        name = asked.shown.get("tool") or "approval"
        self.records.append(
            Record(
                next_seq(self.records), Kind.APPROVAL, asked.position, name, True, asked.answer, self._batch.at, at,
                preview=id,
            )
        )  # fmt: skip

    def _fill_gaps(self) -> None:
        """Commands that left no trace of their own have waited for a signal, else for a run that was there."""
        for position in [position for position in range(self._top) if position not in self._known]:
            if self.waiting:
                self._consume(self.waiting.popleft(), position)
            elif self._ended:
                ended = self._ended.popleft()
                self._known.add(position)
                seq, at = next_seq(self.records), self._batch.at
                self.records.append(child_record(seq, position, ended.name, ended.run_id, ended.ended, at))

    def _consume(self, signal: Signal, position: int) -> None:
        self._known.add(position)
        self._top = max(self._top, position)
        self.records.append(
            Record(
                next_seq(self.records), Kind.SIGNAL, position, signal.name, True, signal.payload, self._batch.at,
                signal.sent_at,
            )
        )  # fmt: skip

    def _tell(self, happening: object, is_last: bool) -> None:
        at, seq, found = self._batch.at, next_seq(self.records), self._found
        match happening:
            case CancelAsked():
                self._add(Kind.CANCEL, 0, "cancel")
            case TimerFired(None):
                self._add(Kind.DEADLINE, 0, identifiers.DEADLINE)
            case TimerFired(int(position)):
                self._add(Kind.TIMER, position, found.timers.get(position, ""))
            case StepEnded(position, ended) if happening.is_await:
                child = found.children[position]
                self.records.append(awaited_record(seq, position, child.workflow, child, happening, at))
            case StepEnded(_, ended):
                if ended.how is not How.CANCELLED and not (is_last and ended.how in _UNKNOWN):
                    kind = Kind.COMPENSATION if happening.is_compensation else Kind.STEP
                    self.records.append(step_record(seq, kind, happening.name, happening, at, self._run_id))
            case ChildStarted(position, run_id, True):
                child = found.children.get(position)
                if child is not None and not child.awaited:
                    self.records.append(start_record(seq, position, child.workflow, run_id, at))
            case ChildEnded(position, run_id, ended):
                child = found.children.get(position)
                if child is not None and child.awaited:
                    self.records.append(child_record(seq, position, happening.name, run_id, ended, at))
                else:
                    self._ended.append(happening)
            case _:
                pass
