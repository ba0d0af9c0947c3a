"""``patched``: a change of workflow code that runs from before it do not see.

``if patched("charge-in-cents"): new code, else: old code``. A run takes the new way if it has not been at that place
before, and keeps to what it took. The answer is worked out from what is known when the code asks, in this order:

1. The run has asked under this name before: the same answer, whatever place asks.
2. The journal has a record of the patch: true.
3. Something behind this place was begun already: false. Commands are numbered as they are issued, so that is the case
   when there is a record, or any other trace, of a command with the number of the next one or a higher one; and so with
   timers. This run has been here with code that did not ask, and what it did is in its journal.
4. Else true, and that is to be recorded.

**Why every process gives the same answer.** A record of the patch stays, also over a retry. Without one, what decides
is the highest number in the journal, which only rises, held against the number that the code has reached, which follows
from the records before. "Replaying" or not does not come into it: a run whose journal is used up exactly here has not
been past this place, whether it is new, was parked, or has lost its worker a moment ago, and takes the new way. Only a
retry that takes back all that was behind this place, or a fork that leaves it out, makes a new answer possible: then
the run is, to its journal, as one that has not been here.

**The record is on its way while the code goes on**: ``patched`` stands in an ``if``, and cannot be awaited. What comes
after it must not be there without it. So the driver hands it to the writer right after the turn in which it was
decided, before any other record, and writers keep the order; and it begins no command (``is_durable``) before the
record is durable. A process that dies in between leaves nothing of the new way, neither in the journal nor in the
world, and the next one decides again. For the same reason a record that was issued behind the place has a higher
``seq``, and no fork can cut between them.

**The record has no position**, and nothing in the workflow depends on it but the answer: not even time. If the code
does not ask any more, because the old way is gone, the record is passed over. That is what makes removing a patch
simple; it is also why code from before the patch does not notice that a run has taken the new way before it comes to a
record that does not fit.

**What leaves no trace**: the first attempt of an ordinary step that old code had begun when its process died. Its run
takes the new way, as it does wherever code behind the last record is changed. The intent of a ``once`` step, a further
attempt, progress, a child and an answer do leave one, and count as begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.records import Record, RecordKind

PATCH_POSITION = -1
"""The position of a patch's record: before every command, so that a retry does not take it back."""


class Patches:
    """The answers of ``patched`` in one run.

    Args:
        records: the run's journal.
        started_positions: positions of commands without a record of which there is another trace.
        has_run_ended: the run has ended, and has been wherever its code comes.
    """

    def __init__(
        self, records: Sequence[Record] = (), started_positions: Iterable[int] = (), *, has_run_ended: bool = False
    ) -> None:
        self._recorded_names: set[str] = set()
        last, last_timer = max(started_positions, default=-1), -1
        patch, timer, *unasked = RecordKind.PATCH, RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL
        for record in records:  # which may be many
            kind, position = record.kind, record.position
            if kind is patch:
                self._recorded_names.add(record.name)
            elif kind is timer:
                last_timer = max(last_timer, position)
            elif position > last and kind not in unasked:
                last = position
        self._last_position, self._last_timer = last, last_timer
        """The highest numbers of a command and of a timer that were begun before this process had the run."""
        self._has_run_ended = has_run_ended
        self._decisions: dict[str, bool] = {}
        self._newly_decided: list[str] = []
        self._pending_names: set[str] = set()

    def decide(self, name: str, *, command_count: int, timer_count: int) -> bool:
        """The answer to code that asks after it has issued so many commands, and set so many timers."""
        known = self._decisions.get(name)
        if known is not None:
            return known
        answer = name in self._recorded_names
        if not answer and not (
            self._has_run_ended or command_count <= self._last_position or timer_count <= self._last_timer
        ):
            answer = True
            self._newly_decided.append(name)
            self._pending_names.add(name)
        self._decisions[name] = answer
        return answer

    def is_active(self, name: str) -> bool:
        """The answer that the run has, and false if it has none: nothing is decided by that."""
        return self._decisions.get(name, name in self._recorded_names)

    def is_decided(self, name: str) -> bool:
        """Whether the code has asked for it yet."""
        return name in self._decisions

    def take_newly_decided(self) -> list[str]:
        """What has been decided since the last call, and is to be recorded."""
        new, self._newly_decided = self._newly_decided, []
        return new

    def mark_durable(self, name: str) -> None:
        """Its record is durable."""
        self._pending_names.discard(name)

    @property
    def is_durable(self) -> bool:
        """Whether all that was decided is durable, so that commands can be begun."""
        return not self._pending_names
