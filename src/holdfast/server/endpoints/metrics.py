"""The metrics of the server and of its store, for Prometheus."""

from __future__ import annotations

from collections import Counter

from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.response import TextResponse
from holdfast.server.http.router import Router
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.contract import Store
from holdfast.telemetry.metrics import METRICS, Gauge, Metric
from holdfast.telemetry.prometheus import CONTENT_TYPE, render_metrics

MAX_COUNTED_APPROVALS = 10_000

router = Router()


@router("GET", "/v1/metrics", scope=Scope.ADMIN)
async def get_metrics(call: Call) -> TextResponse:
    """Metrics, in the text format of Prometheus.

    What waits in the store is that of the caller's namespace. What this server process has counted is shown to keys of
    the server's own namespace only, because it has the names of all.
    """
    metrics = await _read_store_metrics(call.store)
    if call.tenant.namespace == call.platform.tenants.namespace:
        metrics += METRICS.list_metrics()
    return TextResponse(render_metrics(metrics).encode(), media_type=CONTENT_TYPE)


async def _read_store_metrics(store: Store) -> list[Metric]:
    """What waits in a store."""
    runs = Gauge("holdfast.runs.unfinished", "Unfinished runs, by state.", ("workflow", "state"))
    counts: Counter[tuple[str, str]] = Counter()
    for (workflow, state), count in (await store.count_runs(max_ended=0)).items():
        if not state.is_terminal:
            counts[workflow, str(state)] += count
    runs.sources.append(lambda: [(labels, float(count)) for labels, count in counts.items()])
    depth = Gauge("holdfast.queue.depth", "Runs in a queue with limits, by state.", ("queue", "state"))
    queues = await store.queues.list()
    depth.sources.append(
        lambda: [
            ((queue.name, state), float(count))
            for queue in queues
            for state, count in (("running", queue.running_count), ("waiting", queue.waiting_count))
        ]
    )
    approvals = Gauge("holdfast.approvals.open", "Approvals that wait for a person.")
    open_count = len(await store.list_approvals(ApprovalFilter(), MAX_COUNTED_APPROVALS))
    approvals.sources.append(lambda: [((), float(open_count))])
    return [runs, depth, approvals]
