"""``patched``: a change of workflow code that runs from before the change do not see.

``if patched("charge-in-cents"): new code, else: old code``. A run takes the new branch if it has not been past this
call before, and stays with its choice. The answer follows from what is known when the code calls ``patched``:

1. The run has called it with this name before, anywhere: the same answer.
2. The journal has a record of the patch: true.
3. Something after this call has already started: false. Commands are numbered as they are issued, so that is the case
   if there is a record, or any other trace, of a command with the next number or a higher one, or such a timer.
   The run has been here with code that did not call ``patched``, and what it did is in its journal.
4. Otherwise true, which must then be recorded.

**Why every process gives the same answer.** A record of the patch stays, even after a retry. Without one, the answer
compares the highest number in the journal, which only rises, with the number that the code has reached, which follows
from the earlier records. Whether the run is replaying does not matter: a run with a journal that ends exactly here has
not been past this call, whether it is new, was parked, or has just lost its worker, and takes the new branch. Only a
retry that removes everything after this call, or a fork that leaves it out, makes a new answer possible: to its
journal, the run has not been here.

**The record is on its way while the code continues**: ``patched`` is used in an ``if``, and cannot be awaited. Nothing
that follows may exist without the record. So the driver submits it right after the turn in which it was decided, before
any other record (writers keep the order), and starts no command (``is_durable``) before the record is durable. A
process that dies in between leaves nothing of the new branch, neither in the journal nor in the world, and the next one
decides again. For the same reason, a record that was issued after the call has a higher ``seq``, and no fork can cut
between them.

**The record has no position**, and nothing in the workflow but the answer depends on it, not even time. If the code no
longer calls ``patched``, because the old branch is gone, the record is skipped. That makes it simple to remove a patch.
It also means that code from before the patch does not notice that a run has taken the new branch, until it comes to a
record that does not fit.

**What leaves no trace**: the first attempt of an ordinary step that old code had started when its process died. Its run
takes the new branch, as it does wherever code after the last record is changed. The intent of a ``once`` step, a
further attempt, progress, a child, and an answer do leave a trace, and count as started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.records import Record, RecordKind

PATCH_POSITION = -1
"""The position of a patch's record: before every command, so that a retry does not remove it."""


_NO_NAMES: frozenset[str] = frozenset()


class Patches:
    """The answers of ``patched`` in one run.

    Args:
        records: the run's journal.
        started_positions: positions of commands without a record that have left another trace.
        has_run_ended: the run has ended, so it has been past every call.
    """

    def __init__(
        self, records: Sequence[Record] = (), started_positions: Iterable[int] = (), *, has_run_ended: bool = False
    ) -> None:
        recorded_names: list[str] = []
        last, last_timer = max(started_positions, default=-1), -1
        patch, timer, *unasked = RecordKind.PATCH, RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL
        for record in records:  # there may be many
            kind, position = record.kind, record.position
            if kind is patch:
                recorded_names.append(record.name)
            elif kind is timer:
                last_timer = max(last_timer, position)
            elif position > last and kind not in unasked:
                last = position
        # Most runs have no patches, so these are immutable: the empty ones need no objects.
        self._recorded_names = frozenset(recorded_names) if recorded_names else _NO_NAMES
        self.newly_decided: tuple[str, ...] = ()
        """Patches that were decided since they were last taken, and must be recorded."""
        self._pending_names = _NO_NAMES
        self.is_durable = True
        """Whether the records of all decisions are durable, so that commands may start."""
        self._last_position, self._last_timer = last, last_timer
        """The highest numbers of a command and of a timer that had started before this process held the run."""
        self._has_run_ended = has_run_ended
        self._decisions: dict[str, bool] = {}

    def decide(self, name: str, *, command_count: int, timer_count: int) -> bool:
        """The answer to code that has issued this many commands, and set this many timers."""
        known = self._decisions.get(name)
        if known is not None:
            return known
        answer = name in self._recorded_names
        if not answer and not (
            self._has_run_ended or command_count <= self._last_position or timer_count <= self._last_timer
        ):
            answer = True
            self._add_new(name)
        self._decisions[name] = answer
        return answer

    def add(self, name: str) -> None:
        """Decide that the run takes the new branch here, which must be recorded."""
        if not self.is_active(name):
            self._decisions[name] = True
            self._add_new(name)

    def _add_new(self, name: str) -> None:
        """The run takes the new branch, which must be recorded."""
        self.newly_decided += (name,)
        self._pending_names |= {name}
        self.is_durable = False

    def is_active(self, name: str) -> bool:
        """The answer that the run has, or false if it has none; decides nothing."""
        return self._decisions.get(name, name in self._recorded_names)

    def is_decided(self, name: str) -> bool:
        """Whether the code has called ``patched`` with this name."""
        return name in self._decisions

    def take_newly_decided(self) -> tuple[str, ...]:
        """The patches that were decided since the last call, and must be recorded."""
        new, self.newly_decided = self.newly_decided, ()
        return new

    def mark_durable(self, name: str) -> None:
        """The record of this patch is durable."""
        self._pending_names -= {name}
        self.is_durable = not self._pending_names
