"""The memo of a live execution: what people and lists see of a running run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from temporalio import workflow

from holdfast.admission.usage import Usage
from holdfast.core.records import SESSION_STEP, Record, RecordKind
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.temporal.approvals import approval_to_memo
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY, USAGE_KEY


class LiveMemo:
    """The entries that the execution was started with, and those that it has published since."""

    def __init__(self) -> None:
        self._entries = dict(workflow.memo())
        self.head: dict[str, Any] = self._entries.get(RUN_MEMO_KEY, {})
        """How the run was started."""
        self._usage = Usage(**self.head.get("used", {}))
        """The usage of the run's own steps, including those of earlier executions."""
        self._approvals: dict[str, dict[str, Any]] = {}
        """The open approvals, by id."""

    def publish_previous_run(self, record: Record) -> None:
        """Publish the previous run of the session, if this is the record that names it."""
        is_named = record.kind is RecordKind.STEP and record.name == SESSION_STEP and record.position == 0 and record.ok
        if is_named and "previous_run" not in self.head and record.payload is not None:
            previous = json.loads(record.payload)
            if previous:
                self.head = {**self.head, "previous_run": previous}
                self._publish(RUN_MEMO_KEY, self.head)

    def add_usage(self, used: Usage) -> None:
        """Publish the usage of a step, for lists."""
        self._usage += used
        self._publish(USAGE_KEY, asdict(self._usage))

    def _publish(self, key: str, value: Any) -> None:
        self._entries[key] = value
        workflow.upsert_memo({key: value})

    def publish_approvals(self, open_approvals: Mapping[str, RequestApproval]) -> None:
        """Publish the open approvals."""
        self._approvals = {
            id: self._approvals.get(id) or approval_to_memo(approval) for id, approval in open_approvals.items()
        }
        workflow.upsert_memo({APPROVALS_KEY: list(self._approvals.values())})

    def publish_reminder(self, id: str, reminder_count: int, assignee: str, expires_at: float | None) -> None:
        """Publish that people were reminded of an approval."""
        self._approvals[id] |= {
            "reminder_count": reminder_count, "assignee": assignee, "expires_at": expires_at,
            "reminded_at": workflow.time(),
        }  # fmt: skip
        workflow.upsert_memo({APPROVALS_KEY: list(self._approvals.values())})

    def list_questions(self) -> list[str]:
        """The questions of the open approvals."""
        return [approval["question"] for approval in self._approvals.values()]

    def build_continued(self, clock_started_at: float) -> dict[str, Any]:
        """The memo of the execution that continues this one."""
        head = {**self.head, "clock_started_at": clock_started_at, "used": asdict(self._usage)}
        return {**self._entries, RUN_MEMO_KEY: head}
