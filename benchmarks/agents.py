"""Benchmarks of agents, with a model that answers at once: a turn is a model call and the tool call it requests."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks import sqlite_baseline
from benchmarks.sqlite_benchmarks import (
    ROOT,
    Measurement,
    build_environment,
    get_database_size,
    median,
    median_ratio,
    open_runtime,
    time_in_processes,
)
from holdfast import Client, Runtime


async def measure_concurrent(folder: Path, rounds: int) -> list[Measurement]:
    """50 agents of 100 turns: in one process, and 25 in each of two that share the file. Each process is a new one."""
    count, turns = 50, 100
    alone: list[float] = []
    shared: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        theirs.append(sqlite_baseline.measure_commit_rate(folder / "bare.db"))
        for process_count, found in ((1, alone), (2, shared)):
            url = f"sqlite:///{folder / f'{process_count}-{number}.db'}"
            arguments = (url, str(count // process_count), str(turns))
            took = time_in_processes("benchmarks.agent_workloads", [arguments] * process_count)
            found.append(count * turns / took)
    bares = f"bare {median(theirs):,.0f} commits/s: "
    return [
        Measurement(
            f"{count} agents x {turns} turns, {where}",
            median(ours),
            "turns/s",
            f"{bares}{median_ratio(ours, theirs):.2f}",
            ">= 300",
            median(ours) >= 300,
        )
        for where, ours in (("one process", alone), ("two processes", shared))
    ]


async def measure_long(folder: Path, rounds: int) -> list[Measurement]:
    """Ten times 100 turns and once 1,000, there and back, so that drift cancels out."""
    from benchmarks import agent_workloads

    short, lengthy = agent_workloads.make_agent(100), agent_workloads.make_agent(1000)
    lines: list[Measurement] = []
    async with open_runtime(folder):
        await agent_workloads.time_concurrent_runs(short, 1)
        for agents, what in ((1, "one agent"), (5, "five agents")):
            ratios: list[float] = []
            rates: list[float] = []
            for _ in range(rounds):
                spent = {short: 0.0, lengthy: 0.0}
                for one in (short, lengthy, lengthy, short):
                    for _ in range(10 if one is short else 1):
                        spent[one] += await agent_workloads.time_concurrent_runs(one, agents)
                ratios.append(spent[short] / spent[lengthy])
                rates.append(2 * 1000 * agents / spent[lengthy])
            ratio = median(ratios)
            beside = f"{ratio:.2f} of ten times 100 turns"
            lines.append(Measurement(f"{what} x 1,000 turns", median(rates), "turns/s", beside, ">= 0.7", ratio >= 0.7))
        lines.append(await _measure_last_tenth(3000, rounds))
    return lines


async def _measure_last_tenth(turns: int, rounds: int) -> Measurement:
    """Within one run: the last tenth of its turns compared with the first."""
    from benchmarks import agent_workloads

    tenth = turns // 10
    rates: list[float] = []
    ratios: list[float] = []
    measured = agent_workloads.make_agent(turns)
    model: Any = measured.model_chain.models[0]
    for _ in range(rounds):
        at: dict[int, float] = {}
        model.on_turn = lambda turn, at=at: at.__setitem__(turn, time.perf_counter())
        await agent_workloads.time_concurrent_runs(measured, 1)
        first, last = at[tenth + 1] - at[1], at[turns] - at[turns - tenth]
        rates.append(tenth / last)
        ratios.append(first / last)
    what = f"one agent, the last {tenth} of {turns:,} turns"
    return Measurement(what, median(rates), "turns/s", f"{median(ratios):.2f} of its first {tenth}")


async def measure_streaming(folder: Path, rounds: int) -> list[Measurement]:
    """The cost of streaming answers in 20 parts, with the parts written in the background and a reader following along.

    The parts themselves cost nothing here. The work of the model library to assemble an answer from parts is measured
    separately.
    """
    from benchmarks import agent_workloads

    turns = 20
    whole = agent_workloads.make_streaming_agent(turns, stream=False)
    streamed = agent_workloads.make_streaming_agent(turns, stream=True)
    assembled = agent_workloads.make_streaming_agent(turns, stream=True, is_assembled=True)
    lines: list[Measurement] = []
    async with open_runtime(folder) as opened, Client(opened.url) as client:

        async def read(run_id: str) -> None:
            async for _ in client.events(run_id):
                pass

        async def followed(agents: int) -> float:
            started = time.perf_counter()
            handles = [await streamed.options(new=True).start(f"Number {number}") for number in range(agents)]
            reading = [asyncio.create_task(read(handle.run_id)) for handle in handles[:10]]
            await asyncio.gather(*[handle.result() for handle in handles])
            spent = time.perf_counter() - started
            await asyncio.gather(*reading)
            return spent

        for one in (whole, streamed, assembled):
            await agent_workloads.time_concurrent_runs(one, 1)
        for agents, what in ((1, "one agent"), (50, "50 agents")):
            ways: dict[str, Callable[[], Awaitable[float]]] = {
                "whole": partial(agent_workloads.time_concurrent_runs, whole, agents),
                "streamed": partial(agent_workloads.time_concurrent_runs, streamed, agents),
                f"streamed to {min(agents, 10)} readers": partial(followed, agents),
                "put together by the library": partial(agent_workloads.time_concurrent_runs, assembled, agents),
            }
            spent: dict[str, list[float]] = {way: [] for way in ways}
            # Many short ones in turn: what else the machine does meanwhile meets all of them.
            for number in range(8 * rounds):
                for way, take in list(ways.items())[:: 1 if number % 2 else -1]:
                    gc.collect()  # else one way cleans up after another
                    spent[way].append(await take())
            for way in list(ways)[1:]:
                rate = median([turns * agents / seconds for seconds in spent[way]])
                kept = median_ratio(spent["whole"], spent[way])
                aim = (">= 0.9", kept >= 0.9) if way == "streamed" else ("", None)
                lines.append(Measurement(f"{what}, {way}", rate, "turns/s", f"{kept:.2f} of whole answers", *aim))
    return lines


async def measure_budget(folder: Path, rounds: int) -> list[Measurement]:
    """The cost of the reservation before each model call: one more commit, shared with concurrent runs."""
    from benchmarks import agent_workloads

    without, within = agent_workloads.make_agent(100), agent_workloads.make_agent(100, "within-budget", has_budget=True)
    lines: list[Measurement] = []
    async with open_runtime(folder):
        await agent_workloads.time_concurrent_runs(without, 1)
        for agents, what in ((1, "one agent"), (50, "50 agents")):
            rates: list[float] = []
            more: list[float] = []
            for _ in range(rounds):
                spent = {without: 0.0, within: 0.0}
                for one in (without, within, within, without):
                    spent[one] += await agent_workloads.time_concurrent_runs(one, agents)
                rates.append(2 * 100 * agents / spent[within])
                more.append(spent[within] / spent[without])
            beside = f"{median(more):.2f} times the time of none"
            lines.append(Measurement(f"{what} x 100 turns, with a budget", median(rates), "turns/s", beside))
    return lines


async def measure_size(folder: Path, rounds: int) -> list[Measurement]:
    """Bytes per turn in the file, compared with the messages as the model library serializes them."""
    del rounds
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    from benchmarks import agent_workloads
    from holdfast import Agent

    turns, agents = 100, 20
    lines: list[Measurement] = []
    for what, words, used in (("200-byte", 0, agent_workloads.look_up), ("2-KB", 2000, agent_workloads.look_up_large)):
        path = folder / f"size-{words}.db"
        measured = Agent(
            agent_workloads.InstantModel(turns, words), name=f"sized-{words}", tools=[used], max_turns=turns
        ).options(new=True)
        async with Runtime(f"sqlite:///{path}"):
            messages = (await measured.run("First")).messages
        before = get_database_size(path)
        async with Runtime(f"sqlite:///{path}"):
            await asyncio.gather(*[measured.run(f"Number {number}") for number in range(agents)])
        each = (get_database_size(path) - before) / agents / turns
        theirs = len(ModelMessagesTypeAdapter.dump_json(messages)) / turns
        lines.append(
            Measurement(
                f"bytes a turn in the file, {what} results",
                each,
                "bytes",
                f"messages {theirs:,.0f}: {each / theirs:.2f}",
                "< 1.5",
                each < 1.5 * theirs,
            )
        )
    return lines


async def measure_resume(folder: Path, rounds: int) -> list[Measurement]:
    """A new process resumes an agent with 1,000 recorded turns, and calls the model."""
    from benchmarks import agent_workloads

    turns = 1001
    measured = agent_workloads.make_agent(turns, "resumed")
    model: Any = measured.model_chain.models[0]
    times: list[float] = []
    for number in range(rounds):
        url = f"sqlite:///{folder / f'resume-{number}.db'}"
        reached = asyncio.Event()

        def hold(turn: int, reached: asyncio.Event = reached) -> Awaitable[Any] | None:
            if turn < turns:
                return None
            reached.set()
            return asyncio.Event().wait()

        model.on_turn = hold
        async with Runtime(url):
            handle = await measured.start("Go")
            await reached.wait()
        asked: list[float] = []
        model.on_turn = lambda turn, asked=asked: asked.append(time.perf_counter())
        started = time.perf_counter()
        async with Runtime(url) as opened:
            await opened.store_provider.wait_for_end(handle.run_id)
        assert len(asked) == 1
        times.append(asked[0] - started)
    beside = "opening the store to the next model call"
    return [Measurement("resume of an agent with 1,000 turns", median(times) * 1e3, "ms", beside)]


async def measure_first_call(folder: Path, rounds: int) -> list[Measurement]:
    """A fresh process: until the first request reaches the model's provider, all imports included."""
    arrived: list[float] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        arrived.append(time.perf_counter())
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "none"}

    async def timed(*arguments: str) -> float:
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, env={**build_environment(), **known}
        )
        await process.wait()
        return time.perf_counter() - started

    ours: list[float] = []
    theirs: list[float] = []
    async with server:
        for number in range(rounds):
            theirs.append(await timed("-c", "import pydantic_ai.models.openai"))
            arrived.clear()
            started = time.perf_counter()
            url = f"sqlite:///{folder / f'first-{number}.db'}"
            await timed("-m", "benchmarks.first_call", url, "openai:gpt-4o-mini")
            ours.append(arrived[0] - started)
    beside = f"importing the model library and openai: {median(theirs) * 1e3:,.0f} ms"
    return [Measurement("a fresh process until its first model call", median(ours) * 1e3, "ms", beside)]


