"""``Schedule``: when to start runs of a workflow, declared in code.

It belongs to the definition of its workflow, so the workers that know the workflow announce it.
``engine.schedule_ticker`` fires it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.admission.calendars import CatchUp, Overlap
from holdfast.admission.durations import Duration
from holdfast.authoring.registry import definitions
from holdfast.errors import DefinitionError, HoldfastError
from holdfast.services.schedules import build_schedule, make_timing, validate_schedule_name
from holdfast.stores.schedules import ScheduleDefinition

if TYPE_CHECKING:
    from holdfast.authoring.workflow import Workflow

_locations: dict[str, str] = {}
"""The source locations of the schedules of this process, by name."""


class Schedule:
    """Starts a run of a workflow whenever it is due, once in the whole fleet.

    ``Schedule("nightly", etl, "acme", cron="0 2 * * *", zone="Europe/Berlin")``; or, for a workflow that needs no
    inputs, ``@workflow(schedule=Schedule(cron="0 2 * * *"))``. Runs are started with the options of the given workflow:
    ``Schedule("nightly", etl.options(priority=5), ...)``.

    Args:
        name: the schedule's name, with which the ids of its runs begin. In ``@workflow(schedule=...)`` it may be left
            out (default: the workflow's name).
        workflow: the workflow to start; left out in ``@workflow(schedule=...)``.
        args: the inputs of each run.
        inputs: the inputs of each run, by name.
        cron: when, as a cron expression of five fields (or six, with seconds in front).
        every: when, as an interval: seconds, a ``timedelta``, or text such as ``15 min``.
        zone: the time zone of a cron expression (default: UTC).
        start: when an interval starts to count.
        catch_up: what happens to ticks that were missed because no worker was running, or the schedule was paused:
            ``skip`` fires none, ``last`` the newest, ``all`` each.
        max_catch_up: the maximum number of missed ticks that fire at once, the newest ones.
        overlap: ``skip`` starts nothing while the previous run is unfinished.
    """

    def __init__(
        self,
        name: str | None = None,
        workflow: Workflow[..., Any] | None = None,
        /,
        *args: Any,
        inputs: Mapping[str, Any] | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        start: datetime | float | None = None,
        catch_up: CatchUp = "last",
        max_catch_up: int = 100,
        overlap: Overlap = "allow",
    ) -> None:
        self.name = name
        self._location = _find_caller_location()
        self._args = args
        self._kwargs = dict(inputs or {})
        self._catch_up: CatchUp = catch_up
        self._max_catch_up = max_catch_up
        self._overlap: Overlap = overlap
        try:
            if name is not None:
                validate_schedule_name(name)
            self._timing = make_timing(cron, every, zone, start)
        except HoldfastError as error:
            raise DefinitionError(f"{self._describe(name)}: {error}") from None
        if workflow is not None:
            self.declare(workflow)

    def _describe(self, name: str | None) -> str:
        return f"schedule{'' if name is None else f' {name!r}'} ({self._location})"

    def declare(self, workflow: Workflow[..., Any]) -> None:
        """Add the schedule to the workflow's definition, so that workers announce it."""
        definition, options = workflow.definition, workflow.start_options
        name = definition.name if self.name is None else self.name
        subject = self._describe(name)
        single = (options.id, options.delay_s or None, options.new or None, options.version, options.dedup)
        if any(option is not None for option in single):
            raise DefinitionError(
                f"{subject}: the options id=, delay=, new=, dedup=, debounce= and version= are for a single start. The "
                f"ids of these runs are made of the schedule's name and their ticks, and their version is the newest "
                f"that is served. overlap='skip' starts none while the one before is unfinished"
            )
        if "deps" in self._kwargs:
            raise DefinitionError(f"{subject}: deps are handed over within a process, and cannot be kept in a store")
        try:
            given = workflow.prepare_start(self._args, self._kwargs)
            new = build_schedule(
                name,
                definition.to_spec(),
                definition.inputs_codec.encode(given.args, given.kwargs),
                self._timing,
                catch_up=self._catch_up,
                max_catch_up=self._max_catch_up,
                overlap=self._overlap,
                queue=options.queue,
                key=options.key,
                defaults=definition.defaults,
                priority=options.priority,
                tags=options.tags,
                budget=options.budget,
                max_deliveries=options.max_deliveries,
                is_declared_in_code=True,
            )
        except HoldfastError as error:
            raise DefinitionError(f"{subject}: {error}") from None
        self._check_unique(new)
        _locations[name] = self._location
        definition.schedules[name] = new

    def _check_unique(self, new: ScheduleDefinition) -> None:
        """Declaring the same schedule again (a reload, a notebook cell) replaces it."""
        for definition in definitions.values():
            known = definition.schedules.get(new.name)
            if known is None or known == new:
                continue
            location = _locations.get(new.name, "")
            if location != self._location and not self._location.startswith("<") and "ipykernel" not in self._location:
                raise DefinitionError(
                    f"two schedules are named {new.name!r}, and are not the same: {location} ({known.workflow!r}, "
                    f"{known.timing}) and {self._location} ({new.workflow!r}, {new.timing}). Give one of them another "
                    f"name."
                )
            del definition.schedules[new.name]

    def __repr__(self) -> str:
        return f"<schedule {self.name!r}, {self._timing}>"


def _find_caller_location() -> str:
    """``file:line`` of the code that declares a schedule."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
