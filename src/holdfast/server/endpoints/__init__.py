"""What can be asked for over HTTP: a module for each thing, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.server.app import Helper
from holdfast.server.background.policy_enforcer import policeman
from holdfast.server.background.sweeper import sweeper
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
from holdfast.server.webhooks.sender import sender

ENDPOINTS: Sequence[Endpoint] = [
    *server_info.api.endpoints,
    *overview.api.endpoints,
    *runs.api.endpoints,
    *run_reports.api.endpoints,
    *events.api.endpoints,
    *run_control.api.endpoints,
    *approvals.api.endpoints,
    *schedules.api.endpoints,
    *queues.api.endpoints,
    *memories.api.endpoints,
    *agents.api.endpoints,
    *usage.api.endpoints,
    *addresses.api.endpoints,
    *deliveries.api.endpoints,
    *policies.api.endpoints,
    *keys.api.endpoints,
    *audit.api.endpoints,
]

HELPERS: Sequence[Helper] = [sweeper, policeman, sender]
