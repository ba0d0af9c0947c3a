"""A runner executes programs, and crashes them everywhere."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import StepOutcomeUnknown, ask, once, program, step, workflow
from holdfast.integrations import (
    AnswerCodec,
    ModelAnswer,
    ModelInput,
    record_model_call,
    record_tool_call,
)
from holdfast.testing import CrashSafetyError, Runner
from process_state import isolated_definitions


@pytest.fixture(autouse=True)
def _own_workflows():
    with isolated_definitions(only=True):
        yield


class TextCodec(AnswerCodec[str]):
    def dump(self, answer: str) -> Any:
        return answer

    def load(self, data: Any) -> str:
        return data

    def describe(self, answer: str) -> ModelAnswer:
        return ModelAnswer(answer)


@step
async def fetch(name: str) -> str:
    return name.upper()


@step
def save(name: str) -> str:
    return name * 2


async def pay() -> int:
    return 5


async def greet() -> str:
    return "hello"


def define_agent() -> Any:
    @program
    async def agent(task: str) -> list[Any]:
        found = await asyncio.gather(*(fetch(name) for name in "abc"))
        request = ModelInput("openai:gpt-4o", [{"role": "user", "content": task}])
        text = await record_model_call(request, TextCodec(), greet)
        inner = await record_tool_call("search", {"query": "x"}, lambda: fetch("inner"))
        try:
            paid = await once("charge", pay)
        except StepOutcomeUnknown:
            paid = 0
        return [*found, text, inner, paid]

    return agent


def test_a_program_survives_a_crash_at_every_point():
    report = Runner(max_pairs=10).crash_everywhere_sync(define_agent(), "hi")
    assert report.result.output == ["A", "B", "C", "hello", "INNER", 5]
    assert [one.name for one in report.result.steps] == [
        *("fetch", "fetch", "fetch"),
        *("model call", "search", "fetch", "charge"),
    ]
    assert report.point_count == 26
    assert report.process_count == 0
    assert str(report).startswith("'agent' survived 26 single crashes and ")


def test_a_program_with_threads_survives_a_crash_at_every_point():
    @program
    def saving() -> list[str]:
        with ThreadPoolExecutor(3) as pool:
            return sorted(pool.map(save, "abc"))

    assert Runner(max_pairs=5).crash_everywhere_sync(saving).result.output == ["aa", "bb", "cc"]


def test_a_workflow_and_its_programs_survive_a_crash_at_every_point():
    agent = define_agent()

    @workflow
    async def parent() -> int:
        return len(await agent("hi"))

    report = Runner(max_pairs=5, replay_processes=0).crash_everywhere_sync(parent)
    assert report.result.output == 6


def test_calls_with_changing_content_are_found():
    numbers = itertools.count()

    @program
    async def changing() -> None:
        await fetch(f"file {next(numbers)}")

    with pytest.raises(CrashSafetyError, match="its program calls 'fetch' where the journal has call #1"):
        Runner().crash_everywhere_sync(changing)


def test_a_result_that_depends_on_how_often_the_program_ran_is_found():
    starts: list[int] = []

    @program
    async def counting() -> int:
        starts.append(1)
        await fetch("a")
        return len(starts)

    runner = Runner()
    runner.before_each(starts.clear)
    with pytest.raises(CrashSafetyError, match="returned 1; this one returned 2"):
        runner.crash_everywhere_sync(counting)


def test_a_crash_a_mock_and_an_approval_of_a_program():
    agent = define_agent()

    @program
    async def asking() -> list[Any]:
        return [await ask("Go?"), *await agent("hi")]

    runner = Runner()
    runner.mock("search", return_value="found")
    runner.mock("model call", return_value="hi there")
    runner.answer_approval("Go?", True)
    runner.simulate_crash_after("search")
    crashed = runner.run_sync(asking)
    assert crashed.has_crashed
    assert runner.resume_sync(crashed.run_id).output == [True, "A", "B", "C", "hi there", "found", 5]
