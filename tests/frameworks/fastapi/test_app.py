"""The client and the lifespan of an app, and errors as responses."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from app_process import PROJECT, AppProcess
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from free_ports import free_port
from holdfast import Runtime, step, workflow
from holdfast.errors import UsageError
from holdfast.integrations.fastapi import get_client, holdfast_lifespan
from waits import wait_until_sync

APP = Path(__file__).with_name("stream_app.py")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    folder = tmp_path_factory.mktemp("app")
    app = AppProcess([str(APP), "{port}"], folder, f"sqlite:///{folder / 'runs.db'}")
    app.start()
    yield app
    app.stop(signal.SIGKILL)


def get(app: AppProcess, path: str) -> tuple[int, str]:
    response = httpx2.get(f"{app.address}{path}", timeout=30)
    is_problem = response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["type"] if is_problem else response.text


def test_routes_share_a_client_and_keep_the_state_of_the_own_lifespan(app: AppProcess):
    run = app.post("/runs/use", {"name": "state", "seconds": 0}).json()
    assert httpx2.get(f"{app.address}/runs/{run}/result").json() == "used"
    for path in ("", "/mounted"):
        got = httpx2.get(f"{app.address}{path}/runs/{run}").json()
        assert got == {"state": "completed", "resource": "database"}


def test_errors_are_responses(app: AppProcess):
    assert get(app, "/runs/nothing") == (404, "run-not-found")
    assert get(app, "/runs/nothing/events") == (404, "run-not-found")
    unknown = app.post("/runs/nothing", {})
    assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-workflow")
    assert "load_much" not in unknown.text  # no stranger is told what there is
    bad = app.post("/runs/use", {"nobody": 1})
    assert (bad.status_code, bad.json()["type"]) == (422, "bad-input")
    run = app.post("/runs/use", {"name": "errors", "seconds": 0}).json()
    assert httpx2.get(f"{app.address}/runs/{run}/result").json() == "used"
    ended = app.post(f"/runs/{run}/go", {})
    assert (ended.status_code, ended.json()["type"], ended.json()["run_id"]) == (409, "run-ended", run)


def test_a_failed_run_does_not_show_its_error_to_strangers(app: AppProcess):
    run = app.post("/runs/fail", {"name": "a"}).json()
    response = httpx2.get(f"{app.address}/runs/{run}/result", timeout=30)
    assert (response.status_code, response.json()["state"]) == (409, "failed")
    assert "secret" not in response.text


def test_a_mistake_of_the_app_is_its_own_error(app: AppProcess):
    assert get(app, "/mistake") == (500, "Internal Server Error")
    wait_until_sync(lambda: "the app's own mistake" in app.log.read_text(), "the log")


def test_an_app_without_the_lifespan_is_told_what_to_do():
    connection = HTTPConnection({"type": "http", "headers": []})
    with pytest.raises(UsageError, match=r"FastAPI\(lifespan=holdfast_lifespan\(\)\)"):
        get_client(connection)


def test_a_worker_needs_a_store():
    with pytest.raises(UsageError, match="needs the URL of a store, not of a Holdfast server"):
        holdfast_lifespan("https://holdfast.example", workflows=["etl"])
    with pytest.raises(UsageError, match="is not a workflow, a program, an agent, or the name of one"):
        holdfast_lifespan(workflows=[3])


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def doubled(number: int) -> int:
    return await double(number)


@pytest.mark.asyncio
async def test_the_lifespan_can_be_part_of_another_one(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with holdfast_lifespan(url, workflows=["doubled"])(FastAPI()) as state:
        client = get_client(HTTPConnection({"type": "http", "headers": [], "state": dict(state)}))
        assert await client.run("doubled", 21) == 42
        assert await doubled(4) == 8


@pytest.mark.asyncio
async def test_without_workflows_an_app_executes_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Runtime(url, workflows=["doubled"]):
        pass  # a worker was here
    async with holdfast_lifespan(url)(FastAPI()) as state:
        client = get_client(HTTPConnection({"type": "http", "headers": [], "state": dict(state)}))
        run = await client.start("doubled", 1)
        await asyncio.sleep(0.2)
        assert (await client.get(run.run_id)).has_started is False


def test_an_app_works_with_a_holdfast_server(tmp_path: Path, app: AppProcess):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--port", str(port), "--url", app.url]
    with subprocess.Popen(command, cwd=tmp_path, env={"PYTHONPATH": str(PROJECT / "src")}) as server:
        client_app = AppProcess([str(APP), "{port}", url], tmp_path, app.url)
        try:
            wait_until_sync(lambda: is_up(url), "the server to serve")
            client_app.start()
            run = client_app.post("/runs/use", {"name": "server", "seconds": 0}).json()
            with client_app.stream(f"/runs/{run}/events") as stream:
                events = list(stream)
            assert events[-1].event == "ended"
            headers = {"last-event-id": events[-1].id}
            assert httpx2.get(f"{client_app.address}/runs/{run}/events", headers=headers).status_code == 204
            assert get(client_app, "/runs/nothing/events") == (404, "run-not-found")
            assert get(client_app, f"/runs/{run}/events?after=nonsense") == (422, "bad-cursor")
        finally:
            client_app.stop(signal.SIGKILL)
            server.kill()


def is_up(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/v1/health").status_code == 200
    except httpx2.TransportError:
        return False
