"""How a worker gets runs: it starts some, claims those that are due, and fetches signals and requests for held runs.

**Lost answers.** The store may perform a claim, or the start of a run as already claimed, and report it as failed. The
run is then held by a worker that does not know of it. No other worker takes it while that worker lives, and the store
does not report it, because it reports only what *others* write. So after each such failure, the worker checks which
runs the store says it holds: once at once, and once after a lease, in case the request was only delayed. It releases
those that it does not know. It also checks after a failover of the database, which may have lost the ends of runs, and
every ``UNACKNOWLEDGED_CHECK_INTERVAL_S`` seconds in any case: a run must never stay with a live worker that does not
work on it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.codec import ERASED, check_decrypted, check_readable, encode_error, is_encrypted_value
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.isolation import Isolation
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.errors import StoreCorrupt, StoreError, UndecryptableValue
from holdfast.stores.claims import NewSignals
from holdfast.stores.contract import History, RunFilter
from holdfast.stores.operations import (
    FinishRun,
    NewRun,
    OpResult,
    OpStatus,
    ReleaseRun,
    Run,
    RunLink,
    StartResult,
    StartRun,
)
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.worker_deaths import is_isolated

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")

MIN_EMPTY_CLAIM_PAUSE_S = 0.005
"""Seconds before the next claim, if one got nothing although something was due. They double with each further one. The
first pause is short: another worker may have locked everything that is due while it takes only a part of it."""
MAX_EMPTY_CLAIM_PAUSE_S = 0.2

UNACKNOWLEDGED_CHECK_INTERVAL_S = 60.0
"""Seconds between two checks for runs that this worker holds and does not work on."""
UNACKNOWLEDGED_RECHECK_DELAY_S = 0.2
"""Seconds before the next such check, if one could not tell for some runs."""
UNREADABLE_RUN_DELAY_S = 10.0
"""Seconds before a run may be claimed again after reading its journal failed with an unexpected error."""

MAX_CLAIM_BATCH_SIZE = 64
MIN_CLAIM_BATCH_SIZE = 16
"""A claim takes up to this many runs, or half as many as the worker holds, so that workers that have become idle at the
same moment share what is due."""
RUN_PAGE_SIZE = 500

EMPTY_HISTORY = History((), {}, ())


class Claims:
    """What this worker takes from the store, and what it may hold without knowing."""

    def __init__(self, host: JournalEngine) -> None:
        self._host = host
        self._held_runs = host.held_runs
        self._definitions = host.definitions
        self._queues = host.served_queues
        self._next_wake_at: float | None = None
        self._parked_wake_at: float | None = None
        """The earliest due time of the runs that have parked since the store was last asked."""
        self._signal_cursor = 0
        self._check_times: list[float] = []
        """When (monotonic) to check for runs that this worker may hold without knowing."""
        self._server_change_count = 0
        """The store's count at the last check."""
        self._next_check_at = host.clock.monotonic() + UNACKNOWLEDGED_CHECK_INTERVAL_S
        """When (monotonic) to check in any case."""
        self.is_starved = False
        """Whether a run was due, and no slot was free."""
        self._isolation = Isolation(host.held_runs, host.clock, host.lease_s)
        self._has_disabled_runs = False
        """Runs in memory start nothing more, because their workflows were disabled."""
        self._is_claiming = False
        self._empty_claim_pause_s = MIN_EMPTY_CLAIM_PAUSE_S
        self._claimed_while_starting: set[str] = set()
        """Runs that a claim gave to this worker before their start was answered. Only the claim loads them: if it
        cannot read their journals, it releases them, and the answer to the start does not know that."""
        self._deferred_starts: list[tuple[Run, WorkflowDefinition]] = []
        """Runs that a parent has started during a claim: perhaps the claim has returned them."""
        self.starting_run_ids: defaultdict[str, int] = defaultdict(int)
        """Ids of runs that are being started here, and are held from the moment the store has created them."""

    # When to claim

    def can_serve_queue(self, queue: str) -> bool:
        """Whether this worker takes runs from the queue."""
        return self._queues is None or queue in self._queues

    def is_due(self) -> bool:
        """Whether a run may be claimed now."""
        return self._next_wake_at is not None and self._next_wake_at <= self._host.clock.now()

    def get_wait_s(self, max_wait_s: float) -> float:
        """Seconds until a run may be claimed, at most ``max_wait_s``."""
        if self._next_wake_at is None or self.is_starved or self._host.is_draining:
            return max_wait_s
        return min(max_wait_s, max(0.0, self._next_wake_at - self._host.clock.now()))

    def note_wake_at(self, when: float) -> None:
        """A run has parked here, and will be due at this time."""
        self._next_wake_at = _min_time(when, self._next_wake_at)
        self._parked_wake_at = _min_time(when, self._parked_wake_at)

    # Starting

    def start_run(
        self, new: NewRun, on_answer: AnswerCallback, *, join_orphan: bool = False, link: RunLink | None = None
    ) -> None:
        """Start a run, as already claimed if this worker can execute it now."""
        host = self._host
        definition = self._definitions.get(make_served_name(new.workflow, new.version))
        should_claim = (
            definition is not None
            and not host.is_draining
            and new.available_at <= host.clock.now()
            and self._held_runs.free_slot_count > 0
            and not self._isolation.is_exclusive
            and self.can_serve_queue(new.queue)
        )
        self._held_runs.add_incoming(should_claim)
        self.starting_run_ids[new.id] += should_claim

        def on_started(answer: OpResult | BaseException) -> None:
            self._held_runs.add_incoming(-should_claim)
            self.starting_run_ids[new.id] -= should_claim
            is_claimed = new.id in self._claimed_while_starting
            if not self.starting_run_ids[new.id]:
                del self.starting_run_ids[new.id]
                self._claimed_while_starting.discard(new.id)
            if isinstance(answer, BaseException):
                self.note_unacknowledged()
            elif (
                definition is not None
                and should_claim
                and isinstance(answer, StartResult)
                and self._is_first_execution(answer)
                and not is_claimed
            ):
                # Loaded here and not by the caller: if that was cancelled meanwhile, this worker still holds the run.
                if self._is_claiming and link is not None:
                    self._held_runs.add_incoming(1)
                    self._deferred_starts.append((answer.run, definition))
                else:
                    self._held_runs.load(answer.run, definition, EMPTY_HISTORY)
            else:
                host.wake()
            on_answer(answer)

        claim_as = host.worker_id if should_claim else None
        host.writer.submit(StartRun(new, claim_as, join_orphan=join_orphan, link=link), on_started)

    def _is_first_execution(self, started: StartResult) -> bool:
        """Whether no worker has executed any of a run that this worker holds.

        A parent starts its children again whenever it comes back into memory, and finds them running.
        """
        run = started.run
        is_first = started.is_new and run.state is RunState.RUNNING and run.epoch == 1
        return is_first and self._held_runs.drivers.get(run.key) is None

    # Claiming

    async def claim_due(self) -> None:
        """Claim what is due, as far as there are free slots."""
        host = self._host
        names = tuple(self._definitions)
        while not host.is_draining:
            self._parked_wake_at = None
            next_wake = await host.store.claims.get_next_wake_at(workflows=names, queues=self._queues)
            # The answer may be older than a park by this worker, which the store does not report.
            self._next_wake_at = _min_time(next_wake, self._parked_wake_at)
            self.is_starved = self._held_runs.free_slot_count <= 0 or self._isolation.is_exclusive
            if self.is_starved or not self.is_due():
                self._empty_claim_pause_s = MIN_EMPTY_CLAIM_PAUSE_S
                return
            fair_size = max(MIN_CLAIM_BATCH_SIZE, len(self._held_runs.drivers) // 2)
            limit = min(fair_size, MAX_CLAIM_BATCH_SIZE, self._held_runs.free_slot_count)
            suspect_delay_s = self._isolation.get_suspect_delay_s()
            self._held_runs.add_incoming(limit)
            self._is_claiming = True
            runs: Sequence[Run] = ()
            began_at = host.clock.monotonic()
            try:
                runs = await host.store.claims.claim(
                    host.worker_id, workflows=names, queues=self._queues, limit=limit, suspect_delay_s=suspect_delay_s
                )
                if (telemetry := host.telemetry) is not None and telemetry.metrics is not None:
                    telemetry.metrics.claim_duration.observe(host.clock.monotonic() - began_at)
                self._claimed_while_starting.update(run.id for run in runs if run.id in self.starting_run_ids)
                histories = await self._read_histories(runs)
                for run, history in zip(runs, histories, strict=True):
                    if history is not None:
                        definition = self._definitions[make_served_name(run.workflow, run.version)]
                        self._held_runs.load(run, definition, history)
                self._isolation.note_claimed(self._find_suspects(runs))
            except BaseException:
                self.note_unacknowledged()
                raise
            finally:
                self._held_runs.add_incoming(-limit)
                self._is_claiming = False
                self._load_deferred_starts({run.id for run in runs})
            if not runs:
                # Another worker was quicker, or this worker is no longer live: claim again after a pause, not at once.
                self._next_wake_at = host.clock.now() + self._empty_claim_pause_s
                self._empty_claim_pause_s = min(2 * self._empty_claim_pause_s, MAX_EMPTY_CLAIM_PAUSE_S)
                return
            self._empty_claim_pause_s = MIN_EMPTY_CLAIM_PAUSE_S

    def _find_suspects(self, claimed: Sequence[Run]) -> list[Driver]:
        suspects = [run for run in claimed if is_isolated(run.suspicion)]
        return [driver for run in suspects if (driver := self._held_runs.drivers.get(run.key)) is not None]

    def _load_deferred_starts(self, claimed: Collection[str]) -> None:
        """Load the runs that were started during a claim, unless the claim has returned them."""
        deferred, self._deferred_starts = self._deferred_starts, []
        for run, definition in deferred:
            self._held_runs.add_incoming(-1)
            if run.id not in claimed and self._held_runs.drivers.get(run.key) is None:
                self._held_runs.load(run, definition, EMPTY_HISTORY)

    async def _read_histories(self, runs: Sequence[Run]) -> list[History | None]:
        """The histories of runs just claimed; ``None`` for a run that fails alone, because its journal is damaged."""
        try:
            keys, store = [run.key for run in runs], self._host.store
            histories = await store.claims.take_histories(keys)
            if histories is None:
                histories = await store.get_histories(keys)
            for history in histories:
                _check_decrypted_history(history)
            return [*histories]
        except (StoreCorrupt, UndecryptableValue) as error:
            if len(runs) == 1:
                log.error("run %r fails, because its journal cannot be read: %s", runs[0].id, error)
                self._fail_unreadable(runs[0], error)
                return [None]
            return await self._read_one_by_one(runs)
        except StoreError:
            # This worker holds them now, and no other worker would take them while it lives.
            for run in runs:
                self._release(ReleaseRun(run.key, run.epoch))
            raise
        except Exception as error:
            if len(runs) > 1:
                return await self._read_one_by_one(runs)
            log.exception("run %r is given back, because its journal could not be read", runs[0].id)
            later = self._host.clock.now() + UNREADABLE_RUN_DELAY_S
            self._release(ReleaseRun(runs[0].key, runs[0].epoch, later, encode_error(error)))
            return [None]

    async def _read_one_by_one(self, runs: Sequence[Run]) -> list[History | None]:
        return [history for run in runs for history in await self._read_histories([run])]

    def _fail_unreadable(self, run: Run, error: StoreCorrupt | UndecryptableValue) -> None:
        at = self._host.clock.now()
        ended = replace(run, state=RunState.FAILED, error=encode_error(error), finished_at=at, owner=None)
        op = FinishRun(run.key, run.epoch, ended.state, None, ended.error, at, respect_cancel=False)
        self._host.writer.submit(op, partial(self._on_unreadable_failed, ended))

    def _on_unreadable_failed(self, ended: Run, answer: OpResult | BaseException) -> None:
        if answer in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
            self._host.on_unloaded_run_ended(ended)
            self._host.wake()
        elif isinstance(answer, BaseException):
            self.note_unacknowledged()

    # Releasing

    def _release(self, op: ReleaseRun) -> None:
        self._host.writer.submit(op, self.on_released)

    def on_released(self, answer: OpResult | BaseException) -> None:
        """The store has answered the release of a run."""
        if isinstance(answer, BaseException):
            self.note_unacknowledged()
        self._host.wake()  # the store does not report this worker's own writes

    # Lost answers

    def note_unacknowledged(self) -> None:
        """Claiming, starting, or waking a run has failed: the store may have done it all the same."""
        now = self._host.clock.monotonic()
        self._check_times += [now, now + self._host.lease_s]

    def is_check_due(self) -> bool:
        """Whether it is time to check for runs that this worker may hold without knowing."""
        is_time = min((self._next_check_at, *self._check_times)) <= self._host.clock.monotonic()
        return is_time or self._has_server_changed()

    def _has_server_changed(self) -> bool:
        return self._server_change_count != self._host.store.claims.server_change_count

    async def release_unacknowledged(self) -> None:
        """If it is time to check, release the runs that this worker holds and does not know."""
        if self._has_server_changed():
            self._server_change_count = self._host.store.claims.server_change_count
            self._signal_cursor = 0  # the numbers of transactions may have been set back
            self.note_unacknowledged()
        if not self.is_check_due():
            return
        from holdfast.stores.encrypted import unwrap_store  # only here: most programs encrypt nothing

        host = self._host
        now, before, is_unsure = host.clock.monotonic(), None, False
        while True:
            known = {(driver.run.key, driver.run.epoch) for driver in self._held_runs.list_drivers()}
            held = RunFilter(states=(RunState.RUNNING,), owner=host.worker_id)
            # Without decrypting the rows: values that cannot be decrypted may be the reason why they are here.
            page = await unwrap_store(host.store).list_runs(held, limit=RUN_PAGE_SIZE, before_key=before)
            for run in page:
                driver = self._held_runs.drivers.get(run.key)
                # A driver of an earlier epoch does not know yet that its run ended and was reopened.
                if driver is not None and driver.run.epoch == run.epoch:
                    continue
                if self.starting_run_ids.get(run.id) or (run.key, run.epoch) in known:
                    is_unsure = True  # its start may not be answered yet, or it has left memory during the query
                    continue
                log.warning("run %r is held by this worker, which does not work on it; it is given back", run.id)
                self._release(ReleaseRun(run.key, run.epoch))
            if len(page) < RUN_PAGE_SIZE:
                break
            before = page[-1].key
        self._check_times = [due for due in self._check_times if due > now]
        if is_unsure:
            self._check_times.append(now + UNACKNOWLEDGED_RECHECK_DELAY_S)
        self._next_check_at = now + UNACKNOWLEDGED_CHECK_INTERVAL_S

    # Signals and requests

    async def fetch_changes(self) -> None:
        """Give the runs in memory their new requests (cancel, pause, disable) and signals.

        Requests are read after the signals, and delivered before them: a run that was paused and then got a signal does
        not continue by that signal.
        """
        if not self._held_runs.drivers:
            return
        found = await self._host.store.claims.get_new_signals(self._host.worker_id, self._signal_cursor)
        await self._fetch_requests()
        self._deliver_signals(found)

    def _deliver_signals(self, found: NewSignals) -> None:
        has_unloaded_run = False
        for key, signal in found.signals:
            driver = self._held_runs.drivers.get(key)
            if driver is None:
                has_unloaded_run = True
            elif is_encrypted_value(signal.payload):
                # It stays in the store, for a worker that has the key.
                log.warning("run %r is not told signal %r: it is sealed, with no key here", driver.run.id, signal.name)
            else:
                driver.add_signals([signal])
        if not has_unloaded_run:  # a signal for a run that is just being loaded is fetched again next time
            self._signal_cursor = found.cursor

    async def _fetch_requests(self) -> None:
        host = self._host
        for request in await host.store.claims.get_run_requests(host.worker_id):
            driver = self._held_runs.drivers.get(request.key)
            if driver is not None:
                driver.handle_request(request)
        disabled = await host.store.disabled_workflows.get_all()
        if disabled or self._has_disabled_runs:
            self._apply_disabled(disabled)

    def _apply_disabled(self, disabled_workflows: Collection[str]) -> None:
        for driver in self._held_runs.list_drivers():
            if driver.run.workflow not in disabled_workflows:
                if driver.is_disabled:
                    driver.cancel_disable()
            elif not driver.is_disabled:
                log.warning("run %r stops: workflow %r is disabled", driver.run.id, driver.run.workflow)
                driver.begin_disable()
        self._has_disabled_runs = any(driver.is_disabled for driver in self._held_runs.list_drivers())


def _min_time(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def _check_decrypted_history(history: History) -> None:
    """Raise ``UndecryptableValue`` if this worker cannot decrypt something in the history, or something was erased.

    Workflow code must not see such values: it could mistake the error for the failure of a step.
    """
    for record in history.records:
        payload = record.payload
        if payload is not None and (payload == ERASED or is_encrypted_value(payload)):
            check_readable(payload, f"record {record.seq} ({record.name!r} at position {record.position})")
    for attempt in history.attempts.values():
        for data in (attempt.progress, attempt.outcome):
            check_decrypted(data or b"", f"what is known of step {attempt.name!r} at position {attempt.position}")
    for signal in history.signals:
        check_decrypted(signal.payload, f"signal {signal.name!r}")
