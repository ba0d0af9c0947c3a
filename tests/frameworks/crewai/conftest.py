"""Crews in this process: a provider, a store, and a second execution of a run from its records."""

from __future__ import annotations

import os

from quiet import QUIET

os.environ.update(QUIET)

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from provider_server import ProviderServer

import holdfast.integrations.crewai  # noqa: F401
from holdfast import Client, RunFailed, Runtime, program

_numbers = itertools.count(1)


class Replayed(NamedTuple):
    """A program that was executed, and executed again from its records."""

    run_id: str
    first: Any
    second: Any
    requests: int
    """Requests of the first execution."""
    steps: list[str]
    """The names of the recorded steps, in order."""
    report: Any


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    """OpenAI on this machine. Tests set its ``scripts``."""
    with ProviderServer({}, tmp_path / "provider.ledger") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(autouse=True)
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store, of this test alone."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crewai"))
    monkeypatch.chdir(tmp_path)
    return url


@pytest.fixture
def replay(provider: ProviderServer, store_url: str) -> Callable[..., Replayed]:
    """Executes a function as a program, twice: the second time from the records of the first.

    The function is a plain or an async one. ``meanwhile`` is called with a client while it runs, to answer approvals.
    """

    def execute(function: Callable[[], Any], meanwhile: Callable[[Client, str], Any] | None = None) -> Replayed:
        results: list[Any] = []
        requests: list[int] = []

        def end(result: Any) -> Any:
            results.append(result)
            requests.append(len(provider.address.calls))
            if len(results) == 1:
                raise ConnectionError("the first execution ends here")

        name = f"replayed-{next(_numbers)}"
        if asyncio.iscoroutinefunction(function):

            async def run() -> None:
                end(await function())
        else:

            def run() -> None:
                end(function())

        return asyncio.run(_replay(program(name=name)(run), store_url, results, requests, meanwhile))

    return execute


async def _replay(
    definition: Any, url: str, results: Sequence[Any], requests: Sequence[int], meanwhile: Callable[..., Any] | None
) -> Replayed:
    async with Runtime(url), Client(url) as client:
        handle = await definition.start()
        answering = None
        if meanwhile is not None:
            answering = asyncio.create_task(meanwhile(client, handle.run_id))
        with pytest.raises(RunFailed, match="the first execution ends here"):
            await handle.result()
        if answering is not None:
            await answering
        await client.retry(handle.run_id)
        await handle.result()
        report = await handle.describe(limit=None)
    assert requests[0] == requests[1], "the second execution has made model requests"
    steps = [entry.name for entry in report.journal if entry.kind == "step"]
    return Replayed(handle.run_id, results[0], results[1], requests[0], steps, report)


def make_scripts(**turns: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Scripts of the provider."""
    return {name.replace("__", "-").replace("_dot_", "."): list(one) for name, one in turns.items()}
