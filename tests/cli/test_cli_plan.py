"""``holdfast show`` tells the plan of an agent's run, as a checklist."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cli_project import Project
from model_scripts import write_plan

from holdfast import Agent, Runtime, step, workflow
from holdfast.testing import ScriptedModel


@step(name="write_plan")
async def write_something_else() -> list[int]:
    return [1, 2]


@workflow(id="no-plan-at-all")
async def cli_not_planning() -> None:
    await write_something_else()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run with a plan in every state, one that has revised it, and a workflow with a step of the same name."""
    project = Project(tmp_path_factory.mktemp("planned"))
    script = [
        write_plan(attic="working"),
        write_plan(**{"attic \x1b[31m": "done", "cellar\n  and garden": "working", "roof": "open", "moat": "dropped"}),
        "1",
        "2",
        "The attic is empty.",
    ]

    async def main() -> None:
        async with Runtime(project.url):
            agent = Agent(ScriptedModel(script), name="cli-planner", planning=True)
            await agent.options(id="plan-1").run("Search.")
            await cli_not_planning()

    asyncio.run(main())
    return project


def test_the_newest_plan_is_shown_as_a_checklist(planned: Project) -> None:
    out = planned.here("show", "plan-1").out
    assert (
        "\nplan, 1 of 4 done, 1 dropped\n  [x] attic \\x1b[31m\n  [>] cellar and garden\n  [ ] roof\n  [-] moat\n"
    ) in out
    assert out.index("plan, 1 of 4") < out.index("  model call ")


def test_the_plan_is_there_for_programs(planned: Project) -> None:
    data = planned.here("show", "plan-1", "--json").json
    assert [one["status"] for one in data["plan"]] == ["done", "working", "open", "dropped"]
    assert data["plan"][3] == {"task": "moat", "status": "dropped"}


def test_a_run_without_a_plan_shows_none(planned: Project, tmp_path: Path) -> None:
    shown = planned.here("show", "no-plan-at-all")
    assert "write_plan" in shown.out
    assert "\nplan" not in shown.out
    assert planned.here("show", "no-plan-at-all", "--json").json["plan"] == []
