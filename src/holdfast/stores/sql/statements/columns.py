"""Columns that several statements read or write, in the order in which ``rows`` expects them."""

from __future__ import annotations

from holdfast.stores.sql.templates import get_names

RUN_COLUMNS = (
    "key, id, workflow, queue, state, epoch, owner, starter, delivery_count, max_deliveries, wake_at, waits_for, "
    "priority, deadline, inputs, digest, seed, output, error, tags, python_version, created_at, finished_at, "
    "clock_started_at, cancel_state, paused_at, rewind, parent, forked_from, rewind_points, session, previous_run, "
    "has_budget, version, queue_key, due_state, is_delivery, suspicion, trace_parent"
)
JOURNAL_COLUMNS = "seq, kind, position, name, ok, payload, at, started_at, attempts, worker, epoch, preview"
RECORD_VALUES = (
    "run:i seq:i kind:i position:i ok:i at:f started_at:f attempts:i worker:i epoch:i name:t preview:t payload:b"
)
RECORD_COLUMNS = get_names(RECORD_VALUES)
ATTEMPT_VALUES = "run:i position:i attempt:i intent:i progress:b error:t at:f name:t retry_at:f failing_since:f"
USED = "calls, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced"
ACCOUNT_COLUMNS = (
    f"parent_key, {USED}, seconds, reserved_calls, reserved_tokens, reserved_nano_usd, budget, short_positions"
)
MEMORY_COLUMNS = "namespace, key, value, text, created_at, updated_at"
WORKER_COLUMNS = (
    "id, name, host, pid, state, workflows, queues, started_at, lease_expires_at, heartbeat_at, is_listener"
)
PAYLOAD_COLUMNS = (
    ("runs", "inputs"),
    ("runs", "output"),
    ("runs", "error"),
    ("records", "payload"),
    ("signals", "payload"),
    ("approvals", "form_schema"),
    ("approvals", "arguments"),
    ("approvals", "answer"),
)
"""The columns that may hold a reference to a large value, by table."""
