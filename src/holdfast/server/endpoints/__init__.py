"""What can be asked for over HTTP: a module for each thing, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.server.api import Endpoint
from holdfast.server.app import Helper
from holdfast.server.delivering.sweeping import sweeper
from holdfast.server.endpoints import (
    addresses,
    agents,
    approvals,
    audit,
    control,
    deliveries,
    events,
    keys,
    memories,
    overview,
    policies,
    queues,
    runs,
    schedules,
    service,
    stories,
    usage,
)
from holdfast.server.policing import policeman
from holdfast.server.webhooks.sending import sender

ENDPOINTS: Sequence[Endpoint] = [
    *service.api.endpoints,
    *overview.api.endpoints,
    *runs.api.endpoints,
    *stories.api.endpoints,
    *events.api.endpoints,
    *control.api.endpoints,
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
