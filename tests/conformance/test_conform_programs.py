"""Programs: code that uses threads and any library, and that runs again from its beginning."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id, wait_for_approval

from holdfast import (
    Budget,
    Client,
    NonDeterminismError,
    RunCancelled,
    RunFailed,
    RunState,
    Runtime,
    RunTimedOut,
    UsageError,
    Workflow,
    ask,
    current_run,
    current_step,
    program,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    record_model_call,
    record_model_stream_sync,
    record_tool_call,
    record_tool_call_sync,
)
from waits import wait_until, wait_until_sync

pytestmark = pytest.mark.asyncio(loop_scope="module")

broken: set[str] = set()
"""Runs whose step fails."""
changed: set[str] = set()
"""Runs whose program has changed."""


def count(what: str) -> int:
    """How often this was done in the run."""
    effect_counts[current_run().id, what] += 1
    return effect_counts[current_run().id, what]


@step
async def pg_double(number: int) -> int:
    count(f"double {number}")
    await asyncio.sleep(0.001 * (10 - number))  # the later calls are done first
    return 2 * number


@step
def pg_halve(number: int) -> int:
    count(f"halve {number}")
    return number // 2


@step
def pg_fail(why: str) -> None:
    count("fail")
    raise ValueError(why)


@asynccontextmanager
async def own_worker(world: World, *programs: Workflow[..., Any]) -> AsyncIterator[Runtime]:
    """Another worker, which has programs that no other one has."""
    async with Runtime(world.url, workflows=[one.name for one in programs]) as runtime:
        yield runtime


async def run_twice(
    world: World, client: Client, code: Workflow[..., Any], *args: Any, between: Callable[[str], Any] = lambda _: None
) -> tuple[str, Any]:
    """Execute a program until it waits for the signal ``go``, and then once more, by another worker."""
    run = make_unique_id(code.name)
    async with own_worker(world, code):
        await code.options(id=run).start(*args)
        await wait_until(lambda: effect_counts[run, "waiting"])
    between(run)
    async with own_worker(world, code):
        await wait_until(lambda: effect_counts[run, "waiting"] == 2 or is_over(client, run))
        if not await is_over(client, run):
            await client.handle(run).signal("go")
        return run, await client.handle(run).result()


async def is_over(client: Client, run: str) -> bool:
    return (await client.handle(run).info()).state.is_terminal


async def wait_to_go() -> None:
    """The end of a program that is executed twice."""
    effect_counts[current_run().id, "waiting"] += 1
    await wait_for_signal("go")


# Calls


@program
async def pg_sum(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total += await pg_double(number)
    return total


async def test_the_calls_of_a_program_are_recorded_in_their_order(world: World, client: Client) -> None:
    run = make_unique_id("sum")
    assert await pg_sum.options(id=run)([3, 1, 2]) == 12
    report = await client.handle(run).describe(limit=None)
    calls = [(one.kind, one.name, one.output) for one in report.journal if one.kind == "step"]
    assert calls == [("step", "pg_double", 6), ("step", "pg_double", 2), ("step", "pg_double", 4)]
    assert [one.seq for one in report.journal] == list(range(len(report.journal)))


@program
async def pg_parallel() -> list[int]:
    found = await asyncio.gather(*(pg_double(number) for number in range(5)))
    await wait_to_go()
    return found


async def test_calls_in_parallel_get_their_own_outcomes_again(world: World, client: Client) -> None:
    run, found = await run_twice(world, client, pg_parallel)
    assert found == [0, 2, 4, 6, 8]
    assert [effect_counts[run, f"double {number}"] for number in range(5)] == [1] * 5


@program
def pg_threads() -> list[int]:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(pg_halve(100)))
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(pg_halve, range(8))]
    thread.start()
    thread.join()
    asyncio.run(wait_to_go())
    return [*found, *results]


async def test_a_plain_function_calls_steps_in_threads(world: World, client: Client) -> None:
    run, found = await run_twice(world, client, pg_threads)
    assert found == [0, 0, 1, 1, 2, 2, 3, 3, 50]
    assert [effect_counts[run, f"halve {number}"] for number in (*range(8), 100)] == [1] * 9


# What frameworks record


async def use_tool() -> int:
    count("tool")
    return await pg_double(4) + await record_tool_call("pg_inner", {"n": 1}, inner_tool)


async def inner_tool() -> int:
    return count("inner")


@program
async def pg_tools() -> int:
    found = await record_tool_call("pg_outer", {}, use_tool)
    await wait_to_go()
    return found


async def test_a_tool_in_place_records_the_calls_in_it(world: World, client: Client) -> None:
    run, found = await run_twice(world, client, pg_tools)
    assert found == 9
    assert [effect_counts[run, what] for what in ("tool", "double 4", "inner")] == [1, 1, 1]
    report = await client.handle(run).describe(limit=None)
    assert [one.name for one in report.journal if one.kind == "step"] == ["pg_double", "pg_inner", "pg_outer"]


class Codec(AnswerCodec[Any]):
    def dump(self, answer: Any) -> Any:
        return answer

    def load(self, data: Any) -> Any:
        return data

    def describe(self, answer: Any) -> ModelAnswer:
        return ModelAnswer("".join(answer), [], TokenCounts(1000, 500))

    def get_text(self, event: str) -> str:
        return event


def make_input(text: str) -> ModelInput:
    return ModelInput("openai:gpt-4o", [{"role": "user", "content": text}], {})


def stream_answer() -> Any:
    count("stream")
    yield from ["Good ", "morning"]


@program
async def pg_streams() -> str:
    question = make_input("Hello")
    parts = await asyncio.to_thread(lambda: [*record_model_stream_sync(question, Codec(), stream_answer)])
    await wait_to_go()
    return "".join(parts)


async def test_a_stream_is_recorded_as_a_whole(world: World, client: Client) -> None:
    run, text = await run_twice(world, client, pg_streams)
    assert (text, effect_counts[run, "stream"]) == ("Good morning", 1)
    used = await client.handle(run).usage()
    assert (used.calls, used.input_tokens) == (1, 1000)
    messages = await client.handle(run).conversation()
    assert [one.text for one in messages] == ["Hello", "Good morning"]


@program
async def pg_asks_model() -> str:
    async def answer() -> list[str]:
        count("model")
        return ["Yes."]

    text = "Changed?" if current_run().id in changed else "Same?"
    found = await record_model_call(make_input(text), Codec(), answer)
    await wait_to_go()
    return found[0]


async def test_a_changed_request_fails_the_run_with_the_difference(world: World, client: Client) -> None:
    with pytest.raises(RunFailed) as caught:
        await run_twice(world, client, pg_asks_model, between=changed.add)
    error = caught.value.__cause__
    assert isinstance(error, NonDeterminismError)
    assert "Changed?" in str(error)
    assert "Same?" in str(error)


# Failures


@program
async def pg_failing() -> str:
    try:
        await asyncio.to_thread(pg_fail, "no luck")
    except ValueError as error:
        caught = str(error)
    await wait_to_go()
    return caught


async def test_a_failure_is_recorded_and_raised_again(world: World, client: Client) -> None:
    run, caught = await run_twice(world, client, pg_failing)
    assert (caught, effect_counts[run, "fail"]) == ("no luck", 1)


@program
async def pg_healed() -> int:
    doubled = await pg_double(5)
    if current_run().id in broken:
        await asyncio.to_thread(pg_fail, "broken")
    return doubled + await asyncio.to_thread(pg_halve, 8)


async def test_a_failed_run_is_retried_with_what_it_has_recorded(world: World, client: Client) -> None:
    run = make_unique_id("healed")
    broken.add(run)
    with fails_with(ValueError, "broken"):
        await pg_healed.options(id=run)()
    broken.discard(run)
    handle = client.handle(run)
    await client.retry(run)
    assert await handle.result() == 14
    assert effect_counts[run, "double 5"] == 1


@program(timeout=0.3)
async def pg_late() -> None:
    await asyncio.sleep(60)


async def test_a_program_has_a_time_limit(world: World) -> None:
    with fails_with(RunTimedOut):
        await pg_late.options(id=make_unique_id("late"))()


# Control


@program
async def pg_long() -> None:
    try:
        count("begun")
        await asyncio.sleep(60)
    finally:
        await pg_double(1)


async def test_a_cancelled_program_is_interrupted_and_cleans_up(world: World, client: Client) -> None:
    run = make_unique_id("long")
    handle = await pg_long.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "begun"])
    await client.handle(run).cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert effect_counts[run, "double 1"] == 1


@program
async def pg_paused() -> int:
    doubled = await pg_double(3)
    count("waiting")
    return doubled + await wait_for_signal("go")


async def test_a_paused_program_runs_again_when_it_is_resumed(world: World, client: Client) -> None:
    run = make_unique_id("paused")
    handle = await pg_paused.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "waiting"])
    await client.handle(run).pause()
    await wait_until(lambda: is_paused(client, run))
    await client.handle(run).signal("go", 1)
    await client.handle(run).resume()
    assert await handle.result() == 7
    assert (effect_counts[run, "double 3"], effect_counts[run, "waiting"]) == (1, 2)


async def test_a_paused_program_is_cancelled(world: World, client: Client) -> None:
    run = make_unique_id("paused")
    handle = await pg_paused.options(id=run).start()
    await wait_until(lambda: effect_counts[run, "waiting"])
    await client.handle(run).pause()
    await wait_until(lambda: is_paused(client, run))
    await client.handle(run).cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert effect_counts[run, "double 3"] == 1


async def is_paused(client: Client, run: str) -> bool:
    report = await client.handle(run).describe()
    return report.is_paused and report.state is RunState.WAITING


@program
async def pg_asks() -> list[Any]:
    effect_counts[current_run().id, "waiting"] += 1
    allowed = await ask("Go on?")
    return [allowed, await ask("Where?", choices=["left", "right"])]


async def test_a_program_asks_people_and_its_question_outlives_its_worker(world: World, client: Client) -> None:
    run = make_unique_id("asks")
    async with own_worker(world, pg_asks):
        await pg_asks.options(id=run).start()
        first = await wait_for_approval(client, run)
    async with own_worker(world, pg_asks):
        await wait_until(lambda: effect_counts[run, "waiting"] == 2)
        assert [one.id for one in await client.approvals(run)] == [first.id]
        await client.approve(first.id, by="ann")
        await client.approve((await wait_for_approval(client, run, "Where")).id, "left", by="bob")
        assert await client.handle(run).result() == [True, "left"]


# Other runs


@workflow
async def pg_parent(number: int) -> int:
    return 1 + await pg_child(number)


@program
async def pg_child(number: int) -> int:
    return await pg_double(number)


async def test_a_workflow_calls_a_program(world: World, client: Client) -> None:
    run = make_unique_id("parent")
    assert await pg_parent.options(id=run)(4) == 9
    report = await client.handle(run).describe()
    assert [one.workflow for one in report.related_runs] == ["pg_child"]


@workflow
async def pg_adds(number: int) -> int:
    await wait_for_signal("add")
    return number + await pg_double(number)


@program
async def pg_calls() -> list[Any]:
    effect_counts[current_run().id, "waiting"] += 1
    both = await asyncio.gather(pg_adds(1), pg_adds(2))
    started = await pg_sum.start([5])
    return [both, await started.result()]


async def test_a_program_calls_and_starts_workflows_and_finds_them_again(world: World, client: Client) -> None:
    run = make_unique_id("calls")

    async def list_children() -> Any:
        children = (await client.handle(run).describe()).related_runs
        return children if len(children) == 2 else None

    async with own_worker(world, pg_calls):
        await pg_calls.options(id=run).start()
        children = await wait_until(list_children)
    async with own_worker(world, pg_calls):
        await wait_until(lambda: effect_counts[run, "waiting"] == 2)
        for child in children:
            await client.handle(child.id).signal("add")
        assert await client.handle(run).result() == [[3, 6], 10]
    related = (await client.handle(run).describe()).related_runs
    assert sorted(one.workflow for one in related) == ["pg_adds", "pg_adds", "pg_sum"]


# Limits


@program
async def pg_spends(calls: int) -> int:
    async def answer() -> list[str]:
        return ["Done."]

    for number in range(calls):
        await record_model_call(make_input(f"Call {number}"), Codec(), answer)
    return calls


async def test_a_budget_holds_a_program_until_it_is_raised(world: World, client: Client) -> None:
    run = make_unique_id("spends")
    handle = await pg_spends.options(id=run, budget=Budget(turns=2)).start(3)
    await wait_until(lambda: has_calls(client, run, 2))
    await asyncio.sleep(0.1)
    assert await has_calls(client, run, 2)
    await client.handle(run).set_budget(Budget(turns=5))
    assert await handle.result() == 3


async def has_calls(client: Client, run: str, number: int) -> bool:
    return (await client.handle(run).usage()).calls == number


@step
async def pg_reports() -> None:
    current_step().report_usage("openai:gpt-4o", input_tokens=10, output_tokens=5)


@program
async def pg_reporting() -> None:
    await pg_reports()


async def test_a_step_reports_what_it_has_used(world: World, client: Client) -> None:
    run = make_unique_id("reporting")
    await pg_reporting.options(id=run)()
    used = await client.handle(run).usage()
    assert (used.input_tokens, used.output_tokens) == (10, 5)


@step(transaction=True)
async def pg_transaction() -> None:
    current_step().connection


@program
async def pg_transacts() -> str:
    try:
        await pg_transaction()
    except UsageError as error:
        return str(error)
    return "committed"


async def test_a_step_in_a_transaction_needs_a_database(world: World) -> None:
    found = await pg_transacts.options(id=make_unique_id("transacts"))()
    assert ("transaction=True" in found) if world.backend == "temporal" else found == "committed"


@program
def pg_blocks() -> int:
    return record_tool_call_sync("pg_counts", {}, lambda: count("counts"), effect="once")


async def test_a_once_tool_of_a_plain_function_runs_once(world: World) -> None:
    run = make_unique_id("blocks")
    assert await pg_blocks.options(id=run)() == 1
    assert await pg_blocks.options(id=run)() == 1


OWN = (pg_parallel, pg_threads, pg_tools, pg_streams, pg_asks_model, pg_failing, pg_asks, pg_calls)
"""Programs that only the workers of their own tests serve."""


# Worker deaths


@pytest.mark.parametrize("stop_at", ["right", "inner", "tool", "pay", "last"])
async def test_another_process_continues_a_program_whose_process_was_killed(
    world: World, tmp_path: Path, stop_at: str
) -> None:
    ledger, run = tmp_path / "ledger", make_unique_id("killed")
    ledger.touch()
    environment = {**os.environ, "HOLDFAST_URL": world.url, "LEDGER": str(ledger), "STOP_AT": stop_at}
    command = [sys.executable, str(Path(__file__).with_name("program_app.py")), run]

    def execute_twice() -> str:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
            wait_until_sync(lambda: f"start {stop_at}" in ledger.read_text())
            first.send_signal(signal.SIGKILL)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    output = await asyncio.to_thread(execute_twice)
    paid = "unknown" if stop_at == "pay" else "pay"
    assert output.split("RESULT: ")[1].strip() == str(["left", "right", "innertool", paid, "last"])
    lines = Counter(ledger.read_text().split("\n"))
    done = ["left", "right", "inner", "tool", "pay", "last"]
    assert all(lines[f"end {name}"] >= 1 for name in done if name != stop_at)
    starts = {name: lines[f"start {name}"] for name in done}
    again = {} if stop_at == "pay" else {stop_at: 2}
    if stop_at == "right":
        starts.pop("left")  # it may have been in flight at the same time
    assert starts == {**dict.fromkeys(starts, 1), **again}


async def test_a_program_has_not_ended_when_the_event_loop_of_its_process_ends(
    world: World, client: Client, tmp_path: Path
) -> None:
    ledger, run = tmp_path / "ledger", make_unique_id("left")
    ledger.touch()
    environment = {**os.environ, "HOLDFAST_URL": world.url, "LEDGER": str(ledger), "STOP_AT": "leave"}
    command = [sys.executable, str(Path(__file__).with_name("program_app.py")), run]
    await asyncio.to_thread(subprocess.run, command, env=environment, check=True, timeout=60)
    assert not (await client.handle(run).info()).state.is_terminal
    await client.handle(run).cancel()
