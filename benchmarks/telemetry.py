"""What spans and metrics cost: 200 runs of 10 steps at once on SQLite, with and without them, in turns.

Spans go to OpenTelemetry's in-memory exporter, metrics to its in-memory reader. Each kind has an engine of its own in
this process, and the kinds take turns, because other load on the machine changes slowly. Needs ``opentelemetry-sdk``::

    python -m benchmarks.telemetry [ROUNDS]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks import workloads
from holdfast import Runtime
from holdfast.telemetry.telemetry import Telemetry

KINDS = {"nothing": (False, False), "spans": (True, False), "metrics": (False, True), "both": (True, True)}
RUNS, STEPS = 200, 10


async def main(rounds: int) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000, max_export_batch_size=10_000))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    costs: dict[str, list[float]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, (has_spans, has_metrics) in KINDS.items():
                async with Runtime(f"sqlite:///{Path(folder) / name}.db") as runtime:
                    engine = runtime._engine
                    found = Telemetry.find(engine.run_log)
                    assert found is not None
                    chosen = Telemetry(found.tracing if has_spans else None, found.metrics if has_metrics else None)
                    engine.telemetry = chosen if has_spans or has_metrics else None
                    engine.writer.metrics = chosen.metrics
                    run = workloads.sequence.options(new=True)
                    await asyncio.gather(*[run(2) for _ in range(50)])
                    started = time.process_time()
                    await asyncio.gather(*[run(STEPS) for _ in range(RUNS)])
                    if number:
                        costs[name].append((time.process_time() - started) / (RUNS * STEPS) * 1e6)
                provider.force_flush()
                exporter.clear()
    bare = statistics.median(costs["nothing"])
    print(f"CPU per step, {RUNS} runs x {STEPS} steps together, median of {rounds} rounds:")
    for name, values in costs.items():
        added = statistics.median(one - other for one, other in zip(values, costs["nothing"], strict=True))
        print(f"  {name:8} {statistics.median(values):6.1f} µs  {added / bare:+.0%}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
