"""What a process counts, as Prometheus and OpenTelemetry read it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from engine_world import World
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Agent, RunFailed, step, workflow
from holdfast.telemetry import telemetry
from holdfast.telemetry.metrics import MAX_SERIES, Counter, Histogram, Metrics
from holdfast.telemetry.process_totals import ProcessTotals, dump_metrics
from holdfast.telemetry.prometheus import render_metrics
from holdfast.testing import ScriptedModel
from waits import wait_until

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[2]
STORE_METRICS = {"holdfast_runs_unfinished", "holdfast_queue_depth", "holdfast_approvals_open"}
"""Those of a server, which are read from the store."""


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    metrics = Metrics()
    monkeypatch.setattr(telemetry, "METRICS", metrics)
    monkeypatch.setattr(telemetry, "_is_page_served", True)
    return metrics


def read_page(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The samples of the page, by name and values of labels."""
    families = text_string_to_metric_families(render_metrics(metrics.list_metrics()))
    return {(one.name, tuple(one.labels.values())): one.value for family in families for one in family.samples}


async def test_runs_steps_and_commits_are_counted(world: World, metrics: Metrics):
    @step(retries=1, backoff=0.01)
    async def work(number: int) -> int:
        if number == 2:
            raise ValueError("no")
        return number

    @workflow
    async def flow(upto: int) -> None:
        for number in range(upto):
            await work(number)

    runtime = await world.open()
    await (await runtime.start(flow, 2)).result()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow, 3)).result()
    page = read_page(metrics)
    assert page["holdfast_runs_started_total", ("flow",)] == 2
    assert page["holdfast_runs_ended_total", ("flow", "completed")] == 1
    assert page["holdfast_runs_ended_total", ("flow", "failed")] == 1
    assert page["holdfast_steps_total", ("flow", "completed")] == 4
    assert page["holdfast_steps_total", ("flow", "failed")] == 1
    assert page["holdfast_step_retries_total", ("flow",)] == 1
    assert page["holdfast_step_duration_seconds_count", ("flow",)] == 5
    assert page["holdfast_step_duration_seconds_bucket", ("flow", "+Inf")] == 5
    assert page["holdfast_queue_wait_seconds_count", ("default",)] == 2
    assert page["holdfast_commit_duration_seconds_count", ()] > 0
    assert page["holdfast_runs_held", ()] == 0


async def test_a_takeover_counts_with_what_it_replays(world: World, metrics: Metrics):
    hang = True
    begun: list[str] = []

    @step
    async def work(name: str) -> None:
        begun.append(name)
        if name == "b" and hang:
            await asyncio.sleep(60)

    @workflow
    async def flow() -> None:
        await work("a")
        await work("b")

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "b" in begun)
    await world.crash(first)
    hang = False
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).result()
    page = read_page(metrics)
    assert page["holdfast_takeovers_total", ("flow",)] == 1
    assert page["holdfast_replays_total", ("flow",)] == 1
    assert page["holdfast_replayed_records_total", ("flow",)] == 1
    assert page["holdfast_claim_duration_seconds_count", ()] >= 1


async def test_model_calls_are_counted_with_their_tokens(world: World, metrics: Metrics):
    agent = Agent(ScriptedModel(["Done."]), name="helper")
    await (await (await world.open()).start(agent, "Do it.")).result()
    page = read_page(metrics)
    [(_, (model,))] = [key for key in page if key[0] == "holdfast_model_calls_total"]
    assert page["holdfast_model_calls_total", (model,)] == 1
    assert page["holdfast_model_tokens_total", (model, "output")] > 0


async def test_opentelemetry_reads_the_same(world: World, metrics: Metrics, monkeypatch: pytest.MonkeyPatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr("holdfast.telemetry.otel_metrics.get_meter_provider", lambda: provider)

    @step
    async def work() -> None:
        pass

    @workflow
    async def flow() -> None:
        await work()

    await (await (await world.open()).start(flow)).result()
    data: Any = reader.get_metrics_data()
    found = {one.name: one.data.data_points for one in data.resource_metrics[0].scope_metrics[0].metrics}
    [steps] = found["holdfast.steps"]
    assert (steps.value, dict(steps.attributes)) == (1, {"workflow": "flow", "outcome": "completed"})
    [waited] = found["holdfast.queue.wait"]
    assert (waited.count, dict(waited.attributes)) == (1, {"queue": "default"})
    assert found["holdfast.step.duration.total"][0].value >= 0
    provider.shutdown()


async def test_there_is_an_end_to_the_combinations_of_labels():
    counter, histogram = Counter("c", "A counter.", ("name",)), Histogram("h", "A histogram.", ("name",))
    for number in range(MAX_SERIES + 5):
        counter.add((str(number),))
        histogram.observe(1, (str(number),))
    assert len(counter.values) == len(histogram.values) == MAX_SERIES + 1
    assert counter.values["other",] == 5
    assert sum(histogram.values["other",].counts) == 5


async def test_labels_may_have_any_text():
    counter = Counter("c", "A counter.", ("name",))
    text = 'a "quoted" \\ name\nin two lines'
    counter.add((text,))
    [family] = text_string_to_metric_families(render_metrics([counter]))
    assert family.samples[0].labels == {"name": text}


async def test_the_docs_and_the_alert_rules_name_metrics_that_exist():
    page = render_metrics(Metrics().list_metrics())
    known = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)) | STORE_METRICS
    named = set(re.findall(r"`(holdfast_[a-z_]+)`", (ROOT / "docs" / "observability.md").read_text()))
    assert named == known
    rules = (ROOT / "deploy" / "prometheus-alerts.yaml").read_text()
    assert {re.sub("_bucket$", "", name) for name in re.findall(r"holdfast_[a-z_]+", rules)} <= known


async def test_a_supervisor_adds_up_its_processes_and_no_counter_falls_when_one_ends():
    first, second = Metrics(), Metrics()
    answers: dict[int, bytes | None] = {}
    totals: Any = ProcessTotals(lambda: dict(answers))
    for number, process in enumerate((first, second), 1):
        process.steps.add(("flow", "ok"), number)
        process.claim_duration.observe(0.01 * number)
        process.held_runs.sources.append(lambda held=number: [((), held)])
        answers[number] = dump_metrics(process)
    page = read_page(totals)
    assert page["holdfast_steps_total", ("flow", "ok")] == 3
    assert page["holdfast_claim_duration_seconds_count", ()] == 2
    assert page["holdfast_claim_duration_seconds_sum", ()] == pytest.approx(0.03)
    assert page["holdfast_runs_held", ()] == 3
    answers[1] = None  # it does not answer: its values stay
    assert read_page(totals) == page
    del answers[1]  # it has ended: what it had counted stays, what it held does not
    for _ in range(2):
        ended = read_page(totals)
        assert ended["holdfast_steps_total", ("flow", "ok")] == 3
        assert ended["holdfast_claim_duration_seconds_count", ()] == 2
        assert ended["holdfast_runs_held", ()] == 2