async def measure_first_record(folder: Path, rounds: int) -> list[Measurement]:
    """A new process: from the provider's last byte until the answer's record is durable. A process that dies in
    between pays for the answer twice."""
    sys.path.insert(0, str(ROOT / "tests" / "agents"))
    from provider_server import ProviderServer

    script = {
        "clerk": [
            {"text": "Let me look.", "calls": [{"tool": "look_up", "arguments": {"number": 7}}]},
            {"text": "It is {results}."},
        ]
    }
    answered: list[float] = []

    class Timed(ProviderServer):
        def note(self, **entry: Any) -> None:
            super().note(**entry)
            if "answered" in entry:
                answered.append(time.time())

    async def gap(server: ProviderServer, *arguments: str) -> float:
        answered.clear()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.first_record", f"sqlite:///{folder / f'{uuid4()}.db'}", *arguments),
            cwd=ROOT,
            env={**build_environment(), **server.address.environment},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return float(out.split()[0]) - answered[0]

    lines: list[Measurement] = []
    with Timed(script, folder / "ledger") as server:
        for model in ("openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"):
            for how in ("stream", "whole"):
                gaps = [await gap(server, model, how) for _ in range(rounds)]
                lazy = [await gap(server, model, how, "lazy") for _ in range(rounds)]
                beside = (
                    f"longest {max(gaps) * 1e3:,.0f} ms; loaded when the answer comes: {median(lazy) * 1e3:,.0f} ms"
                )
                what = f"last byte to record, first answer of a process, {model.partition(':')[0]}, {how}"
                lines.append(Measurement(what, median(gaps) * 1e3, "ms", beside))
    return lines


