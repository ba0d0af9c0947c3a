"""Programs: they run again from their beginning, and their recorded calls are answered, in whatever order they come."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio
from engine_world import VirtualClock, World, describe_journal, get_state, wait_for_state

from holdfast import (
    Budget,
    NonDeterminismError,
    RunCancelled,
    RunFailed,
    Runtime,
    StepOutcomeUnknown,
    UsageError,
    ask,
    current_step,
    once,
    program,
    step,
    workflow,
)
from holdfast.authoring.workflow import Workflow
from holdfast.client.handle import Handle
from holdfast.core.program_calls import LogicalThread
from holdfast.engine.program_context import find_program, in_thread, name_thread
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    TokenCounts,
    record_model_call,
    record_model_stream,
    record_tool_call,
)
from holdfast.services import run_control
from waits import wait_until

pytestmark = pytest.mark.asyncio


class TextCodec(AnswerCodec[str]):
    """An answer of a model that is a text."""

    def dump(self, answer: str) -> Any:
        return answer

    def load(self, data: Any) -> str:
        return data

    def describe(self, answer: str) -> ModelAnswer:
        return ModelAnswer(answer, tokens=TokenCounts(1000, 100))


class PartsCodec(AnswerCodec[list[str]]):
    """A streamed answer."""

    def dump(self, answer: list[str]) -> Any:
        return answer

    def load(self, data: Any) -> list[str]:
        return data

    def describe(self, answer: list[str]) -> ModelAnswer:
        return ModelAnswer("".join(answer))


def make_input(text: str) -> ModelInput:
    return ModelInput("openai:gpt-4o", [{"role": "user", "content": text}])


class Effects:
    """What happened, and a gate at which a program waits so that its process can be killed."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self._gate = asyncio.Event()

    def note(self, name: str) -> str:
        self.happened.append(name)
        return name

    async def wait_at_gate(self) -> None:
        await self._gate.wait()

    async def start(
        self, world: World, flow: Workflow[..., Any], *args: Any, until: str
    ) -> tuple[Runtime, Handle[Any]]:
        """Start a run, and wait for an effect."""
        runtime = await world.open()
        handle = await runtime.start(flow)
        await wait_until(lambda: until in self.happened)
        return runtime, handle

    async def crash(self, world: World, runtime: Runtime, flow: Workflow[..., Any], handle: Handle[Any]) -> Handle[Any]:
        """Kill the process. Another one takes over, with an open gate, and notes what it does."""
        await world.crash(runtime)
        self._gate.set()
        self.happened.clear()
        second = await world.open()
        return flow.get_handle(second.store_provider, handle.run_id)


@pytest_asyncio.fixture
async def effects() -> Effects:
    return Effects()


async def test_a_program_that_runs_again_repeats_only_what_was_in_flight(world: World, effects: Effects):
    @step
    async def fetch(name: str) -> str:
        effects.note(name)
        if name == "c":
            await effects.wait_at_gate()
        return name.upper()

    @program
    async def flow() -> list[str]:
        return [await fetch(name) for name in "abc"]

    runtime, handle = await effects.start(world, flow, until="c")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == ["A", "B", "C"]
    assert effects.happened == ["c"]


async def test_parallel_calls_may_come_in_another_order(world: World, effects: Effects):
    order = ["a", "b", "c"]

    @step
    async def fetch(name: str) -> str:
        return effects.note(name)

    async def fetch_twice(name: str) -> str:
        return await fetch(name) + await fetch(name + name)

    @program
    async def flow() -> list[str]:
        found = await asyncio.gather(*map(fetch_twice, order))
        effects.note("gate")
        await effects.wait_at_gate()
        return sorted(found)

    runtime, handle = await effects.start(world, flow, until="gate")
    order.reverse()
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == ["aaa", "bbb", "ccc"]
    assert effects.happened == ["gate"]


