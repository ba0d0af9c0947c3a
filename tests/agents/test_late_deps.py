"""A program continues a run of another process a moment before it has passed the deps."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Agent, Client, RunContext, RunFailed, RunNotFound, Runtime, tool
from holdfast.agents import deps
from holdfast.testing import ScriptedModel, call

pytestmark = pytest.mark.asyncio


@tool
async def whose(ctx: RunContext[str]) -> str:
    """Whose deps they are."""
    return ctx.deps


@tool
def whose_plain(ctx: RunContext[str]) -> str:
    """Whose deps they are."""
    return ctx.deps


late_child = Agent(
    ScriptedModel([[call("whose"), call("whose_plain")], lambda messages: str(get_last_contents(messages))]),
    name="late-child",
    tools=[whose, whose_plain],
    deps_type=str,
)
late_parent = Agent(
    ScriptedModel([call("late-child", task="Ask."), lambda messages: str(get_last_contents(messages))]),
    name="late-parent",
    subagents=[late_child],
    deps_type=str,
)


def get_last_contents(messages: list) -> list[object]:
    return [part.content for part in messages[-1].parts]


async def wait_for_first_record(runtime: Runtime, run_id: str) -> None:
    """Wait until the model call before the tool call is recorded."""
    while True:
        await asyncio.sleep(0)  # reading may not
        with suppress(RunNotFound):
            if (await runtime.store_provider.read_journal(run_id))[1].records:
                return


@pytest.mark.parametrize("agent", [late_child, late_parent], ids=lambda agent: agent.name)
async def test_a_run_that_another_process_started_waits_for_the_deps(tmp_path: Path, agent: Agent[str]) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Runtime(url) as runtime, Client(url) as client:
        await client.options(id="late").start(agent.name, "Ask.")
        await wait_for_first_record(runtime, "late" if agent is late_child else "late:late-child-2")
        result = await agent.options(id="late").run("Ask.", deps="Ada")
    assert result.output.count("Ada") == 2


async def test_missing_deps_fail_the_whole_run_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deps, "DEPS_TIMEOUT_S", 0.01)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Runtime(url):
        with pytest.raises(RunFailed, match="DepsMissing: agent 'late-child'"):
            await late_parent.options(id="never").run("Ask.")
