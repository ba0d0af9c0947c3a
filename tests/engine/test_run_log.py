"""One line in the log for each retry, failure, takeover and dead run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from engine_world import World, wait_for_records, wait_until_ended

from holdfast import AesEncryption, Agent, RunFailed, current_step, program, step, tool, workflow
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.encrypted import EncryptedStore
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_a_retry_is_logged_when_the_attempt_fails_and_not_when_the_step_does(
    world: World, caplog: pytest.LogCaptureFixture
):
    @step(retries=2, backoff=30)
    async def fetch() -> int:
        if current_step().attempt == 1:
            raise ConnectionError("no route")
        return len(caplog.records)

    @workflow(id="report")
    async def report() -> int:
        return await fetch()

    runtime = await world.open()
    assert await (await runtime.start(report)).result() == 1  # it was there before the second attempt
    told = "step 'fetch' of run 'report' failed (attempt 1 of 3), retrying in 30 s: ConnectionError: no route"
    assert lines(caplog) == [("WARNING", told)]
    record = caplog.records[0]
    assert record.name == "holdfast.runs"
    fields = {"run_id": "report", "workflow": "report", "step": "fetch", "attempt": 1, "retry_in_s": 30.0}
    assert fields.items() <= vars(record).items()


async def test_a_failure_is_logged_for_the_step_and_for_its_run(world: World, caplog: pytest.LogCaptureFixture):
    @step
    async def load() -> None:
        raise ValueError("no such\ncustomer \x1b[31m")

    @workflow(id="bad")
    async def etl() -> None:
        await load()

    runtime = await world.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(etl)).result()
    assert lines(caplog) == [
        ("WARNING", r"step 'load' of run 'bad' failed (attempt 1): ValueError: no such customer \x1b[31m"),
        ("ERROR", r"run 'bad' of workflow 'etl' failed: ValueError: no such customer \x1b[31m"),
    ]


async def test_a_failure_that_the_workflow_handles_is_logged_for_the_step_alone(
    world: World, caplog: pytest.LogCaptureFixture
):
    @step
    async def load() -> None:
        raise ValueError("no")

    @workflow(id="fine")
    async def etl() -> str:
        try:
            await load()
        except ValueError:
            return "without"
        return "with"

    runtime = await world.open()
    assert await (await runtime.start(etl)).result() == "without"
    assert [level for level, _ in lines(caplog)] == ["WARNING"]


async def test_a_run_whose_code_cannot_go_on_is_logged_once(world: World, caplog: pytest.LogCaptureFixture):
    @workflow(id="stuck")
    async def flow() -> None:
        await asyncio.get_running_loop().create_future()

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until_ended(runtime, handle)
    (told,) = lines(caplog)
    assert told[0] == "ERROR"
    assert told[1].startswith("run 'stuck' of workflow 'flow' cannot continue: ")


async def test_a_run_whose_program_has_changed_is_logged_without_the_diff(
    world: World, caplog: pytest.LogCaptureFixture
):
    @step
    async def load(name: str) -> str:
        return name

    @program(id="changed")
    async def report() -> None:
        await load(names[0])
        await asyncio.Event().wait()

    names = ["one"]
    runtime = await world.open()
    handle = await runtime.start(report)
    await wait_for_records(runtime, "changed", 2)
    await world.crash(runtime)
    caplog.clear()
    names = ["other"]
    second = await world.open()
    with pytest.raises(RunFailed, match="To continue it with the earlier code, run `holdfast retry changed` first"):
        await report.get_handle(second.store_provider, handle.run_id).result()
    assert lines(caplog)[-1] == (
        "ERROR",
        "run 'changed' of workflow 'report' cannot continue: its program calls 'load' where the journal has call #1 "
        "(load) with other content.",
    )


async def test_a_takeover_is_logged_with_the_death_that_made_it_necessary(
    world: World, caplog: pytest.LogCaptureFixture
):
    calls: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if calls == ["a", "b"]:
            await asyncio.sleep(60)
        return name

    @workflow(id="long")
    async def flow() -> list[str]:
        return [await work(name) for name in ("a", "b")]

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "b" in calls)
    await world.crash(first)
    second = await world.open()
    assert await flow.get_handle(second.store_provider, handle.run_id).result() == ["a", "b"]
    assert lines(caplog) == [
        ("WARNING", f"worker {first.worker_id} died: 1 of its runs can be taken over"),
        ("WARNING", "run 'long' of workflow 'flow' is taken over after its worker died (1 recorded outcome is kept)"),
    ]


async def test_a_dead_run_is_logged(world: World, caplog: pytest.LogCaptureFixture):
    begun: list[int] = []

    @step
    async def crash() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    @workflow(id="bomb", max_deliveries=1)
    async def flow() -> None:
        await crash()

    first = await world.open()
    await first.start(flow)
    await wait_until(lambda: bool(begun))
    await world.crash(first)
    await world.open()
    level, told = lines(caplog)[-1]
    assert level == "ERROR"
    assert told.startswith("run 'bomb' is dead: ")
    assert "holdfast show bomb" in told


async def test_no_line_has_a_key_in_it(world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CRM_TOKEN", "correct-horse-battery")

    @step(retries=1, backoff=0.1)
    async def fetch() -> None:
        raise ConnectionError("401 for Bearer abc.def.ghi with sk-proj-abcDEF1234567890 and correct-horse-battery")

    @workflow(id="leaky")
    async def flow() -> None:
        await fetch()

    runtime = await world.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result()
    assert len(caplog.records) == 3
    for record in caplog.records:
        assert "401 for Bearer [key] with [key] and [key]" in record.getMessage()


async def test_with_encryption_the_words_of_errors_are_not_logged(world: World, caplog: pytest.LogCaptureFixture):
    @step(retries=1, backoff=0.1)
    async def fetch() -> None:
        raise ConnectionError("patient 4711 is unknown")

    @workflow(id="sealed")
    async def flow() -> None:
        await fetch()

    runtime = await world.open(store=EncryptedStore(world.store(), AesEncryption(AesEncryption.new_key())))
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result()
    assert [told.partition(": ")[2] for _, told in lines(caplog)] == ["ConnectionError"] * 3


async def test_a_long_message_is_cut(world: World, caplog: pytest.LogCaptureFixture):
    @step
    async def fetch() -> None:
        raise ValueError("x" * 100_000)

    @workflow(id="long")
    async def flow() -> None:
        await fetch()

    runtime = await world.open()
    with pytest.raises(RunFailed):
        await (await runtime.start(flow)).result()
    assert len(caplog.records) == 2
    assert all(len(told) < 1000 and told.endswith("…") for _, told in lines(caplog))


async def test_a_call_that_waits_for_a_person_is_not_logged_as_a_failure(
    in_memory: World, caplog: pytest.LogCaptureFixture
):
    @tool(requires_approval=True)
    async def send(text: str) -> str:
        """Send it."""
        return text

    agent = Agent(ScriptedModel([call("send", text="hello"), "done"]), name="log-sender", tools=[send])
    runtime = await in_memory.open()
    handle = await runtime.start(agent, "send it")

    async def find_open_approval() -> Any:
        return await runtime._engine.store.list_approvals(ApprovalFilter(handle.run_id))

    await wait_until(find_open_approval)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