async def test_equal_calls_get_their_outcomes_in_the_order_of_their_task(world: World, effects: Effects):
    @step
    async def draw() -> int:
        effects.note("draw")
        return len(effects.happened)

    @program
    async def flow() -> list[int]:
        drawn = [await draw(), await draw(), await draw()]
        effects.note("gate")
        await effects.wait_at_gate()
        return [*drawn, await draw()]

    runtime, handle = await effects.start(world, flow, until="gate")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == [1, 2, 3, 2]


async def test_threads_of_a_program_find_their_calls_again(world: World, effects: Effects):
    order = ["a", "b", "c"]
    is_open = threading.Event()

    @step
    def fetch(name: str) -> str:
        return effects.note(name)

    @program
    def flow() -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            found = list(pool.map(fetch, order))
        effects.note("gate")
        is_open.wait(10)
        return sorted(found)

    runtime, handle = await effects.start(world, flow, until="gate")
    order.reverse()
    handle = await effects.crash(world, runtime, flow, handle)
    is_open.set()
    assert await handle.result() == ["a", "b", "c"]
    assert {"a", "b", "c"}.isdisjoint(effects.happened)


async def test_a_changed_call_stops_the_run_and_says_what_has_changed(world: World, effects: Effects):
    prompt = ["Where is Oslo?"]

    async def answer() -> str:
        return effects.note("model")

    @program
    async def flow() -> str:
        text = await record_model_call(make_input(prompt[0]), TextCodec(), answer)
        effects.note("gate")
        await effects.wait_at_gate()
        return text

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    with pytest.raises(RunFailed) as raised:
        await handle.result()
    change = str(raised.value.__cause__)
    assert isinstance(raised.value.__cause__, NonDeterminismError)
    assert "-content: Where is Oslo?" in change
    assert "+content: Where is Rome?" in change
    assert effects.happened == []


async def test_a_changed_first_call_of_a_named_thread_stops_the_run(world: World, effects: Effects):
    prompt = ["Where is Oslo?"]

    async def answer() -> str:
        return effects.note("model")

    async def loop() -> str:
        name_thread("loop")
        return await record_model_call(make_input(prompt[0]), TextCodec(), answer)

    @program
    async def flow() -> str:
        text = await asyncio.create_task(loop())
        effects.note("gate")
        await effects.wait_at_gate()
        return text

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    with pytest.raises(RunFailed) as raised:
        await handle.result()
    assert "+content: Where is Rome?" in str(raised.value.__cause__)
    assert effects.happened == []


async def test_named_threads_find_their_calls_among_others_with_the_same_content(world: World, effects: Effects):
    names = ["one", "two", ""]

    @step
    async def fetch(text: str) -> str:
        return effects.note(text)

    async def loop(name: str) -> str:
        if name:
            name_thread(name)
        return f"{await fetch('a')} {await fetch('b')} {await fetch(name)}"

    @program
    async def flow() -> list[str]:
        found = await asyncio.gather(*map(loop, names))
        effects.note("gate")
        await effects.wait_at_gate()
        return sorted(found)

    runtime, handle = await effects.start(world, flow, until="gate")
    names.reverse()
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == ["a b ", "a b one", "a b two"]
    assert effects.happened == ["gate"]


async def test_what_a_thread_starts_is_named_by_its_order(world: World, effects: Effects):
    prompts = ["a", "b"]

    async def answer() -> str:
        return effects.note("model")

    async def ask_model(prompt: str, thread: LogicalThread) -> str:
        with in_thread(thread):
            return await record_model_call(make_input(prompt), TextCodec(), answer)

    def start_thread(prompt: str) -> LogicalThread:
        found = find_program()
        assert found is not None
        calls = found.run.execution.calls
        return calls.get_named_thread(found.thread.container, calls.make_thread_name(found.thread, prompt))

    @program
    async def flow() -> None:
        threads = [start_thread(prompt) for prompt in prompts]
        tasks = [asyncio.create_task(ask_model(*one)) for one in zip(prompts, threads, strict=True)]
        await asyncio.gather(*reversed(tasks))
        effects.note("gate")
        await effects.wait_at_gate()

    runtime, handle = await effects.start(world, flow, until="gate")
    prompts.reverse()
    handle = await effects.crash(world, runtime, flow, handle)
    with pytest.raises(RunFailed, match="with other content"):
        await handle.result()
    assert effects.happened == []


