"""``holdfast show`` over a server tells what it tells over the server's store."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli_project import Project

from holdfast.server.app import create_app
from holdfast.server.uvicorn_server import UvicornServer
from holdfast.services.api_keys import create_key

PASSING = re.compile(r"now|(?:in )?\d+ (?:s|min)(?: \d+ s)? ago|\d+\.?\d* (?:m?s|min)(?: \d\d s)?")
"""Words for times, which go on between two looks."""


@contextmanager
def served(url: str) -> Iterator[tuple[str, str]]:
    """A server in a thread: its address, and a key that may read."""
    listening = socket.create_server(("127.0.0.1", 0))
    ready, closing = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    made: list[str] = []

    async def serve() -> None:
        app = create_app(url)
        async with app.running():
            _, token = await create_key(
                await app.platform.tenants.get_default_store(), "t", ("read",), "default", now=0.0
            )
            made.append(token)
            server = UvicornServer(app, on_started=ready.set, grace_s=1)
            task = asyncio.create_task(server._serve([listening]))
            await closing.wait()
            app.platform.closing.set()
            server.should_exit = True
            await task

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", made[0]
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join(20)
        loop.close()


@pytest.fixture(scope="module")
def lab_served(lab: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str, str]]:
    project = Project(shutil.copytree(lab.folder, tmp_path_factory.mktemp("served") / "lab"))
    with served(project.url) as (address, token):
        yield project, address, token


@pytest.fixture(scope="module")
def history_served(history: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str, str]]:
    project = Project(shutil.copytree(history.folder, tmp_path_factory.mktemp("served") / "history"))
    with served(project.url) as (address, token):
        yield project, address, token


def both(place: tuple[Project, str, str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str, str]:
    """What a command says of the store, and over HTTP; without times, and without saying again where that is."""
    project, address, token = place
    beside = project.here(*words)
    monkeypatch.setenv("HOLDFAST_API_KEY", token)
    over_http = project.here(*words, "--url", address)
    assert (beside.code, beside.err) == (over_http.code, over_http.err)
    assert beside.code == 0
    return PASSING.sub("T", beside.out), PASSING.sub("T", over_http.out.replace(f" --url {address}", ""))


@pytest.mark.parametrize("run_id", ["etl-acme", "etl-bad", "order-7", "order-8", "crasher", "payer"])
def test_show_is_the_same_over_http(
    history_served: tuple[Project, str, str], run_id: str, monkeypatch: pytest.MonkeyPatch
):
    beside, over_http = both(history_served, monkeypatch, "show", run_id)
    assert over_http == beside
    assert f"run        {run_id}\n" in over_http


def test_the_stories_of_agents_and_their_conversations_are_the_same_over_http(
    lab_served: tuple[Project, str, str], monkeypatch: pytest.MonkeyPatch
):
    project, *_ = lab_served
    ids = [run["id"] for run in project.here("runs", "--json").json]
    assert len(ids) > 2
    spoken = 0
    for run_id in ids:
        beside, over_http = both(lab_served, monkeypatch, "show", run_id)
        assert over_http == beside
        if project.here("show", run_id, "--conversation").code == 0:
            beside, over_http = both(lab_served, monkeypatch, "show", run_id, "--conversation", "--full")
            assert over_http == beside
            spoken += 1
    assert spoken


def test_show_as_json_is_the_same_over_http(history_served: tuple[Project, str, str], monkeypatch: pytest.MonkeyPatch):
    project, address, token = history_served
    monkeypatch.setenv("HOLDFAST_API_KEY", token)
    beside = project.here("show", "etl-acme", "--json").json
    over_http = project.here("show", "etl-acme", "--json", "--url", address).json
    assert {**over_http, "reported_at": ""} == {**beside, "reported_at": ""}


def test_an_unknown_run_and_a_missing_key_are_errors(
    history_served: tuple[Project, str, str], monkeypatch: pytest.MonkeyPatch
):
    project, address, token = history_served
    monkeypatch.setenv("HOLDFAST_API_KEY", token)
    missing = project.here("show", "nobody", "--url", address)
    assert missing.code == 1
    assert "there is no run 'nobody'" in missing.err
    no_agent = project.here("show", "etl-acme", "--conversation", "--url", address)
    assert "is not an agent's: it has no conversation" in no_agent.err
    monkeypatch.setenv("HOLDFAST_API_KEY", "hf_000000000000_" + "x" * 43)
    refused = project.here("show", "etl-acme", "--url", address)
    assert refused.code == 1
    assert "key" in refused.err
