"""Real workers that export over OTLP, one of which is killed; and the page for Prometheus."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, get_attributes, receiving
from prometheus_client.parser import text_string_to_metric_families

from free_ports import free_port
from holdfast import Client
from waits import wait_until_sync

APP = """
import asyncio
from pathlib import Path
from holdfast import step, workflow

@step
async def work(name: str) -> str:
    Path(f"{name}.begun").touch()
    while name == "b" and not Path("go").exists():
        await asyncio.sleep(0.02)
    return name

@workflow
async def inner(name: str) -> str:
    return await work(name)

@workflow
async def flow() -> list[str]:
    return [await work("a"), await work("b"), await inner("c")]
"""
TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def start_worker(folder: Path, receiver: Receiver, *options: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "HOLDFAST_URL": f"sqlite:///{folder / 'runs.db'}",
    }
    command = [sys.executable, "-m", "holdfast.cli", "worker", "app.py", *options]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


async def start_run(folder: Path) -> None:
    from holdfast.trace_context import continuing_trace

    async with Client(f"sqlite:///{folder / 'runs.db'}") as client:
        with continuing_trace(TRACE):
            await client.options(id="traced").start("flow")


async def wait_for_result(folder: Path) -> Any:
    async with Client(f"sqlite:///{folder / 'runs.db'}") as client:
        return await client.handle("traced").result(timeout=60)


def kill(worker: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    worker.send_signal(number)
    worker.communicate(timeout=60)


@pytest.mark.timeout(180)
def test_one_trace_has_what_a_killed_worker_did_and_what_its_successor_did(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)
    with receiving() as receiver:
        first = start_worker(tmp_path, receiver)
        second: subprocess.Popen[str] | None = None
        try:
            wait_until_sync(lambda: _can_start(tmp_path), timeout_s=60)
            asyncio.run(start_run(tmp_path))
            wait_until_sync((tmp_path / "b.begun").exists, timeout_s=60)
            wait_until_sync(lambda: bool(receiver.list_spans("work")), timeout_s=60)
            kill(first)
            (tmp_path / "go").touch()
            second = start_worker(tmp_path, receiver)
            assert asyncio.run(wait_for_result(tmp_path)) == ["a", "b", "c"]
            kill(second, signal.SIGTERM)
        finally:
            for worker in (first, second):
                if worker is not None and worker.poll() is None:
                    kill(worker)
        spans = receiver.list_spans()
        assert {span.trace_id.hex() for span in spans} == {"ab" * 16}
        works = receiver.list_spans("work")
        assert len(works) == len({span.span_id for span in works}) == 3, "no step has a second span"
        assert len({get_attributes(span)["holdfast.worker.id"] for span in works}) == 2
        [run], [inner] = receiver.list_spans("invoke_workflow flow"), receiver.list_spans("invoke_workflow inner")
        assert run.parent_span_id.hex() == "cd" * 8
        assert inner.parent_span_id == run.span_id
        assert [event.name for event in run.events] == ["holdfast.takeover"]
        assert receiver.services == {"holdfast-worker"}
        takeovers = receiver.metrics["holdfast.takeovers"].sum.data_points
        assert [point.as_double or point.as_int for point in takeovers] == [1]


def _can_start(folder: Path) -> bool:
    async def look() -> bool:
        async with Client(f"sqlite:///{folder / 'runs.db'}") as client:
            store = await client.connections.created_store()
            return "flow" in await store.get_workflow_specs()

    return (folder / "runs.db").exists() and asyncio.run(look())


@pytest.mark.timeout(120)
def test_a_worker_has_a_page_for_prometheus(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "go").touch()
    port = free_port()
    environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{tmp_path / 'runs.db'}"}
    command = [sys.executable, "-m", "holdfast.cli", "worker", "app.py", "--probe-address", f"127.0.0.1:{port}"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_sync(lambda: _can_start(tmp_path), timeout_s=60)
        asyncio.run(start_run(tmp_path))
        asyncio.run(wait_for_result(tmp_path))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            assert response.headers["content-type"].startswith("text/plain")
            page = response.read().decode()
    finally:
        kill(worker, signal.SIGTERM)
    samples = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }
    assert samples["holdfast_steps_total", "flow", "completed"] == 2
    assert samples["holdfast_runs_ended_total", "inner", "completed"] == 1