async def test_a_once_step_in_flight_is_not_run_again(world: World, effects: Effects):
    async def pay(amount: int) -> str:
        effects.note("pay")
        await effects.wait_at_gate()
        return f"paid {amount}"

    @program
    async def flow() -> str:
        try:
            return await once("charge-42", pay, 5)
        except StepOutcomeUnknown as unknown:
            return f"unknown: {unknown.step}"

    runtime, handle = await effects.start(world, flow, until="pay")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == "unknown: charge-42"
    assert effects.happened == []


async def test_what_a_tool_calls_is_recorded_as_well(world: World, effects: Effects):
    @step
    async def look_up(name: str) -> str:
        return effects.note(name)

    async def search() -> str:
        effects.note("search")
        found = await look_up("a")
        effects.note("gate")
        await effects.wait_at_gate()
        return found

    @program
    async def flow() -> str:
        return await record_tool_call("search", {"query": "x"}, search)

    runtime, handle = await effects.start(world, flow, until="gate")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == "a"
    assert effects.happened == ["search", "gate"]


async def test_a_failed_call_raises_its_error_again(world: World, effects: Effects):
    @step
    async def fail() -> None:
        effects.note("fail")
        raise LookupError("nothing there")

    @program
    async def flow() -> str:
        with pytest.raises(LookupError, match="nothing there"):
            await fail()
        effects.note("gate")
        await effects.wait_at_gate()
        return "handled"

    runtime, handle = await effects.start(world, flow, until="gate")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == "handled"
    assert effects.happened == ["gate"]


async def test_a_stream_is_repeated_from_the_record_and_an_unfinished_one_is_opened_again(
    world: World, effects: Effects
):
    async def stream(name: str) -> Any:
        effects.note(name)
        for part in ("one ", "two ", "three"):
            yield part

    @program
    async def flow() -> list[str]:
        whole = [part async for part in record_model_stream(make_input("a"), PartsCodec(), lambda: stream("a"))]
        parts = record_model_stream(make_input("b"), PartsCodec(), lambda: stream("b"))
        read = [await anext(parts)]
        effects.note("gate")
        await effects.wait_at_gate()
        return [*whole, *read, *[part async for part in parts]]

    runtime, handle = await effects.start(world, flow, until="gate")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == ["one ", "two ", "three"] * 2
    assert effects.happened == ["b", "gate"]


async def test_a_step_is_executed_in_the_thread_that_calls_it_and_retried_there(world: World):
    threads: list[int] = []

    @step(retries=2, backoff=0.01)
    def save() -> str:
        threads.append(threading.get_ident())
        if len(threads) < 3:
            raise ConnectionError("the database is away")
        return "saved"

    @program
    def flow() -> bool:
        assert save() == "saved"
        return set(threads) == {threading.get_ident()}

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result()
    assert len(threads) == 3
    assert len(await describe_journal(runtime, handle)) > 1


async def test_an_async_step_is_executed_on_the_event_loop_that_calls_it(world: World):
    @step(retries=1, backoff=0.01)
    async def get_loop_id() -> int:
        return id(asyncio.get_running_loop())

    @step
    def count() -> int:
        return 3

    @program
    def flow() -> bool:
        async def main() -> bool:
            assert count() == 3  # as without Holdfast: a plain function returns its value
            return await get_loop_id() == id(asyncio.get_running_loop())

        return asyncio.run(main())

    runtime = await world.open()
    assert await (await runtime.start(flow)).result()


