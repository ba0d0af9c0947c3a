"""The plan of an agent's run: the list of tasks that the model wrote last.

A plan is the output of the step in which the model wrote it (see ``agents.planner``). So the newest record of that
name is the plan for every reader, and it stays with the run through a crash, a retry, or a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, overload

from holdfast.codec import decode_plain
from holdfast.core.records import Record, RecordKind
from holdfast.errors import CodecError
from holdfast.services.lookup import find_run
from holdfast.stores.contract import Store

PLAN_TOOL = "write_plan"
"""The tool with which a model writes its plan, and so the name of the records that hold one."""

PlanStatus = Literal["open", "working", "done", "dropped"]

_STATUSES: tuple[str, ...] = get_args(PlanStatus)
_REMAINING_STATUSES = ("open", "working")


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One task of a plan."""

    task: str
    status: PlanStatus = "open"


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Sequence[PlanItem]):
    """What an agent intends to do, and its progress: a sequence of items, each with a ``task`` and a ``status``.

    A status is ``open``, ``working``, ``done``, or ``dropped``. A run without a plan has an empty one.
    """

    items: tuple[PlanItem, ...] = ()

    @property
    def done_count(self) -> int:
        """How many items are done."""
        return sum(item.status == "done" for item in self.items)

    @property
    def open_count(self) -> int:
        """How many items are left: open, or being worked on."""
        return len(self.remaining)

    @property
    def working(self) -> PlanItem | None:
        """The item that is being worked on."""
        return next((item for item in self.items if item.status == "working"), None)

    @property
    def remaining(self) -> list[PlanItem]:
        """The items that are open, or being worked on."""
        return [item for item in self.items if item.status in _REMAINING_STATUSES]

    @overload
    def __getitem__(self, index: int) -> PlanItem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PlanItem, ...]: ...
    def __getitem__(self, index: int | slice) -> PlanItem | tuple[PlanItem, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Plan({', '.join(f'{item.status}: {item.task!r}' for item in self.items)})"


async def read_plan(store: Store, run_id: str) -> Plan:
    """The plan of a run as it is now, empty if it has none. Raises ``RunNotFound``."""
    record = await store.get_last_record(run_id, PLAN_TOOL)
    if record is None:
        await find_run(store, run_id)
        return Plan()
    return plan_from_record(record) or Plan()


def find_plan(records: Sequence[Record]) -> Plan:
    """The plan in a whole journal: the one that ``read_plan`` returns."""
    newest = next((record for record in reversed(records) if record.name == PLAN_TOOL and record.ok), None)
    return Plan() if newest is None else plan_from_record(newest) or Plan()


def plan_from_record(record: Record) -> Plan | None:
    """The plan in a record; ``None`` if it is something else: a workflow may have a step of this name, too."""
    if record.name != PLAN_TOOL or not record.ok or record.kind is not RecordKind.STEP:
        return None
    try:
        data: Any = decode_plain(record.payload or b"null")
    except CodecError:
        return None
    if not isinstance(data, list) or not data:
        return None
    parsed = [_parse_item(item) for item in cast("list[Any]", data)]
    items = tuple(item for item in parsed if item is not None)
    return Plan(items) if len(items) == len(parsed) else None


def _parse_item(data: Any) -> PlanItem | None:
    if not isinstance(data, dict):
        return None
    task: Any = cast("dict[str, Any]", data).get("task")
    status: Any = cast("dict[str, Any]", data).get("status")
    return PlanItem(task, status) if isinstance(task, str) and status in _STATUSES else None
