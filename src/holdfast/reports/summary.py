"""What a run did, how long that took and what it cost, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.codec.formatting import begin
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.reports.formatting import counted, duration, listed, one_line
from holdfast.reports.run_usage import cost
from holdfast.reports.types import Hand, Story

_LONGEST_ERROR = 200
_NOUNS = {Kind.CHILD: "child run", Kind.START: "started run", Kind.PATCH: "patch marker"}
"""What a record is called, if not by its kind."""
_NOT_COUNTED = (Kind.DEADLINE, Kind.CANCEL)
"""What happens to a run, and is not work of its own."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A worker died over the run, and another one took it over."""

    fallen: Hand
    heir: Hand | None
    step: int
    """The number of the step that was in flight."""
    replayed: int
    """How many steps were recorded by then."""
    repeated: int
    """How many had begun, so that the heir ran them once more."""
    epoch: int
    """Of the heir."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the whole journal says of how the run went."""

    counts: Mapping[Kind, int] = field(default_factory=dict[Kind, int])
    """How many records of each kind it has, without internal ones."""
    forkable: bool = False
    """It has a record that a fork can begin at."""
    falls: Sequence[Fall] = ()
    reopened: int = 0
    """How often somebody let it go on after it had ended."""
    unknown: Sequence[tuple[int, str]] = ()
    """The ``once`` steps of unknown outcome that ended the run: number and name."""


def tell(story: Story, course: Course) -> str:
    """What the run did."""
    told = [_course(story, course), _falls(course.falls), _reopened(course.reopened)]
    holder = story.hand(story.held_by)
    if story.state is RunState.RUNNING and holder is not None and not holder.alive:
        told.append(f"{_name(holder, begins=True)}, which holds it, is dead.")
    return " ".join(sentence for sentence in told if sentence)


def _course(story: Story, course: Course) -> str:
    steps = [
        counted(many, _NOUNS.get(kind, kind.label))
        for kind, many in sorted(course.counts.items())
        if many > 0 and kind not in _NOT_COUNTED
    ]
    if story.skipped:
        steps.append(f"{len(story.skipped)} skipped")
    used = Usage() if story.usage is None else story.usage.usage
    spent = [counted(used.calls, "model call"), counted(used.tokens, "token"), cost(used)] if used.calls else []
    did = ", ".join([*steps, *spent])
    if not story.state.is_terminal:
        return f"{_so_far(story)}, {did} so far." if did else f"{_so_far(story)}."
    took = duration(story.seconds or 0.0)
    how = f"{story.state.value.capitalize()} {'in' if story.state is RunState.COMPLETED else 'after'} {took}"
    how += f" with {did}" if did else ""
    how += "" if story.error is None else f": {one_line(story.error.in_short, _LONGEST_ERROR)}"
    return how if how.endswith((".", "…")) else f"{how}."


def _so_far(story: Story) -> str:
    """How a run is that has not ended, and how long ago it was started."""
    since = f"started {duration((story.at - story.created_at).total_seconds())} ago"
    if story.paused:
        return f"Paused, {since}"
    if story.state is RunState.PENDING:
        return f"To be taken up again, {since}" if story.epoch else f"Not begun yet, {since}"
    return f"{story.state.value.capitalize()}, {since}"


def _falls(falls: Sequence[Fall]) -> str:
    if not falls:
        return ""
    last = falls[-1]
    died = listed([f"{_name(one.fallen, begins=one is falls[0])} died in step {one.step}" for one in falls])
    heir = "another worker" if last.heir is None else _name(last.heir)
    repeated = sum(one.repeated for one in falls)
    replayed = counted(last.replayed, "step")
    again = f"{counted(repeated, 'step')} repeated in all" if repeated else "none was repeated"
    if len(falls) == 1:
        return f"{died}; {heir} took over, replayed {replayed} and repeated {repeated or 'none'}."
    return f"{died}; {heir} took over last and replayed {replayed}; {again}."


def _reopened(times: int) -> str:
    """That it had ended before."""
    if not times:
        return ""
    return f"It had ended, and {'somebody let it go on' if times == 1 else f'was let go on {times} times'}."


def _name(hand: Hand, *, begins: bool = False) -> str:
    """Its name, which is told as it is; if it has none of its own, where it is."""
    if hand.name and hand.name != hand.place:
        return one_line(hand.name)
    return f"{begin(hand.kind) if begins else hand.kind} {one_line(hand.place) if hand.name else hand.id}"
