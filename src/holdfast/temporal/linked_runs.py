"""The runs that a fed run has started, or waits for.

A child tells its end by itself, to each command that waits for it. A run that is no child, because somebody else has
started it, or an earlier execution of this one, is looked for and waited for by an activity.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.states import RunState
from holdfast.engine.journal_writer import Done
from holdfast.stores.operations import Link, NewRun, Run, Started, Verdict
from holdfast.stores.temporal.outcomes import child_end
from holdfast.stores.temporal.run_events import ChildEnded, ChildStarted, Ended, How, StepEnded
from holdfast.temporal import start_limiter
from holdfast.temporal.awaited_run import AwaitedRun
from holdfast.temporal.start_limiter import Pace

if TYPE_CHECKING:
    from holdfast.temporal.temporal_run import Feed


class Relatives:
    """What a fed run knows of other runs."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._starting: dict[int, tuple[NewRun | None, str, Link, Done]] = {}
        """What waits to be told that a run is there: what is started, or only awaited, by position."""
        self._children: set[str] = set()
        self._ends: dict[str, Ended] = {}
        """Of children that have ended."""
        self._waiting: dict[str, list[int]] = {}
        """Positions that wait for children."""
        self._awaiting: set[int] = set()
        """Positions for which an activity waits for a run that is no child."""
        self._starts = Pace(start_limiter.MOST_CHILDREN)

    @property
    def are_awaited(self) -> bool:
        """Whether something of another run is still to be heard of."""
        return bool(self._starting or self._waiting)

    def start(self, new: NewRun, link: Link, done: Done) -> None:
        """Start a run for this one."""
        feed = self._feed
        self._starting[link.position] = new, new.id, link, done
        begin = partial(feed.begin_child, new, link.position, awaited=link.awaited)
        self._starts.ask(link.position, begin, start_limiter.cost(new.inputs, apart=feed.apart))

    def cancel(self, run_id: str) -> None:
        """Let a run be cancelled that this one has started, or was to start."""
        for position, (_, id, _, done) in list(self._starting.items()):
            if id == run_id and self._starts.drop(position):
                del self._starting[position]
                self._feed.later(done, Verdict.UNKNOWN_RUN)
                return
        if run_id not in self._ends:
            self._feed.cancel_child(run_id)

    def started(self, told: ChildStarted) -> None:
        """A child is there; or not, because there is a run under its id."""
        (self._starts.accepted if told.is_new else self._starts.over)(told.position)
        known = self._starting.pop(told.position, None)
        if known is None:
            return
        new, run_id, link, done = known
        assert new is not None
        if not told.is_new:
            # There is a run under this id already: perhaps it is the one that is meant.
            self._starting[told.position] = known
            self._begin_await(
                run_id, link, reopen=bool(self._feed.driver.run.rewound) and new.parent == self._feed.driver.run.id
            )
            return
        self._children.add(run_id)
        if link.awaited:
            self._waiting.setdefault(run_id, []).append(link.position)
        done(Started(_row(new), created=True, linked=True))

    def wait_for(self, run_id: str, link: Link, done: Done) -> None:
        """Wait for the end of a run that was started before."""
        if run_id not in self._children:
            self._starting[link.position] = None, run_id, link, done
            self._begin_await(run_id, link)
        elif run_id in self._ends:
            state, output, error = child_end(self._ends[run_id])
            self._feed.later(done, Started(_row(None, run_id, state, output, error), created=False))
        else:
            self._waiting.setdefault(run_id, []).append(link.position)
            self._feed.later(done, Started(_row(None, run_id), created=False, linked=True))

    def look(self) -> None:
        """Let nobody wait for a run that the code no longer waits for."""
        feed = self._feed
        for position in [one for one in self._awaiting if one not in feed.driver.execution.open]:
            self._awaiting.discard(position)
            self._starting.pop(position, None)
            feed.cancel_await(position)

    def _begin_await(self, run_id: str, link: Link, *, reopen: bool = False) -> None:
        self._awaiting.add(link.position)
        awaited = AwaitedRun(run_id, wait=link.awaited, reopen=reopen)
        self._feed.activities.ask(link.position, partial(self._feed.begin_await, link.position, awaited))

    def awaited(self, told: StepEnded) -> None:
        """An activity has found a run, or waited for its end."""
        self._awaiting.discard(told.position)
        known = self._starting.pop(told.position, None)
        if known is None:
            return
        _, run_id, _, done = known
        found = AwaitedRun.found_in(told.ended.payload) if told.ended.how is How.COMPLETED else None
        if found is None:
            done(Verdict.UNKNOWN_RUN)
        else:
            row = _row(None, run_id, found.state, found.output, found.error)
            done(Started(replace(row, workflow=found.workflow, digest=found.digest), created=False))

    def ended(self, told: ChildEnded) -> None:
        """A child has ended."""
        self._starts.over(told.position)
        self._ends[told.run_id] = told.ended
        state, output, error = child_end(told.ended)
        for position in self._waiting.pop(told.run_id, ()):
            self._feed.put(state, output or error or b"null", self._feed.clock.now(), position)


def _row(
    new: NewRun | None,
    run_id: str = "",
    state: RunState = RunState.RUNNING,
    output: bytes | None = None,
    error: bytes | None = None,
) -> Run:
    """As much of another run's row as its caller looks at."""
    return Run(
        key=0, id=run_id if new is None else new.id, workflow="" if new is None else new.workflow, queue="default",
        state=state, epoch=1, owner=None, starter=None, deliveries=0, max_deliveries=1, wake_at=None, waits_for="",
        priority=0, deadline=None, inputs=b"", digest=b"" if new is None else new.digest, seed=b"", output=output,
        error=error, tags=(), python="", created_at=0.0, finished_at=None, began_at=0.0,
    )  # fmt: skip