async def measure_model_library(folder: Path, rounds: int) -> list[Measurement]:
    """For comparison: the model library's own loop, which records nothing, with the same model and tool."""
    del folder
    from pydantic_ai import Agent, UsageLimits

    from benchmarks import agent_workloads

    async def look_up(number: int) -> str:
        return f"{number:0{agent_workloads.RESULT_CHARS}d}"

    lines: list[Measurement] = []
    for turns in (100, 1000):
        agent = Agent(agent_workloads.InstantModel(turns), tools=[look_up])
        rates: list[float] = []
        for _ in range(min(rounds, 3)):
            started = time.perf_counter()
            await agent.run("Go", usage_limits=UsageLimits(request_limit=None))
            rates.append(turns / (time.perf_counter() - started))
        lines.append(
            Measurement(f"pydantic-ai's own loop, {turns:,} turns", median(rates), "turns/s", "nothing is kept")
        )
    return lines


BENCHMARKS: dict[str, Callable[[Path, int], Awaitable[list[Measurement]]]] = {
    "agents": measure_concurrent,
    "agents-long": measure_long,
    "agents-stream": measure_streaming,
    "agents-budget": measure_budget,
    "agents-size": measure_size,
    "agents-resume": measure_resume,
    "agents-library": measure_model_library,
}
if find_spec("openai") is not None:
    BENCHMARKS["agents-first-call"] = measure_first_call
    BENCHMARKS["agents-first-record"] = measure_first_record
