"""The runs that a worker has in memory, and how a run gets there.

A run is loaded when the store has given it to this worker: its driver replays the journal and continues. If the code of
a workflow needs slow imports (``load_imports``) or other preparation (``prepare_run``), the driver starts after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.records import RecordKind
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.driver import Driver
from holdfast.engine.held_run import HeldRun
from holdfast.stores.contract import History
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from holdfast.engine.journal_engine import JournalEngine

log = logging.getLogger("holdfast.engine")


class HeldRuns:
    """The drivers of the runs in memory, and the number of free slots."""

    def __init__(self, host: JournalEngine, max_count: int) -> None:
        self._host = host
        self._max_count = max_count
        self.drivers: dict[int, Driver] = {}
        """By run key."""
        self.drivers_by_run_id: dict[str, Driver] = {}
        self._incoming_count = 0
        """Runs that are being started or claimed, and will soon be among the drivers."""
        self._loaded_imports: set[Callable[[], None]] = set()
        """The ``load_imports`` that have been called."""

    @property
    def free_slot_count(self) -> int:
        """How many more runs may be in memory."""
        return self._max_count - len(self.drivers) - self._incoming_count

    def add_incoming(self, count: int) -> None:
        """Reserve slots for this many runs that will soon be in memory; a negative count frees them."""
        self._incoming_count += count

    @property
    def is_idle(self) -> bool:
        """Whether no run is in memory or about to be."""
        return not self.drivers and not self._incoming_count

    def list_drivers(self) -> list[Driver]:
        """The drivers of all runs in memory: a copy, because calling a driver may remove it."""
        return list(self.drivers.values())

    def load(self, run: Run, definition: WorkflowDefinition, history: History) -> None:
        """Load a run that the store has given to this worker."""
        host = self._host
        if run.owner != host.worker_id or host.membership.is_reregistering:
            return  # it was given to the worker that this one was before it was declared dead: others hold it by now
        known = self.drivers.get(run.key)
        if known is not None and known.run.epoch == run.epoch:
            return  # both a claim and a parent that starts it again got it
        driver = Driver(host, run, definition)
        if host.telemetry is not None:
            driver.telemetry = host.telemetry.open_run(
                run, history.records, is_agent=definition.is_agent, now=host.clock.now()
            )
        if run.delivery_count:
            outcomes = [record for record in history.records if record.kind is not RecordKind.CALL]
            host.run_log.log_takeover(run, record_count=len(outcomes))
            if driver.telemetry is not None:
                driver.telemetry.note_takeover(outcomes, host.clock.now())
        self.drivers[run.key] = driver
        self.drivers_by_run_id[run.id] = driver
        is_loaded = definition.load_imports is None or definition.load_imports in self._loaded_imports
        if is_loaded and definition.prepare_run is None:
            self._start_driver(driver, history)
            return
        loading = host.loop.create_task(self._load_and_start(definition, driver, history))
        host.lingering_tasks.add(loading)
        loading.add_done_callback(host.lingering_tasks.discard)

    def remove(self, held_run: HeldRun) -> None:
        """The run has left memory; it may have been loaded again since."""
        run = held_run.run
        if self.drivers.get(run.key) is held_run:
            del self.drivers[run.key]
        if self.drivers_by_run_id.get(run.id) is held_run:  # a run that the database lost may have been started again
            del self.drivers_by_run_id[run.id]

    def _start_driver(self, driver: Driver, history: History) -> None:
        try:
            driver.start(history)
        except Exception as error:
            log.exception("run %r could not be taken up", driver.run.id)
            driver.fail(error)

    async def _load_and_start(self, definition: WorkflowDefinition, driver: Driver, history: History) -> None:
        """Start when the imports that the code needs are done (in a thread: they may take seconds)."""
        load = definition.load_imports
        try:
            if load is not None and load not in self._loaded_imports:
                await asyncio.to_thread(load)
                self._loaded_imports.add(load)
            if definition.prepare_run is not None:
                await definition.prepare_run(driver.run)
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self._host.is_stopping:
                driver.abandon()
                raise
            log.exception("run %r could not be taken up", driver.run.id)
            driver.fail(error)
            return
        if not driver.is_closed:
            self._start_driver(driver, history)
