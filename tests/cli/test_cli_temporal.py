"""Commands on a Temporal server: the same words as on any store, and plain ones for what there is not."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

import temporal_server
from holdfast.cli import main
from holdfast.errors import StoreError
from holdfast.stores.operations import NewRun, StartRun
from holdfast.stores.urls import open_store
from temporal_server import own


@pytest.fixture
def run_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that nobody executes."""
    url = temporal_server.url()
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.delenv("HOLDFAST_NAMESPACE", raising=False)
    name = own("cli")

    async def start() -> None:
        store = open_store(url)
        for _ in range(300):
            try:
                await store.open()
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                break
        new = NewRun(name, own("flow"), b'{"n":1}', b"digest", name.encode(), time.time(), tags=("cli",))
        await store.commit([StartRun(new)])
        await store.close()

    asyncio.run(start())
    return name


def told(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_a_run_is_shown_listed_signalled_paused_and_cancelled(run_id: str):
    shown = json.loads(told("show", run_id, "--json"))
    assert (shown["state"], shown["inputs"], shown["tags"]) == ("pending", {"n": 1}, ["cli"])
    assert "no live worker serves workflow" in shown["stalled"]
    until = time.monotonic() + 10
    while run_id not in told("runs", "--tag", "cli"):
        assert time.monotonic() < until, "it is not listed"
    told("signal", run_id, "go", "1")
    told("pause", run_id)
    assert "paused" in told("show", run_id)
    told("resume", run_id)
    told("cancel", run_id)
    assert json.loads(told("show", run_id, "--json"))["cancel"] == "asked"
    assert "there is no run" in told("show", own("nobody"), code=1)


def test_doctor_tells_of_the_server(run_id: str):
    checks = {check["name"]: check for check in json.loads(told("doctor", "--json"))["checks"]}
    assert checks["server"]["message"].startswith("Temporal 1.")
    assert checks["tags"]["message"] == "searched for by HoldfastTags"
    assert "default" in told("namespaces").splitlines()


def test_doctor_tells_of_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", "temporal://127.0.0.1:1/default?api_key=sesame")
    output = told("doctor", code=1)
    assert "127.0.0.1:1" in output
    assert "sesame" not in output


def test_what_there_is_not_is_said_in_a_sentence(run_id: str):
    assert "not on Temporal" in told("schedules", code=1)
    assert "not on Temporal" in told("costs", code=1)
