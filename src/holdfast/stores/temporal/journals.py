"""A run's records, made from its history.

**Exactly.** Only the code knows in which order it has seen what happened, and which command took which signal. When a
run fails, that order is written with its end (``rows.Ending.record_order``). For any other run, a worker that has its
code can be asked for it (the query ``identifiers.JOURNAL_QUERY``). ``make_exact_records`` looks all of these up in the
history. A retry and a fork need that.

**As far as the history shows.** For people and for readers that follow a run, ``infer_records`` makes the records from
the history alone. They are the same, except for waits that leave no trace of their own: for signals, and for runs that
were started before. Such a wait shows when a later command is issued, and leaves a gap in the numbers. Until then, a
signal counts as not received. A record that was reported once stays as it was, however much is added to the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.codec import encode_error
from holdfast.core.patches import PATCH_POSITION
from holdfast.core.records import Record, RecordKind, Signal
from holdfast.errors import StepFailed, StoreCorrupt
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.outcomes import (
    ApprovalEntry,
    Outcomes,
    collect_signals,
    make_awaited_record,
    make_child_record,
    make_start_record,
    make_step_record,
    signal_from_event,
)
from holdfast.stores.temporal.payloads import load_json
from holdfast.stores.temporal.run_events import (
    CancelRequested,
    ChildEnded,
    ChildStarted,
    EndStatus,
    EventBatch,
    SignalReceived,
    StepEnded,
    TimerFired,
)

_UNKNOWN_STATUSES = (EndStatus.TIMED_OUT, EndStatus.HANDED_OVER, EndStatus.DEAD)


def get_next_seq(records: Sequence[Record]) -> int:
    """The number of the next record."""
    return records[-1].seq + 1 if records else 0


# Exactly


def make_exact_records(
    outcomes: Outcomes, order: Sequence[Sequence[Any]], run_id: str
) -> tuple[list[Record], list[Signal]]:
    """All records of a run, the last of them in this order, and the signals that none of them has consumed.

    An entry of the order has a record's kind, position, name and time; a sixth element may hold ``run``, the run that
    it is about, and ``error``, a failure that the history does not tell. Raises ``StoreCorrupt``.
    """
    records = list(outcomes.carried_records)
    signals = collect_signals(outcomes.carried_signals, outcomes.batches)
    for entry in order:
        kind, position, name, at = RecordKind(entry[0]), int(entry[1]), str(entry[2]), float(entry[3])
        more: dict[str, Any] = entry[5] if len(entry) > 5 else {}
        seq = get_next_seq(records)
        if kind is RecordKind.SIGNAL:
            records.append(_consume_signal(seq, position, name, at, signals, run_id))
        else:
            records.append(_make_record(outcomes, seq, kind, position, name, at, more, run_id))
    return records, signals


def _consume_signal(seq: int, position: int, name: str, at: float, signals: list[Signal], run_id: str) -> Record:
    """The record of a wait: the oldest signal of a name goes to the oldest wait for it."""
    signal = next((one for one in signals if one.name == name), None)
    if signal is None:
        raise StoreCorrupt(f"the history of run {run_id!r} lacks signal {name!r}, which command {position + 1} has had")
    signals.remove(signal)
    return Record(seq, RecordKind.SIGNAL, position, name, True, signal.payload, at, signal.sent_at)


def _make_record(
    outcomes: Outcomes,
    seq: int,
    kind: RecordKind,
    position: int,
    name: str,
    at: float,
    extra: dict[str, Any],
    run_id: str,
) -> Record:
    about = str(extra.get("run", ""))
    if "error" in extra:
        return Record(seq, kind, position, name, False, str(extra["error"]).encode(), at, at, preview=about)
    if kind in (RecordKind.STEP, RecordKind.COMPENSATION):
        ended = outcomes.ended_steps.get(position)
        if ended is None:  # it was refused before anybody was asked to carry it out
            error = encode_error(StepFailed(f"step {name!r} of run {run_id!r} was not carried out", name))
            return Record(seq, kind, position, name, False, error, at, at)
        return make_step_record(seq, kind, name, ended, at, run_id)
    if kind is RecordKind.APPROVAL:
        return _make_approval_record(outcomes, seq, position, name, at, run_id)
    if kind in (RecordKind.CHILD, RecordKind.START):
        return _find_child_record(outcomes, seq, kind, position, name, at, about, run_id)
    return Record(seq, kind, position, name, True, None, at, at)


def _make_approval_record(outcomes: Outcomes, seq: int, position: int, name: str, at: float, run_id: str) -> Record:
    answers = [
        (id, asked)
        for id, asked in outcomes.approvals.items()
        if asked.position == position and asked.answer is not None
    ]
    if not answers:
        raise StoreCorrupt(f"the history of run {run_id!r} lacks the answer to question {name!r} ({position + 1})")
    id, asked = max(answers, key=lambda one: one[1].answered_at or 0.0)
    return Record(seq, RecordKind.APPROVAL, position, name, True, asked.answer, at, asked.answered_at or at, preview=id)


def _find_child_record(
    outcomes: Outcomes, seq: int, kind: RecordKind, position: int, name: str, at: float, about_run: str, run_id: str
) -> Record:
    child, step = outcomes.children.get(position), outcomes.ended_steps.get(position)
    if child is not None and step is not None:
        return make_awaited_record(seq, position, name, child, step, at)
    if child is not None and kind is RecordKind.START:
        return make_start_record(seq, position, name, child.run_id, at)
    if position in outcomes.child_ends and child is not None:
        return make_child_record(seq, position, name, child.run_id, outcomes.child_ends[position].result, at)
    # It has waited for a child that another command had started, to go its own way.
    ended = [
        one
        for one in outcomes.child_ends.values()
        if (
            one.run_id == about_run
            if about_run
            else one.name == name and not outcomes.children[one.position].is_awaited
        )
    ]
    if len(ended) != 1:
        raise StoreCorrupt(
            f"the history of run {run_id!r} does not tell which run command {position + 1} ({name!r}) has waited for, "
            f"so nothing can be made of its records: start it anew under another id"
        )
    return make_child_record(seq, position, name, ended[0].run_id, ended[0].result, at)


# As far as it can be told


def infer_records(outcomes: Outcomes, run_id: str) -> tuple[list[Record], list[Signal]]:
    """The records of a run, as far as its history tells, and the signals that none of them seems to have consumed."""
    telling = _RecordInference(outcomes, run_id)
    for batch in outcomes.batches:
        telling.add_batch(batch)
    return telling.records, [*telling.pending_signals]


class _RecordInference:
    """Goes through a history, and knows at each point only what came before."""

    def __init__(self, outcomes: Outcomes, run_id: str) -> None:
        self.records = list(outcomes.carried_records)
        self.pending_signals = deque(outcomes.carried_signals)
        """Signals of which it is not known that a command has taken them."""
        self._outcomes = outcomes
        self._run_id = run_id
        self._seen_signal_ids: set[str] = set()
        self._ended_children: deque[ChildEnded] = deque()
        """Runs that were started to go their own way, and have ended: another command may have waited for that."""
        taken = [record.position for record in outcomes.carried_records if record.kind.has_position]
        self._max_position = max(taken, default=-1)
        self._known_positions = set(range(self._max_position + 1))
        self._signal_count = len(outcomes.carried_signals)

    def add_batch(self, batch: EventBatch) -> None:
        """What one workflow task has told the code, and what the code has asked for then."""
        self._batch = batch
        is_last = self._outcomes.is_closed and batch.completed_event_id == self._outcomes.end_task_event_id
        signals = [one for one in batch.events if isinstance(one, SignalReceived)]
        for signal in signals:
            self._add_signal(signal)
        issued = self._outcomes.issued_positions.get(batch.completed_event_id, set())
        self._max_position = max(self._max_position, *issued, -1)
        self._known_positions |= issued
        for happening in batch.events:
            self._add_event(happening, is_last)
        # Behind what has ended: most code waits for a signal because of that, and not beside it.
        self._fill_gaps()
        went_on = is_last or batch.patches or batch.completed_event_id in self._outcomes.timer_positions
        if went_on and signals and not issued and self.pending_signals and len(batch.events) == len(signals):
            # It has ended, or set a timer, because of a signal: nothing else has come.
            self._consume_signal(self.pending_signals.popleft(), self._max_position + 1)
        for name in batch.patches:
            self._add_record(RecordKind.PATCH, PATCH_POSITION, name)

    def _add_record(self, kind: RecordKind, position: int, name: str) -> None:
        at = self._batch.at
        self.records.append(Record(get_next_seq(self.records), kind, position, name, True, None, at, at))

    def _add_signal(self, event: SignalReceived) -> None:
        if event.name == identifiers.ANSWER_SIGNAL:
            self._add_answer(str(load_json(event.payloads[0])), event.at)
        elif (signal := signal_from_event(event, self._seen_signal_ids, self._signal_count + 1)) is not None:
            self._signal_count += 1
            self.pending_signals.append(signal)

    def _add_answer(self, id: str, at: float) -> None:
        asked: ApprovalEntry | None = self._outcomes.approvals.get(id)
        if asked is None or asked.answered_at != at:
            return
        name = asked.memo_entry.get("tool") or "approval"
        self.records.append(
            Record(
                get_next_seq(self.records), RecordKind.APPROVAL, asked.position, name, True, asked.answer,
                self._batch.at, at, preview=id,
            )
        )  # fmt: skip

    def _fill_gaps(self) -> None:
        """Commands that left no trace of their own have waited for a signal, else for a run that was there."""
        for position in [position for position in range(self._max_position) if position not in self._known_positions]:
            if self.pending_signals:
                self._consume_signal(self.pending_signals.popleft(), position)
            elif self._ended_children:
                ended = self._ended_children.popleft()
                self._known_positions.add(position)
                seq, at = get_next_seq(self.records), self._batch.at
                self.records.append(make_child_record(seq, position, ended.name, ended.run_id, ended.result, at))

    def _consume_signal(self, signal: Signal, position: int) -> None:
        self._known_positions.add(position)
        self._max_position = max(self._max_position, position)
        self.records.append(
            Record(
                get_next_seq(self.records), RecordKind.SIGNAL, position, signal.name, True, signal.payload,
                self._batch.at, signal.sent_at,
            )
        )  # fmt: skip

    def _add_event(self, event: object, is_last: bool) -> None:
        at, seq, found = self._batch.at, get_next_seq(self.records), self._outcomes
        match event:
            case CancelRequested():
                self._add_record(RecordKind.CANCEL, 0, "cancel")
            case TimerFired(None):
                self._add_record(RecordKind.DEADLINE, 0, identifiers.DEADLINE_SUMMARY)
            case TimerFired(int(position)):
                self._add_record(RecordKind.TIMER, position, found.timer_names.get(position, ""))
            case StepEnded(position, ended) if event.is_await:
                child = found.children[position]
                self.records.append(make_awaited_record(seq, position, child.workflow, child, event, at))
            case StepEnded(_, ended):
                if ended.status is not EndStatus.CANCELLED and not (is_last and ended.status in _UNKNOWN_STATUSES):
                    kind = RecordKind.COMPENSATION if event.is_compensation else RecordKind.STEP
                    self.records.append(make_step_record(seq, kind, event.name, event, at, self._run_id))
            case ChildStarted(position, run_id, True):
                child = found.children.get(position)
                if child is not None and not child.is_awaited:
                    self.records.append(make_start_record(seq, position, child.workflow, run_id, at))
            case ChildEnded(position, run_id, ended):
                child = found.children.get(position)
                if child is not None and child.is_awaited:
                    self.records.append(make_child_record(seq, position, event.name, run_id, ended, at))
                else:
                    self._ended_children.append(event)
            case _:
                pass
