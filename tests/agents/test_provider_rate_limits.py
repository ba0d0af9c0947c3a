"""Many agents share a provider that answers only a few requests a second, or none for a while. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Agent, workflow
from holdfast.engine.step_context import get_step_executor
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio

AGENTS = 40


class Provider:
    """Answers a limited number of requests a second, and none during an outage."""

    def __init__(self, per_second: int, retry_after: str, until: float = 0.0) -> None:
        self.asked: list[float] = []
        self.answered: list[float] = []
        self._per_second = per_second
        self._retry_after = retry_after
        self._until = until

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        now = get_step_executor().engine.clock.now()
        self.asked.append(now)
        if now - self.asked[0] < self._until:
            raise ModelHTTPError(503, "m", {"message": "down"})
        if sum(now - 1.0 < at for at in self.answered) >= self._per_second:
            raise ModelHTTPError.for_category(
                ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": self._retry_after}
            )
        self.answered.append(now)
        return ModelResponse([TextPart("done")])


async def ask_all(provider: Provider, name: str, agents: int = AGENTS) -> Any:
    agent = Agent(FunctionModel(provider.answer), name=name)

    @workflow(name=f"all-{name}")
    async def ask_everybody() -> list[str]:
        results = await asyncio.gather(*[agent.run(f"Task {number}") for number in range(agents)])
        return [result.output for result in results]

    runner = Runner()
    runner.clock.draw_random = _draws()  # type: ignore[method-assign]
    return await runner.run(ask_everybody)


def _draws() -> Any:
    """Evenly spread, and the same every time."""
    state = [0.0]

    def draw() -> float:
        state[0] = (state[0] + 0.618034) % 1.0
        return state[0]

    return draw


@pytest.mark.parametrize("retry_after", ["1", "0"])
async def test_all_agents_get_their_turn(retry_after: str):
    provider = Provider(per_second=5, retry_after=retry_after)
    result = await ask_all(provider, f"limited-{retry_after}")
    assert result.output == ["done"] * AGENTS
    assert len(provider.asked) < 10 * AGENTS, "nobody hammers on the provider"


async def test_an_outage_of_twenty_seconds_fails_no_run():
    provider = Provider(per_second=AGENTS, retry_after="1", until=20.0)
    result = await ask_all(provider, "outage")
    assert result.output == ["done"] * AGENTS
    assert provider.answered[-1] - provider.asked[0] < 60.0


async def test_an_outage_of_six_hours_fails_no_run():
    provider = Provider(per_second=AGENTS, retry_after="1", until=6 * 3600.0)
    result = await ask_all(provider, "long-outage", agents=2)
    assert result.output == ["done"] * 2
    assert provider.answered[-1] - provider.asked[0] < 6 * 3600.0 + 301.0