async def test_a_blocking_call_on_the_event_loop_of_the_engine_is_refused(world: World):
    @program
    async def flow() -> None:
        once("save", lambda: None)

    runtime = await world.open()
    with pytest.raises(RunFailed, match="a blocking call cannot be recorded here") as raised:
        await (await runtime.start(flow)).result()
    assert isinstance(raised.value.__cause__, UsageError)


async def test_a_failed_program_continues_after_a_retry(world: World, effects: Effects):
    @step
    async def fetch(name: str) -> str:
        return effects.note(name)

    @step
    async def send() -> str:
        effects.note("send")
        if effects.happened.count("send") == 1:
            raise ConnectionError("no route")
        return "sent"

    @program
    async def flow() -> str:
        await fetch("a")
        return await send()

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed):
        await handle.result()
    await run_control.retry_run(runtime.store_provider, handle.run_id)
    assert await handle.result() == "sent"
    assert effects.happened == ["a", "send", "send"]


async def test_a_cancelled_program_can_clean_up(world: World, effects: Effects):
    @step
    async def note(name: str) -> str:
        return effects.note(name)

    @program
    async def flow() -> None:
        try:
            effects.note("gate")
            await asyncio.sleep(60)
        finally:
            await note("cleaned up")

    _, handle = await effects.start(world, flow, until="gate")
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert effects.happened == ["gate", "cleaned up"]


async def test_a_cancelled_plain_program_ends_at_its_next_call(world: World, effects: Effects):
    ended: list[str] = []

    @step
    def note() -> str:
        return effects.note("note")

    @program
    def flow() -> None:
        try:
            while True:
                note()
                effects.note("gate")
        finally:
            ended.append("ended")

    _, handle = await effects.start(world, flow, until="gate")
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert ended == ["ended"]


async def test_a_program_asks_and_goes_on_in_another_process(world: World, effects: Effects):
    @step
    async def fetch() -> str:
        return effects.note("fetch")

    @program
    async def flow() -> str:
        await fetch()
        return "yes" if await ask("Go?") else "no"

    runtime, handle = await effects.start(world, flow, until="fetch")
    await wait_until(handle.approvals)
    handle = await effects.crash(world, runtime, flow, handle)
    [asked] = await handle.approvals()
    await handle.approve(asked.id, by="ann")
    assert await handle.result() == "yes"
    assert effects.happened == []


async def test_programs_and_workflows_call_each_other(world: World, effects: Effects):
    @workflow
    async def add(number: int) -> int:
        effects.note("add")
        return number + 1

    @program
    async def double(number: int) -> int:
        return 2 * await add(number)

    @workflow
    async def flow() -> int:
        result = await double(3)
        effects.note("gate")
        await asyncio.sleep(3600)
        return result

    runtime, handle = await effects.start(world, flow, until="gate")
    handle = await effects.crash(world, runtime, flow, handle)
    await wait_until(lambda: "gate" in effects.happened)
    assert "add" not in effects.happened
    assert isinstance(world.clock, VirtualClock)
    await world.clock.sleep(3600)
    assert await handle.result() == 8


async def test_a_program_stops_at_its_budget_and_continues_when_it_is_raised(world: World, effects: Effects):
    async def answer() -> str:
        return effects.note("model")

    @program
    async def flow() -> list[str]:
        return [await record_model_call(make_input(text), TextCodec(), answer) for text in "ab"]

    runtime = await world.open()
    handle = await runtime.start(flow.options(budget=Budget(turns=1)))
    await wait_until(lambda: effects.happened == ["model"])
    await wait_for_state(runtime, handle, "waiting", "running", "ready")
    await handle.set_budget(Budget(turns=2))
    assert await handle.result() == ["model", "model"]
    assert (await handle.usage()).calls == 2


