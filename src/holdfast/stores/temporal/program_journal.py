"""The journal of a program's run, as the updates in its history have written it (see ``program_updates``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.stores.operations import AppendRecord, Op, SaveAttempt
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.program_updates import NO_FENCE, Fence, decode_operations, decode_request
from holdfast.stores.temporal.run_events import EventBatch, UpdateReceived


@dataclass
class ProgramJournal:
    """The records, and what is known about steps in flight."""

    records: list[Record] = field(default_factory=list[Record])
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    consumed_names: list[str] = field(default_factory=list[str])
    """The names of the signals that its records have consumed, in order."""
    usage: Usage = field(default_factory=Usage)
    fence: Fence = NO_FENCE

    def admit(self, fence: Fence) -> bool:
        """Whether an update with this fence takes effect."""
        self.fence = max(self.fence, fence)
        return fence == self.fence

    @property
    def last_seq(self) -> int:
        """The number of the last record; -1: there is none."""
        return self.records[-1].seq if self.records else -1

    def add_batches(self, batches: Iterable[EventBatch]) -> None:
        """Apply the updates in these parts of a history."""
        for batch in batches:
            for event in batch.events:
                if isinstance(event, UpdateReceived):
                    self._add_update(event)

    def _add_update(self, event: UpdateReceived) -> None:
        if event.name == identifiers.MESSAGES_UPDATE:
            self.admit(decode_request(event.payloads).sender.fence)
        elif event.name == identifiers.RECORD_UPDATE:
            sender, ops = decode_operations(event.payloads)
            if self.admit(sender.fence):
                for op in ops:
                    self._apply(op)

    def _apply(self, op: Op) -> None:
        if isinstance(op, SaveAttempt):
            self.attempts[op.attempt.position] = op.attempt
        elif isinstance(op, AppendRecord) and op.record.seq > self.last_seq:
            self.records.append(op.record)
            if op.clear_attempt:
                self.attempts.pop(op.record.position, None)
            if op.record.kind is RecordKind.SIGNAL:
                self.consumed_names.append(op.record.name)
            if op.used is not None:
                self.usage += op.used

    def remove_consumed(self, signals: Sequence[Signal]) -> list[Signal]:
        """These signals without those that its records have consumed: of a name, the oldest ones."""
        rest = list(signals)
        for name in self.consumed_names:
            consumed = next((signal for signal in rest if signal.name == name), None)
            if consumed is not None:
                rest.remove(consumed)
        return rest
