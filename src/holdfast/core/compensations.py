"""The steps of a run that can be compensated, and what a retry rewinds.

``execution`` decides when and in which order they are compensated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.core.failure_origin import FailureOrigin
from holdfast.core.records import Record, Rewind


class CompensableCall(Protocol):
    """What the core needs of the call of a step."""

    @property
    def is_noted(self) -> bool:
        """Whether it is ``once``, or has a compensation: few steps are, and all are asked."""
        ...

    @property
    def is_once(self) -> bool:
        """Whether it must never run a second time."""
        ...

    @property
    def has_compensation(self) -> bool:
        """Whether it has a compensation."""
        ...

    def build_compensation(self, payload: bytes) -> tuple[str, Any] | None:
        """The name and call of the compensation, from the recorded output; ``None``: there is nothing to undo."""
        ...


class CompensationLog:
    """The executed steps of a run that can be compensated, in the order of their records."""

    def __init__(self) -> None:
        self.compensated_count = 0
        """How many steps have been compensated."""
        self._steps: list[tuple[Record, CompensableCall]] = []
        self._once_records: list[Record] = []
        self._failed_seqs: list[int] = []
        """The ``seq`` of every failure that a retry may remove."""

    def add_failure(self, record: Record) -> None:
        """A command has failed, even if the workflow had cancelled it meanwhile."""
        self._failed_seqs.append(record.seq)

    def add_outcome(self, record: Record, call: CompensableCall) -> None:
        """A step has its outcome."""
        if record.ok and call.has_compensation:
            self._steps.append((record, call))
        if call.is_once:
            self._once_records.append(record)

    def pop_step(self) -> tuple[Record, CompensableCall]:
        """The last step that has not been compensated."""
        return self._steps.pop()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def build_rewind(
        self, origins: Sequence[FailureOrigin], abandoned_children: Mapping[int, int], *, is_compensated: bool
    ) -> Rewind | None:
        """What a retry removes from a run that ended because of these records.

        ``abandoned_children`` are the positions of runs that the workflow no longer waits for, each with the last
        record that it had seen by then.
        """
        if not origins:
            return Rewind((), 0, 0, is_compensated=True) if is_compensated else None
        first = min(origins)
        # Failures after the first are not worth keeping: they would end the run again.
        seqs = tuple(sorted({origin.seq for origin in origins} | {seq for seq in self._failed_seqs if seq > first.seq}))
        before = tuple(position for position, seen in abandoned_children.items() if seen < first.seq)
        rewind = Rewind(seqs, first.command_count, first.timer_count, is_compensated, abandoned_positions=before)
        return rewind._replace(
            once_seqs=tuple(sorted(record.seq for record in self._once_records if rewind.should_remove(record)))
        )