async def test_a_step_reports_the_usage_of_its_own_model_call(world: World):
    @step
    async def summarize() -> str:
        current_step().report_usage("openai:gpt-4o", input_tokens=1000, output_tokens=100)
        return "short"

    @program
    async def flow() -> str:
        return await summarize()

    runtime = await world.open()
    handle = await runtime.start(flow)
    assert await handle.result() == "short"
    usage = await handle.usage()
    assert (usage.input_tokens, usage.output_tokens) == (1000, 100)
    assert usage.cost


async def test_a_failing_program_fails_its_run(world: World):
    @program
    def flow() -> None:
        raise ValueError("no such thing")

    runtime = await world.open()
    handle = await runtime.start(flow)
    with pytest.raises(RunFailed, match="no such thing"):
        await handle.result()
    assert await get_state(runtime, handle) == "failed"


async def test_once_in_a_workflow_and_outside_of_runs(world: World, effects: Effects):
    async def pay(amount: int) -> int:
        effects.note("pay")
        return amount

    def save() -> str:
        return "saved"

    @workflow
    async def flow() -> int:
        paid = await once("charge-42", pay, 5)
        effects.note("gate")
        await asyncio.sleep(3600)
        return paid

    @workflow
    async def blocking() -> None:
        once("save", save)

    assert await once("charge-42", pay, 5) == 5
    assert once("save", save) == "saved"
    with pytest.raises(UsageError, match="must be a text that names the call"):
        once("", save)
    effects.happened.clear()
    runtime, handle = await effects.start(world, flow, until="gate")
    with pytest.raises(RunFailed, match="cannot call a plain function this way"):
        await (await runtime.start(blocking)).result()
    handle = await effects.crash(world, runtime, flow, handle)
    await world.clock.sleep(3600)
    assert await handle.result() == 5
    assert "pay" not in effects.happened


async def test_branches_that_begin_alike_find_their_calls_again_in_any_order(world: World, effects: Effects):
    order = ["a", "b", "c"]

    @step
    async def load_settings() -> str:
        effects.note("settings")
        return "settings"

    @step
    async def work(name: str, part: int) -> str:
        return effects.note(f"{name}{part}")

    async def branch(name: str) -> list[str]:
        return [await load_settings(), await work(name, 1), await work(name, 2)]

    @program
    async def flow() -> list[list[str]]:
        found = await asyncio.gather(*map(branch, order))
        effects.note("gate")
        await effects.wait_at_gate()
        return sorted(found)

    runtime, handle = await effects.start(world, flow, until="gate")
    order.reverse()
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == [["settings", f"{name}1", f"{name}2"] for name in "abc"]
    assert effects.happened == ["gate"]


async def test_a_branch_that_begins_alike_takes_the_place_of_one_that_was_never_started_again(
    world: World, effects: Effects
):
    names = ["a", "b"]

    @step
    async def load_settings() -> str:
        return effects.note("settings")

    @step
    async def work(name: str) -> str:
        return effects.note(name)

    async def branch(name: str) -> str:
        return await load_settings() + await work(name)

    @program
    async def flow() -> list[str]:
        found = await asyncio.gather(*map(branch, names))
        effects.note("gate")
        await effects.wait_at_gate()
        return sorted(found)

    runtime, handle = await effects.start(world, flow, until="gate")
    names.remove("a")
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == ["settingsb"]
    assert effects.happened == ["gate"]


async def test_a_key_of_once_means_the_same_call_in_the_whole_run(world: World, effects: Effects):
    prompt = ["Where is Oslo?"]

    async def answer() -> str:
        return effects.note("model")

    async def charge() -> int:
        effects.note("charge")
        return 500

    async def pay() -> int:
        await record_model_call(make_input(prompt[0]), TextCodec(), answer)
        return await once("charge-42", charge)

    @program
    async def flow() -> list[int]:
        paid = await asyncio.create_task(pay())
        effects.note("gate")
        await effects.wait_at_gate()
        return [paid, await once("charge-42", charge)]

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == [500, 500]
    assert effects.happened == ["model", "gate"]


