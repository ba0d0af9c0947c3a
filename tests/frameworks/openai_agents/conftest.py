"""A provider, a store, and restarts in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_parts import Gate
from agents import set_default_openai_api, set_tracing_disabled
from provider_server import ProviderServer, read_calls

from holdfast import Runtime
from holdfast.authoring.registry import definitions

set_tracing_disabled(True)


class Provider:
    """The local provider of a test."""

    def __init__(self, server: ProviderServer) -> None:
        self._server = server

    def script(self, **scripts: Any) -> None:
        """Set the answers of each agent: see ``provider_server``."""
        self._server.scripts = {**self._server.scripts, **scripts}  # type: ignore[dict-item]

    @property
    def request_count(self) -> int:
        """How many requests were made."""
        ledger = self._server.address.ledger
        return len(read_calls(ledger)) if ledger.exists() else 0

    @property
    def bodies(self) -> list[Any]:
        """The requests."""
        return self._server.bodies


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    set_default_openai_api("responses")
    with ProviderServer({}, tmp_path / "provider.ledger") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("agents.models.openai_provider._http_client", None)  # it belongs to another event loop
        yield Provider(server)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url


@pytest.fixture(autouse=True)
def _forget_definitions() -> None:
    definitions.clear()  # tests define agents with the same names


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def restart(url: str, gate: Gate) -> Callable[[Callable[[], Any]], Any]:
    """Runs a call until it reaches the gate, takes its runtime away, and makes the call again in another one."""

    async def run(make_call: Callable[[], Any]) -> Any:
        async with Runtime(url):
            first = asyncio.ensure_future(make_call())
            reached = asyncio.ensure_future(gate.reached.wait())
            await asyncio.wait((first, reached), return_when=asyncio.FIRST_COMPLETED)
            assert not first.done(), f"the gate was not reached: {first}"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        gate.is_open = True
        async with Runtime(url):
            return await make_call()

    return run
