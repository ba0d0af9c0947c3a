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
    overview,
    policies,
    queues,
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
    *server_info.router.endpoints,
    *overview.router.endpoints,
    *runs.router.endpoints,
    *run_reports.router.endpoints,
    *events.router.endpoints,
    *run_control.router.endpoints,
    *approvals.router.endpoints,
    *schedules.router.endpoints,
    *queues.router.endpoints,
    *memories.router.endpoints,
    *agents.router.endpoints,
    *usage.router.endpoints,
    *addresses.router.endpoints,
    *deliveries.router.endpoints,
    *policies.router.endpoints,
    *keys.router.endpoints,
    *audit.router.endpoints,
]

BACKGROUND_TASKS: Sequence[BackgroundTask] = [run_sweeper, run_policy_enforcer, run_webhook_sender]
