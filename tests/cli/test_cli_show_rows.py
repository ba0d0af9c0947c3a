"""The rows of ``holdfast show``: as many as it counts, in order, with what was skipped and without what is internal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_project import Project

from waits import wait_until_sync

APP = """
import asyncio
import os

from holdfast import Agent, Client, ask, patched, step, tool, wait_for_signal, workflow
from holdfast.testing import ScriptedModel, call


@step
async def work(name: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return name


@workflow(id="parallel")
async def parallel() -> None:
    await asyncio.gather(work("a", 0.2), work("b", 0.1), work("c"))
    await asyncio.sleep(0.01)
    if patched("newer"):
        await work("d")


@workflow(id="waiting")
async def waiting() -> None:
    await work("a")
    await wait_for_signal("go")
    await work("b")


@step
async def hang() -> None:
    open("begun", "a").close()
    if not os.path.exists("second"):
        await asyncio.sleep(60)


@workflow(id="killed")
async def killed() -> None:
    await work("a")
    await hang()


@workflow(id="asking")
async def asking() -> None:
    await work("a")
    await ask("Go on?")
    await work("b")


@workflow(id="order-{amount}")
class Order:
    @step(1)
    async def check(self, amount: int) -> int:
        return amount

    @step(2, depends_on=1, when=lambda check: check > 100)
    async def review(self, check: int) -> str:
        return "reviewed"

    @step(3, depends_on=2)
    async def report(self, review: str) -> str:
        return review

    @step(4, depends_on=1)
    async def ship(self, check: int) -> str:
        return "shipped"


@workflow(id="retried")
class Retried:
    @step(1)
    async def check(self) -> int:
        return 1

    @step(2, depends_on=1, when=lambda check: check > 100)
    async def remind(self, check: int) -> None: ...

    @step(3, depends_on=1)
    async def pay(self, check: int) -> None:
        if not os.path.exists("paid"):
            raise ValueError("not paid")


@workflow(id="broken")
async def broken() -> None:
    raise ValueError("broken")


chatty = Agent(ScriptedModel(["one", "two"]), name="chatty")
"""

RUN = """
import asyncio
from app import *

async def main():
    await parallel()
    await Order(amount=5)
    await Order(amount=500)
    await chatty.options(id="first").run("hello", session="me")
    await chatty.options(id="second").run("again", session="me")
    handle = await asking.start()
    async with Client() as client:
        while not (asked := await client.approvals("asking")):
            await asyncio.sleep(0.01)
        await client.approve(asked[0].id)
    await handle.result()
    await waiting.start()
    async with Client() as client:
        while (await client.get("waiting")).state != "waiting":
            await asyncio.sleep(0.02)

asyncio.run(main())
"""

CONTINUE = """
import asyncio
from app import waiting
from holdfast import Client

async def main():
    handle = await waiting.start()
    async with Client() as client:
        await client.signal("waiting", "go")
    await handle.result()

asyncio.run(main())
"""

ROW = re.compile(r"^ *(t?\d+|–)  ")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder: Path = tmp_path_factory.mktemp("shop") / "project"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    project = Project(folder)
    for code in (RUN, CONTINUE):
        done = project.python("-c", code)
        assert done.code == 0, done.err
    return project


def rows(project: Project, run_id: str) -> tuple[str, list[list[str]]]:
    """What `show` says in short, and the words of each row."""
    lines = project.here("show", run_id).out.splitlines()
    [short] = [line.removeprefix("in short").strip() for line in lines if line.startswith("in short")]
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("#  step"))
    table = lines[at + 1 :]
    table = table[: table.index("")]
    return short, [line.split() for line in table if ROW.match(line)]


def counted(short: str) -> int:
    """The sum of all that is counted in a summary: `2 steps, 1 timer`."""
    nouns = "steps?|timers?|signals?|approvals?|patch markers?|child runs?|skipped"
    return sum(map(int, re.findall(rf"(\d+) (?:{nouns})", short)))


def test_rows_are_in_the_order_of_their_numbers_and_as_many_as_are_counted(shop: Project):
    short, table = rows(shop, "parallel")
    assert [row[0] for row in table] == ["1", "2", "3", "t1", "–", "4"]
    assert short.endswith(" with 4 steps, 1 timer, 1 patch marker.")
    assert counted(short) == len(table)


def test_a_step_that_is_skipped_has_a_row(shop: Project):
    short, table = rows(shop, "order-5")
    assert [(row[0], row[1], row[-1]) for row in table] == [
        ("1", "check", "ok"), ("–", "review", "skipped"), ("–", "report", "skipped"), ("2", "ship", "ok"),
    ]  # fmt: skip
    assert short.endswith(" with 2 steps, 2 skipped.")
    data = shop.here("show", "order-5", "--json").json["skipped_steps"]
    assert data == [
        {"step_number": 2, "name": "review", "next_number": 2},
        {"step_number": 3, "name": "report", "next_number": 2},
    ]
    short, table = rows(shop, "order-500")
    assert "skipped" not in short
    assert [row[-1] for row in table] == ["ok"] * 4


def test_a_step_that_is_skipped_again_after_a_retry_has_one_row(shop: Project):
    code = "from app import Retried\nimport asyncio\nasync def main(): await Retried()\nasyncio.run(main())"
    assert shop.python("-c", code).code == 1
    short, _ = rows(shop, "retried")
    assert " with 2 steps, 1 skipped: ValueError: not paid" in short
    (shop.folder / "paid").touch()
    assert shop.here("retry", "retried").code == 0
    assert [one["name"] for one in shop.here("show", "retried", "--json").json["skipped_steps"]] == []
    assert shop.python("-c", code).code == 0
    short, table = rows(shop, "retried")
    assert [(row[1], row[-1]) for row in table] == [("check", "ok"), ("remind", "skipped"), ("pay", "ok")]
    assert " with 2 steps, 1 skipped." in short


@pytest.mark.parametrize(
    ("run", "names", "short"),
    [
        ("first", ["model"], "1 step"),
        ("second", ["model"], "1 step"),
        ("asking", ["work", "approval", "work"], "2 steps, 1 approval"),
    ],
)
def test_internal_records_have_no_row_and_are_not_counted(shop: Project, run: str, names: list[str], short: str):
    output, table = rows(shop, run)
    assert [row[1] for row in table] == names
    assert f" with {short}" in output
    journal = shop.here("show", run, "--json").json["journal"]
    assert len([one for one in journal if not one["is_internal"]]) == len(table) < len(journal)


def test_a_run_that_only_waited_is_not_shown_as_replayed(shop: Project):
    story = shop.here("show", "waiting", "--json").json
    assert (story["state"], story["epoch"] > 1) == ("completed", True)
    assert "replayed" not in shop.here("show", "waiting").out
    assert [one["replay_count"] for one in story["journal"]] == [0, 0, 0]


def test_a_run_is_shown_as_replayed_after_its_worker_was_killed(shop: Project):
    shop.start("killed")
    first = shop.worker("app:killed")
    wait_until_sync(lambda: (shop.folder / "begun").exists())
    first.kill()
    first.wait()
    (shop.folder / "second").touch()
    second = shop.worker("app:killed")
    try:
        wait_until_sync(lambda: shop.here("show", "killed", "--json").json["state"] == "completed")
    finally:
        second.terminate()
        second.communicate(timeout=20)
    _, table = rows(shop, "killed")
    assert [(row[1], "replayed" in row) for row in table] == [("work", True), ("hang", False)]
    assert table[0][-3:] == ["ok,", "replayed", "×1"]


def test_a_run_that_failed_before_its_first_step_promises_no_later_records(shop: Project):
    code = "from app import broken\nimport asyncio\nasync def main(): await broken()\nasyncio.run(main())"
    assert shop.python("-c", code).code == 1
    out = shop.here("show", "broken").out
    assert "nothing was recorded" in out
    assert "yet" not in out
