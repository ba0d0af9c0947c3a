"""How a worker comes to runs: it starts some, claims those that are due, and fetches what was sent to those it holds.

**Answers that got lost.** A claim, or the start of a run as already claimed, can be carried out by the store and
reported as failed. The run is then held by a worker that does not know of it, and nobody else takes it up while that
worker lives. Nor does anything tell: a store reports what *others* write. So every such failure leaves a *doubt*: there
is another look at once, and one more after a lease, for a request that was only delayed; what the store says is ours
and we do not know is given back. So is every ``LOOK_FOR_UNHELD`` seconds whatever got there in another way: a run must
never stay with a worker that lives and does not work on it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from holdfast.codec import encode_error, is_sealed, refuse_sealed
from holdfast.core.states import RunState
from holdfast.engine.clock import Clock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.isolation import Isolation
from holdfast.engine.journal_writer import Done, Writer
from holdfast.errors import StoreCorrupt, StoreError, UndecryptableValue
from holdfast.stores.contract import History, NewSignals, RunFilter, Store
from holdfast.stores.operations import Answer, FinishRun, ReleaseRun, Run, Started, StartRun, Verdict
from holdfast.stores.rules import is_isolated
from holdfast.stores.served_versions import served_name

log = logging.getLogger("holdfast.engine")

PAUSE = 0.2
"""Seconds after which a claim that got nothing, although something was due, is made again."""

LOOK_FOR_UNHELD = 60.0
"""Seconds between two looks for runs that the store says this worker holds, and that it does not work on."""
UNREADABLE_PAUSE = 10.0
"""Seconds before a run may be claimed again whose journal could not be read, for a reason that no store should have."""

BATCH = 64
UNHEARD_PAGE = 500

EMPTY = History((), {}, ())


class Holder(Protocol):
    """What claims need of the engine for which they are made."""

    store: Store
    clock: Clock
    writer: Writer
    worker: int
    draining: bool

    @property
    def room(self) -> int:
        """How many more runs may be in memory."""
        ...

    def expect(self, runs: int) -> None:
        """So many runs will be in memory in a moment (or, if negative, will not)."""

    @property
    def is_empty(self) -> bool:
        """Whether no run is in memory."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether no run is in memory, and none is about to be."""
        ...

    def driver_of(self, key: int) -> Driver | None:
        """The driver of a run that is in memory."""
        ...

    def drivers(self) -> list[Driver]:
        """The drivers of all runs in memory."""
        ...

    def take(self, run: Run, definition: WorkflowDefinition, history: History) -> None:
        """Take a run into memory that the store has given us."""

    def ended_unread(self, run: Run) -> None:
        """A run has ended here without having been in memory."""

    def nudge(self) -> None:
        """Look again at once."""


