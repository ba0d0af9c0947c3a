"""Makes a run's records from its history.

**Exactly.** Only the code knows in which order it saw the events, and which command consumed which signal. When a run
fails, that order is stored with its end (``rows.Ending.record_order``). For any other run, a worker with its code can
be queried for it (``identifiers.JOURNAL_QUERY``). ``make_exact_records`` looks up the entries of that order in the
history. A retry and a fork need exact records. The history of a program has its records themselves: see
``program_updates``.

**As far as the history shows.** For people and for readers that follow a run, ``infer_records`` makes the records from
the history alone. They are the same, except for waits that leave no trace of their own: for signals, and for runs that
were started earlier. Such a wait shows when a later command is issued, and leaves a gap in the numbers. Until then, a
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
    RunEvent,
    SignalReceived,
    StepEnded,
    TimerFired,
)

_UNKNOWN_STATUSES = (EndStatus.TIMED_OUT, EndStatus.HANDED_OVER, EndStatus.DEAD)


def _make_base(records: Sequence[Record], kind: RecordKind, position: int, name: str, at: float) -> Record:
    """The next record after these, without an outcome."""
    seq = records[-1].seq + 1 if records else 0
    return Record(seq, kind, position, name, True, None, at, at)


# Exactly


def make_exact_records(
    outcomes: Outcomes, order: Sequence[Sequence[Any]], run_id: str
) -> tuple[list[Record], list[Signal]]:
    """All records of a run, the last of them in this order, and the signals that none of them consumed.

    An entry of the order has a record's kind, position, name and time. Its sixth element may hold ``run``, the run that
    the record is about, and ``error``, a failure that is not in the history. Raises ``StoreCorrupt``.
    """
    records = list(outcomes.carried_records)
    signals = collect_signals(outcomes)
    for entry in order:
        base = _make_base(records, RecordKind(entry[0]), int(entry[1]), str(entry[2]), float(entry[3]))
        extra: dict[str, Any] = entry[5] if len(entry) > 5 else {}
        if base.kind is RecordKind.SIGNAL:
            records.append(_consume_signal(base, signals, run_id))
        else:
            records.append(_make_record(outcomes, base, extra, run_id))
    return records, signals


def _consume_signal(base: Record, signals: list[Signal], run_id: str) -> Record:
    """The record of a wait: the oldest signal of a name goes to the oldest wait for it."""
    signal = next((signal for signal in signals if signal.name == base.name), None)
    if signal is None:
        raise StoreCorrupt(
            f"the history of run {run_id!r} lacks signal {base.name!r}, which command {base.position + 1} has had"
        )
    signals.remove(signal)
    return base._replace(payload=signal.payload, started_at=signal.sent_at)


def _make_record(outcomes: Outcomes, base: Record, extra: dict[str, Any], run_id: str) -> Record:
    child_id = str(extra.get("run", ""))
    if "error" in extra:
        return base._replace(ok=False, payload=str(extra["error"]).encode(), preview=child_id)
    if base.kind in (RecordKind.STEP, RecordKind.COMPENSATION):
        ended = outcomes.ended_steps.get(base.position)
        if ended is None:  # it was refused before an activity was scheduled
            error = StepFailed(f"step {base.name!r} of run {run_id!r} was not carried out", base.name)
            return base._replace(ok=False, payload=encode_error(error))
        return make_step_record(base, ended, run_id)
    if base.kind is RecordKind.APPROVAL:
        return _make_approval_record(outcomes, base, run_id)
    if base.kind in (RecordKind.CHILD, RecordKind.START):
        return _make_child_record(outcomes, base, child_id, run_id)
    return base


def _make_approval_record(outcomes: Outcomes, base: Record, run_id: str) -> Record:
    answered = [
        (id, approval)
        for id, approval in outcomes.approvals.items()
        if approval.position == base.position and approval.answer is not None
    ]
    if not answered:
        raise StoreCorrupt(
            f"the history of run {run_id!r} lacks the answer to question {base.name!r} ({base.position + 1})"
        )
    id, approval = max(answered, key=lambda pair: pair[1].answered_at or 0.0)
    return base._replace(payload=approval.answer, started_at=approval.answered_at or base.at, preview=id)


def _make_child_record(outcomes: Outcomes, base: Record, child_id: str, run_id: str) -> Record:
    position = base.position
    child, step = outcomes.children.get(position), outcomes.ended_steps.get(position)
    if child is not None and step is not None:
        return make_awaited_record(base, child, step)
    if child is not None and base.kind is RecordKind.START:
        return make_start_record(base, child.run_id)
    if position in outcomes.child_ends and child is not None:
        return make_child_record(base, child.run_id, outcomes.child_ends[position].result)
    # It waited for a child that another command had started without waiting for it.
    ended = [
        end
        for end in outcomes.child_ends.values()
        if (
            end.run_id == child_id
            if child_id
            else end.name == base.name and not outcomes.children[end.position].is_awaited
        )
    ]
    if len(ended) != 1:
        raise StoreCorrupt(
            f"the history of run {run_id!r} does not tell which run command {position + 1} ({base.name!r}) has waited "
            f"for, so nothing can be made of its records: start it anew under another id"
        )
    return make_child_record(base, ended[0].run_id, ended[0].result)


# As far as the history shows


def infer_records(outcomes: Outcomes, run_id: str) -> tuple[list[Record], list[Signal]]:
    """The records of a run, as far as its history shows, and the signals that none of them seems to have consumed."""
    if outcomes.program is not None:
        return list(outcomes.program.records), outcomes.program.remove_consumed(collect_signals(outcomes))
    inference = _RecordInference(outcomes, run_id)
    for batch in outcomes.batches:
        inference.add_batch(batch)
    return inference.records, [*inference.pending_signals]


class _RecordInference:
    """Goes through a history, and knows at each point only what came before."""

    def __init__(self, outcomes: Outcomes, run_id: str) -> None:
        self.records = list(outcomes.carried_records)
        self.pending_signals = deque(outcomes.carried_signals)
        """Signals that no command is known to have consumed."""
        self._outcomes = outcomes
        self._run_id = run_id
        self._seen_signal_ids: set[str] = set()
        self._ended_children: deque[ChildEnded] = deque()
        """Ended children that their command did not wait for: another command may have."""
        carried_positions = [record.position for record in outcomes.carried_records if record.kind.has_position]
        self._max_position = max(carried_positions, default=-1)
        self._known_positions = set(range(self._max_position + 1))
        self._signal_count = len(outcomes.carried_signals)

    def add_batch(self, batch: EventBatch) -> None:
        """Add what one workflow task delivered to the code, and what the code asked for then."""
        self._batch = batch
        is_last = self._outcomes.is_closed and batch.completed_event_id == self._outcomes.end_task_event_id
        signals = [event for event in batch.events if isinstance(event, SignalReceived)]
        for signal in signals:
            self._add_signal(signal)
        issued = self._outcomes.issued_positions.get(batch.completed_event_id, set())
        self._max_position = max(self._max_position, *issued, -1)
        self._known_positions |= issued
        for event in batch.events:
            self._add_event(event, is_last)
        # After the events that ended: most code waits for a signal because of them, and not at the same time.
        self._fill_gaps()
        has_progressed = is_last or batch.patches or batch.completed_event_id in self._outcomes.timer_positions
        if has_progressed and signals and not issued and self.pending_signals and len(batch.events) == len(signals):
            # The run ended, or set a timer, because of a signal: nothing else was delivered.
            self._consume_signal(self.pending_signals.popleft(), self._max_position + 1)
        for name in batch.patches:
            self.records.append(self._make_base(RecordKind.PATCH, PATCH_POSITION, name))

    def _make_base(self, kind: RecordKind, position: int, name: str) -> Record:
        return _make_base(self.records, kind, position, name, self._batch.at)

    def _add_signal(self, event: SignalReceived) -> None:
        if event.name == identifiers.ANSWER_SIGNAL:
            self._add_answer(str(load_json(event.payloads[0])), event.at)
        elif (signal := signal_from_event(event, self._seen_signal_ids, self._signal_count + 1)) is not None:
            self._signal_count += 1
            self.pending_signals.append(signal)

    def _add_answer(self, id: str, at: float) -> None:
        approval = self._outcomes.approvals.get(id)
        if approval is not None and approval.answered_at == at:
            name = approval.memo_entry.get("tool") or "approval"
            base = self._make_base(RecordKind.APPROVAL, approval.position, name)
            self.records.append(base._replace(payload=approval.answer, started_at=at, preview=id))

    def _fill_gaps(self) -> None:
        """Assume that commands without a trace of their own waited for a signal, or else for an existing run."""
        for position in [position for position in range(self._max_position) if position not in self._known_positions]:
            if self.pending_signals:
                self._consume_signal(self.pending_signals.popleft(), position)
            elif self._ended_children:
                end = self._ended_children.popleft()
                self._known_positions.add(position)
                base = self._make_base(RecordKind.CHILD, position, end.name)
                self.records.append(make_child_record(base, end.run_id, end.result))

    def _consume_signal(self, signal: Signal, position: int) -> None:
        self._known_positions.add(position)
        self._max_position = max(self._max_position, position)
        base = self._make_base(RecordKind.SIGNAL, position, signal.name)
        self.records.append(base._replace(payload=signal.payload, started_at=signal.sent_at))

    def _add_event(self, event: RunEvent, is_last: bool) -> None:
        children, add = self._outcomes.children, self.records.append
        match event:
            case CancelRequested():
                add(self._make_base(RecordKind.CANCEL, 0, "cancel"))
            case TimerFired(None):
                add(self._make_base(RecordKind.DEADLINE, 0, identifiers.DEADLINE_SUMMARY))
            case TimerFired(int(position)):
                add(self._make_base(RecordKind.TIMER, position, event.name))
            case StepEnded(position) if event.is_await:
                child = children[position]
                kind = RecordKind.CHILD if child.is_awaited else RecordKind.START
                add(make_awaited_record(self._make_base(kind, position, child.workflow), child, event))
            case StepEnded(position, ended):
                if ended.status is not EndStatus.CANCELLED and not (is_last and ended.status in _UNKNOWN_STATUSES):
                    kind = RecordKind.COMPENSATION if event.is_compensation else RecordKind.STEP
                    add(make_step_record(self._make_base(kind, position, event.name), event, self._run_id))
            case ChildStarted(position, child_id, True):
                child = children.get(position)
                if child is not None and not child.is_awaited:
                    add(make_start_record(self._make_base(RecordKind.START, position, child.workflow), child_id))
            case ChildEnded(position, child_id, ended):
                child = children.get(position)
                if child is not None and child.is_awaited:
                    base = self._make_base(RecordKind.CHILD, position, event.name)
                    add(make_child_record(base, child_id, ended))
                else:
                    self._ended_children.append(event)
            case _:
                pass
