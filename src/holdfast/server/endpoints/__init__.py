"""The endpoints of the HTTP API: a module for each resource, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.server.app import BackgroundTask
from holdfast.server.background.policy_enforcer import run_policy_enforcer
from holdfast.server.background.sweeper import run_sweeper
from holdfast.server.endpoints import (
    addresses,
    agents,
    approvals,
    audit,
    deliveries,
    events,
    keys,
    memories,
    metrics,
    overview,
    policies,
    queues,
    results,
    run_control,
    run_reports,
    runs,
    schedules,
    server_info,
    usage,
)
from holdfast.server.http.router import Endpoint
from holdfast.server.webhooks.sender import run_webhook_sender

ENDPOINTS: Sequence[Endpoint] = [
    endpoint
    for module in (
        server_info, overview, runs, results, run_reports, events, run_control, approvals, schedules, queues, memories,
        agents, usage, addresses, deliveries, policies, keys, audit, metrics,
    )
    for endpoint in module.router.endpoints
]  # fmt: skip

BACKGROUND_TASKS: Sequence[BackgroundTask] = [run_sweeper, run_policy_enforcer, run_webhook_sender]