class Claims:
    """What this worker takes from the store, and what it may have been given without knowing."""

    def __init__(
        self,
        holder: Holder,
        definitions: Mapping[str, WorkflowDefinition],
        queues: tuple[str, ...] | None,
        lease: float,
    ) -> None:
        self._holder = holder
        self._definitions = definitions
        self._queues = queues
        self._lease = lease
        self._next_wake: float | None = None
        self._parked_meanwhile: float | None = None
        """The earliest time at which a run is due that has parked since the store was last asked."""
        self._signal_cursor = 0
        self._doubts: list[float] = []
        """When (monotonic) to look for what the store may have done without our knowing."""
        self._next_look = holder.clock.monotonic() + LOOK_FOR_UNHELD
        """When (monotonic) to look for it in any case."""
        self.starved = False
        """Whether there was something to take, and no room for it."""
        self._isolation = Isolation(holder, lease)
        self._some_stand = False
        """Runs in memory stand still, or are about to, because their workflows were switched off."""
        self._claiming = False
        self._claimed_meanwhile: set[str] = set()
        """Runs that a claim gave to this worker before their start was answered. Only the claim takes them up: if it
        cannot read their journals, it gives them back, and the answer to the start does not know that."""
        self._held_back: list[tuple[Run, WorkflowDefinition]] = []
        """Runs that a parent has started while a claim was under way: perhaps it is that which has given them to us."""
        self.starting: Counter[str] = Counter()
        """Ids of runs that are being started here, and held from the moment the store has created them."""

    # When

    def serves(self, queue: str) -> bool:
        """Whether this worker takes runs from the queue."""
        return self._queues is None or queue in self._queues

    def is_due(self) -> bool:
        """Whether a run may be claimed now."""
        return self._next_wake is not None and self._next_wake <= self._holder.clock.now()

    def until_due(self, longest: float) -> float:
        """Seconds until a run may be claimed, at most ``longest``."""
        if self._next_wake is None or self.starved or self._holder.draining:
            return longest
        return min(longest, max(0.0, self._next_wake - self._holder.clock.now()))

    def wake_at(self, when: float) -> None:
        """A run has parked here, and will be due then."""
        self._next_wake = _earlier(when, self._next_wake)
        self._parked_meanwhile = _earlier(when, self._parked_meanwhile)

    # Starting

    def start(self, op: StartRun, then: Done) -> None:
        """Start a run, as already claimed if this worker can execute it now."""
        new, holder = op.run, self._holder
        definition = self._definitions.get(served_name(new.workflow, new.version))
        mine = (
            definition is not None
            and not holder.draining
            and new.available_at <= holder.clock.now()
            and holder.room > 0
            and not self._isolation.is_exclusive
            and self.serves(new.queue)
        )
        holder.expect(mine)
        self.starting[new.id] += mine

        def done(answer: Answer | BaseException) -> None:
            holder.expect(-mine)
            self.starting[new.id] -= mine
            is_claimed = new.id in self._claimed_meanwhile
            if not self.starting[new.id]:
                del self.starting[new.id]
                self._claimed_meanwhile.discard(new.id)
            if isinstance(answer, BaseException):
                self.doubt()
            elif mine and isinstance(answer, Started) and self._is_new_here(answer) and not is_claimed:
                # Taken up here and not by whoever asked: if that was cancelled meanwhile, the run is still ours.
                assert definition is not None
                if self._claiming and op.link is not None:
                    holder.expect(1)
                    self._held_back.append((answer.run, definition))
                else:
                    holder.take(answer.run, definition, EMPTY)
            else:
                holder.nudge()
            then(answer)

        holder.writer.submit(op._replace(claim_as=holder.worker if mine else None), done)

    def _is_new_here(self, started: Started) -> bool:
        """Whether nobody has executed any of a run that this worker holds.

        A run that starts another one does so again whenever it comes back into memory, and finds it at work.
        """
        run = started.run
        is_first = started.created and run.state is RunState.RUNNING and run.epoch == 1
        return is_first and self._holder.driver_of(run.key) is None

    # Claiming

    async def take_due(self) -> None:
        """Claim what is due, as far as there is room."""
        holder = self._holder
        names = tuple(self._definitions)
        while not holder.draining:
            self._parked_meanwhile = None
            next_wake = await holder.store.next_wake(workflows=names, queues=self._queues)
            # The answer may be older than a park of ours, of which nobody tells us again.
            self._next_wake = _earlier(next_wake, self._parked_meanwhile)
            self.starved = holder.room <= 0 or self._isolation.is_exclusive
            if self.starved or not self.is_due():
                return
            limit = min(BATCH, holder.room)
            suspects_after = self._isolation.suspects_after()
            holder.expect(limit)
            self._claiming = True
            runs: Sequence[Run] = ()
            try:
                runs = await holder.store.claim(
                    holder.worker, workflows=names, queues=self._queues, limit=limit, suspects_after=suspects_after
                )
                self._claimed_meanwhile.update(run.id for run in runs if run.id in self.starting)
                histories = await self._read_histories(runs)
                for run, history in zip(runs, histories, strict=True):
                    if history is not None:
                        holder.take(run, self._definitions[served_name(run.workflow, run.version)], history)
                self._isolation.note_claimed(self._suspects_among(runs))
            except BaseException:
                self.doubt()
                raise
            finally:
                holder.expect(-limit)
                self._claiming = False
                self._take_held_back({run.id for run in runs})
            if not runs:
                # Somebody else was quicker, or this worker is no longer live: look again in a while, not at once.
                self._next_wake = holder.clock.now() + PAUSE
                return

    def _suspects_among(self, claimed: Sequence[Run]) -> list[Driver]:
        suspects = [run for run in claimed if is_isolated(run.suspicion)]
        return [driver for run in suspects if (driver := self._holder.driver_of(run.key)) is not None]

    def _take_held_back(self, claimed: Collection[str]) -> None:
        """Take up the runs that were started while a claim was under way, unless that was what gave them to us."""
        held_back, self._held_back = self._held_back, []
        for run, definition in held_back:
            self._holder.expect(-1)
            if run.id not in claimed and self._holder.driver_of(run.key) is None:
                self._holder.take(run, definition, EMPTY)

    async def _read_histories(self, runs: Sequence[Run]) -> list[History | None]:
        """What is recorded of runs just claimed. A run whose journal is damaged fails alone: ``None``."""
        try:
            histories = await self._holder.store.histories([run.key for run in runs])
            for history in histories:
                _check_that_it_is_open(history)
            return [*histories]
        except (StoreCorrupt, UndecryptableValue) as error:
            if len(runs) == 1:
                log.error("run %r fails, because its journal cannot be read: %s", runs[0].id, error)
                self._end_unread(runs[0], error)
                return [None]
            return await self._read_alone(runs)
        except StoreError:
            # They are ours by now, and nobody else would take them up while we live.
            for run in runs:
                self._release(ReleaseRun(run.key, run.epoch))
            raise
        except Exception as error:
            if len(runs) > 1:
                return await self._read_alone(runs)
            log.exception("run %r is given back, because its journal could not be read", runs[0].id)
            later = self._holder.clock.now() + UNREADABLE_PAUSE
            self._release(ReleaseRun(runs[0].key, runs[0].epoch, later, encode_error(error)))
            return [None]

    async def _read_alone(self, runs: Sequence[Run]) -> list[History | None]:
        return [history for run in runs for history in await self._read_histories([run])]

    def _end_unread(self, run: Run, error: StoreCorrupt | UndecryptableValue) -> None:
        holder, at = self._holder, self._holder.clock.now()
        ended = replace(run, state=RunState.FAILED, error=encode_error(error), finished_at=at, owner=None)
        op = FinishRun(run.key, run.epoch, ended.state, None, ended.error, at, heed_cancel=False)
        holder.writer.submit(op, partial(self._ended_unread, ended))

    def _ended_unread(self, ended: Run, answer: Answer | BaseException) -> None:
        if answer in (Verdict.DONE, Verdict.TOLD):
            self._holder.ended_unread(ended)
            self._holder.nudge()
        elif isinstance(answer, BaseException):
            self.doubt()

    # Giving back

    def _release(self, op: ReleaseRun) -> None:
        self._holder.writer.submit(op, self.given_back)

    def given_back(self, answer: Answer | BaseException) -> None:
        """The store has been asked to give a run to another worker, or to this one again."""
        if isinstance(answer, BaseException):
            self.doubt()
        self._holder.nudge()  # nobody tells of our own writes

    # Doubts

    def doubt(self) -> None:
        """The store failed to give us a run, to start one or to wake one: it may have done so all the same."""
        now = self._holder.clock.monotonic()
        self._doubts += [now, now + self._lease]

    def in_doubt(self) -> bool:
        """Whether it is time to look for what we may have been given."""
        return min((self._next_look, *self._doubts)) <= self._holder.clock.monotonic()

    async def look_for_unheld(self) -> None:
        """Release the runs that the store gave us in an answer that never came, if it is time to look for them."""
        if not self.in_doubt():
            return
        from holdfast.stores.encrypted import beneath  # only here: most programs seal nothing

        holder = self._holder
        now, before, unsure = holder.clock.monotonic(), None, False
        while True:
            known = {(driver.run.key, driver.run.epoch) for driver in holder.drivers()}
            held = RunFilter(states=(RunState.RUNNING,), owner=holder.worker)
            # As the rows are kept: nobody reads what is sealed in them, and it may be why they are here.
            page = await beneath(holder.store).list_runs(held, limit=UNHEARD_PAGE, before=before)
            for run in page:
                driver = holder.driver_of(run.key)
                # A driver of an earlier epoch is only about to learn that its run ended, and somebody reopened it.
                if driver is not None and driver.run.epoch == run.epoch:
                    continue
                if self.starting[run.id] or (run.key, run.epoch) in known:
                    unsure = True  # perhaps the answer to its start is on its way, or it has left while we asked
                    continue
                log.warning("run %r is held by this worker, which does not work on it; it is given back", run.id)
                self._release(ReleaseRun(run.key, run.epoch))
            if len(page) < UNHEARD_PAGE:
                break
            before = page[-1].key
        self._doubts = [due for due in self._doubts if due > now] + [now + PAUSE] * unsure
        self._next_look = now + LOOK_FOR_UNHELD

    # Signals and requests

    async def fetch_news(self) -> None:
        """Tell the runs in memory what has been asked of them, and hand them new signals.

        What was asked is read after the signals, and told before them: a run that was paused, and sent a signal then,
        does not go on by that signal.
        """
        holder = self._holder
        if holder.is_empty:
            return
        found = await holder.store.new_signals(holder.worker, self._signal_cursor)
        await self._fetch_requests()
        self._hand_out(found)

    def _hand_out(self, found: NewSignals) -> None:
        holder = self._holder
        unknown = False
        for key, signal in found.signals:
            driver = holder.driver_of(key)
            if driver is None:
                unknown = True
            elif is_sealed(signal.payload):
                # As with any that cannot be read: it stays where it is, for a worker that has the key.
                log.warning("run %r is not told signal %r: it is sealed, with no key here", driver.run.id, signal.name)
            else:
                driver.add_signals([signal])
        if not unknown:  # a signal for a run that is only just being taken up is asked for again next time
            self._signal_cursor = found.cursor

    async def _fetch_requests(self) -> None:
        holder = self._holder
        for request in await holder.store.requests(holder.worker):
            driver = holder.driver_of(request.key)
            if driver is not None:
                driver.ask(request)
        off = await holder.store.switched_off()
        if off or self._some_stand:
            self._heed_switches(off)

    def _heed_switches(self, off: Collection[str]) -> None:
        for driver in self._holder.drivers():
            if driver.run.workflow not in off:
                if driver.standing:
                    driver.go_on()
            elif not driver.standing:
                log.warning("run %r stands still: workflow %r is switched off", driver.run.id, driver.run.workflow)
                driver.stand_still()
        self._some_stand = any(driver.standing for driver in self._holder.drivers())


def _earlier(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def _check_that_it_is_open(history: History) -> None:
    """Raises ``UndecryptableValue`` for a history in which something is sealed that this worker cannot open.

    Workflow code must not meet such values: it could take what comes of them for the failure of a step.
    """
    for record in history.records:
        if record.payload is not None and is_sealed(record.payload):
            refuse_sealed(record.payload, f"record {record.seq} ({record.name!r} at position {record.position})")
    for attempt in history.attempts.values():
        for data in (attempt.progress, attempt.outcome):
            refuse_sealed(data or b"", f"what is known of step {attempt.name!r} at position {attempt.position}")
    for signal in history.signals:
        refuse_sealed(signal.payload, f"signal {signal.name!r}")