async def test_calls_with_a_key_of_once_that_are_made_at_the_same_time_are_one(world: World, effects: Effects):
    async def charge() -> int:
        effects.note("charge")
        await asyncio.sleep(0)
        return 500

    def print_receipt() -> str:
        return effects.note("receipt")

    @program
    async def flow() -> list[Any]:
        paid = await asyncio.gather(*(once("charge-42", charge) for _ in range(3)))
        return [*paid, *await asyncio.gather(*(asyncio.to_thread(once, "receipt", print_receipt) for _ in range(3)))]

    runtime = await world.open()
    assert await (await runtime.start(flow)).result() == [500, 500, 500, "receipt", "receipt", "receipt"]
    assert sorted(effects.happened) == ["charge", "receipt"]


async def test_a_thread_with_a_changed_first_call_does_not_repeat_a_once_step(world: World, effects: Effects):
    prompt = ["Where is Oslo?"]

    async def answer() -> str:
        return effects.note("model")

    @step(effect="once")
    async def charge(amount: int) -> int:
        effects.note("charge")
        return amount

    async def pay() -> int:
        await record_model_call(make_input(prompt[0]), TextCodec(), answer)
        return await charge(5)

    @program
    async def flow() -> int:
        paid = await asyncio.create_task(pay())
        effects.note("gate")
        await effects.wait_at_gate()
        return paid

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    with pytest.raises(RunFailed) as raised:
        await handle.result()
    assert isinstance(raised.value.__cause__, NonDeterminismError)
    assert effects.happened == ["model"]


async def test_a_once_step_happens_once_also_on_another_path(world: World, effects: Effects):
    prompt = ["Where is Oslo?"]

    async def answer() -> str:
        return effects.note("model")

    @step(effect="once")
    async def charge(amount: int) -> int:
        effects.note("charge")
        return amount

    async def pay() -> int:
        await record_model_call(make_input(prompt[0]), TextCodec(), answer)
        return await charge(5)

    @program
    async def flow() -> int:
        context = find_program()
        assert context is not None
        context.run.execution.passes_over_changes = True
        paid = await asyncio.create_task(pay())
        effects.note("gate")
        await effects.wait_at_gate()
        return paid

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == 5
    assert effects.happened == ["model", "gate"]


async def test_a_changed_first_call_of_an_event_loop_in_a_plain_program_stops_the_run(world: World, effects: Effects):
    prompt, is_open = ["Where is Oslo?"], threading.Event()

    async def answer() -> str:
        return effects.note("model")

    async def think() -> str:
        return await record_model_call(make_input(prompt[0]), TextCodec(), answer)

    @program
    def flow() -> str:
        text = asyncio.run(think())
        effects.note("gate")
        is_open.wait(10)
        return text

    runtime, handle = await effects.start(world, flow, until="gate")
    prompt[0] = "Where is Rome?"
    handle = await effects.crash(world, runtime, flow, handle)
    is_open.set()
    with pytest.raises(RunFailed) as raised:
        await handle.result()
    assert isinstance(raised.value.__cause__, NonDeterminismError)
    assert "model" not in effects.happened


async def test_a_program_that_ends_on_another_path_says_so(
    world: World, effects: Effects, caplog: pytest.LogCaptureFixture
):
    names = ["a"]

    @step
    async def work(name: str) -> str:
        return effects.note(name)

    @program
    async def flow() -> str:
        found = await asyncio.create_task(work(names[0]))
        effects.note("gate")
        await effects.wait_at_gate()
        return found

    runtime, handle = await effects.start(world, flow, until="gate")
    names[0] = "b"
    handle = await effects.crash(world, runtime, flow, handle)
    assert await handle.result() == "b"
    [warning] = [one.getMessage() for one in caplog.records if "another path" in one.getMessage()]
    assert "without repeating 1 recorded call: work (#1)" in warning
