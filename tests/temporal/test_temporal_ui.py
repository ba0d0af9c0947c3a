"""What Temporal's Web UI shows of an agent's run, in a real browser: names and values that people can read.

``--screenshots`` keeps the picture for docs/temporal.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from browsers import PICTURES, chromium
from holdfast import Agent, Runtime, tool
from holdfast.testing import ScriptedModel, call
from temporal_server import TemporalServer

pytestmark = pytest.mark.asyncio


@tool
async def web_search(query: str) -> str:
    """Search the web."""
    await asyncio.sleep(0.2)
    return f"About {query}: two particles share one state."


researcher = Agent(
    ScriptedModel([call("web_search", query="quantum entanglement"), "Two particles share one state."]),
    name="ui-researcher",
    tools=[web_search],
)
writer = Agent(
    ScriptedModel(
        [call("ui-researcher", task="What is quantum entanglement?"), "Entangled particles share one state."]
    ),
    name="ui-writer",
    subagents=[researcher],
)


@pytest.fixture
def server() -> Iterator[TemporalServer]:
    server = TemporalServer(with_ui=True).start()
    yield server
    server.stop()


async def test_people_can_read_what_an_agent_did(server: TemporalServer, request: pytest.FixtureRequest) -> None:
    async with Runtime(server.url, workflows=["ui-researcher", "ui-writer"]) as runtime:
        handle = await runtime.start(writer.options(id="explain-entanglement"), "Explain quantum entanglement.")
        assert (await handle.result()).output == "Entangled particles share one state."
    async with chromium() as browser:
        page: Any = await browser.new_page(viewport={"width": 1400, "height": 1000})
        workflows = f"http://127.0.0.1:{server.ui_port}/namespaces/default/workflows"
        await page.goto(f"{workflows}/explain-entanglement")
        await page.get_by_text("Relationships").wait_for()
        await page.wait_for_timeout(1500)
        if request.config.getoption("--screenshots"):
            await page.screenshot(path=PICTURES / "temporal-ui.png")
        seen = await page.inner_text("body")
    assert "Explain quantum entanglement." in seen
    assert "Entangled particles share one state." in seen
    assert "ui-writer/ui-writer" in seen
