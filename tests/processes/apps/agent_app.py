"""A fork server for the agents of ``agent_flows``: a process for each life, without importing the SDKs again.

It reads what to do from its standard input, a line for each life, forks a process for it, and says on its standard
output which process was born for which order, and later how it died. Importing the model library and two SDKs takes
seconds, a fork takes milliseconds. When it forks, it has no other threads, no event loop, and nothing open.

What a process may do: ``program`` starts the run and waits for its result, as a user's script does, ``session`` does so
with two runs of a session; ``library`` calls an agent of Pydantic AI, ``library_stream`` streams it, ``library_iter``
iterates it, and ``library_flow`` is a workflow with two of them;
``peer`` is another worker that finds the run; ``worker`` serves until it is told to stop, and so does ``servant``,
which says when it is ready; ``caller`` starts a run by the name of its agent, and waits; ``reader`` follows the run.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import os
import select
import signal
import socket
import ssl
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, cast

import agent_flows
import genai_prices
import kill_points
import pydantic_ai_flows
import temporal_flows  # noqa: F401 - makes the workflows known
from agent_flows import Script, Who
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest

import holdfast.temporal.engine  # noqa: F401 - so that nobody has to import it after the fork
from holdfast import Agent, AgentResult, Client, RunNotFound, Runtime
from holdfast.errors import StoreNotFound

# The provider is reached without TLS; reading all the certificates would be half of what a short life takes.
ssl.create_default_context = functools.cache(ssl.create_default_context)

RUN = "the-run"
GLANCE = 0.005


def setting(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def patience() -> float:
    """Seconds that a run may take."""
    return float(setting("PATIENCE", "25"))


def print_result(result: AgentResult[Any] | dict[str, Any]) -> dict[str, Any]:
    if isinstance(result, dict):
        return result
    usage = result.usage
    return {"output": result.output, "usage": [usage.calls, usage.input_tokens, usage.output_tokens]}


async def program() -> dict[str, Any]:
    """Start it under its id (or join it), and wait for its result."""
    handle = await chosen().options(id=RUN).start("Go.", deps=deps())
    return print_result(await handle.result(timeout=patience()))


async def session() -> dict[str, Any]:
    """Two runs of one session, one after the other."""
    results: list[AgentResult[str]] = []
    for id, prompt in (("first", "I am Ada."), ("second", "Who am I?")):
        handle = await chosen().options(id=id).start(prompt, session="ada")
        results.append(await handle.result(timeout=patience()))
        await Script.go_on()
    return {"outputs": [result.output for result in results], "messages": len(results[-1].messages)}


async def library() -> dict[str, Any]:
    """Call an agent of Pydantic AI, as its users do; with ``RUN_ID``, under that id."""
    agent = getattr(pydantic_ai_flows, setting("AGENT", "own"))
    given: dict[str, Any] = {"run_id": setting("RUN_ID")} if setting("RUN_ID") else {}
    if setting("DEPS"):
        given["deps"] = deps()
    if setting("BOUND"):
        given["instructions"] = lambda: "Be brief."  # a function, which cannot be recorded
    result = await asyncio.wait_for(agent.run("Go.", **given), patience())
    usage = result.usage
    return {"output": result.output, "usage": [usage.requests, usage.input_tokens, usage.output_tokens]}


async def library_stream() -> dict[str, Any]:
    """Stream the answer of an agent of Pydantic AI, and print each piece when it arrives."""
    agent = getattr(pydantic_ai_flows, setting("AGENT"))
    async with asyncio.timeout(patience()), agent.run_stream("Go.", run_id=RUN) as stream:
        async for text in stream.stream_text(delta=True, debounce_by=None):
            print(json.dumps({"heard": text}), flush=True)
    return {"output": stream.result.output}


async def library_iter() -> dict[str, Any]:
    """Iterate an agent of Pydantic AI, print each node, and stay at the first node of the kind ``STAY_AT``."""
    agent = getattr(pydantic_ai_flows, setting("AGENT"))
    async with asyncio.timeout(patience()), agent.iter("Go.", run_id=RUN) as run:
        async for node in run:
            kind = next(one.__name__ for one in type(node).__mro__ if one.__module__.startswith("pydantic_"))
            print(json.dumps({"node": kind}), flush=True)
            if kind == setting("STAY_AT"):
                await asyncio.sleep(patience())
    return {"output": run.result.output}


async def library_flow() -> dict[str, Any]:
    """Start the workflow, or join it."""
    return await asyncio.wait_for(pydantic_ai_flows.journey(), patience())


async def peer() -> dict[str, Any]:
    """Be there until the run has ended."""
    async with Runtime(), Client() as client:
        return print_result(await client.wait(RUN, timeout=patience()))


async def worker() -> dict[str, Any]:
    """Serve the agent and its family until SIGTERM."""
    await chosen().run_worker(deps=deps(), max_concurrency=int(setting("CONCURRENCY", "1000")))
    return {}


async def servant() -> dict[str, Any]:
    """Serve these agents and workflows until SIGTERM."""
    lease, max_blocked_s = float(setting("LEASE", "10")), float(setting("MAX_BLOCKED", "60"))
    runtime = Runtime(workflows=setting("WORKFLOWS").split(), lease=lease, max_blocked=max_blocked_s)
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker(grace=float(setting("GRACE", "30")))
    return {}


async def caller() -> dict[str, Any]:
    """Knows the agent by its name alone."""
    async with Client() as client:
        handle = await client.options(id=setting("RUN_ID")).start(setting("AGENT"), "Go.")
        print("ready", flush=True)
        return print_result(await handle.result(timeout=patience()))


async def reader() -> dict[str, Any]:
    """Follow the run, and write down each event; go on behind the last one that a reader before has written down."""
    notes = Path(setting("NOTES"))
    known = notes.read_text().splitlines(keepends=True) if notes.exists() else []
    after = json.loads(known[-1])["offset"] if known else None
    async with Client() as client:
        while True:
            try:
                await client.get(RUN)
                break
            except (RunNotFound, StoreNotFound):
                await asyncio.sleep(GLANCE)
        async for event in client.events(RUN, after):
            with notes.open("a") as file:
                file.write(f"{json.dumps(event.to_json())}\n")  # at once, or not at all
    return {}


def deps() -> Who | None:
    return Who(setting("DEPS")) if setting("DEPS") else None


def chosen() -> Agent[str]:
    return cast("Agent[str]", getattr(agent_flows, setting("AGENT", "chief")))


def run_forked(order: dict[str, Any]) -> None:
    """The life of a forked process."""
    for descriptor, path in ((1, order["out"]), (2, order["err"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
    os.chdir(order["cwd"])
    os.environ.update(order["environment"])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    kill_points.arm()
    processes = {
        "program": program,
        "session": session,
        "library": library,
        "library_stream": library_stream,
        "library_iter": library_iter,
        "library_flow": library_flow,
        "peer": peer,
        "worker": worker,
        "servant": servant,
        "caller": caller,
        "reader": reader,
    }
    main = processes[order["main"]]
    print(json.dumps(asyncio.run(main())), flush=True)


def fork(order: dict[str, Any]) -> int:
    assert threading.active_count() == 1, f"a fork must find no other thread: {threading.enumerate()}"
    pid = os.fork()
    if pid:
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        run_forked(order)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def report(**what: Any) -> None:
    os.write(1, f"{json.dumps(what)}\n".encode())


async def warm_up() -> None:
    """Ask each provider once, so that what the SDKs make for their first call is there for every process."""
    for name in ("openai:gpt-4o", "openai-chat:gpt-4o", "anthropic:claude-sonnet-5"):
        response = await model_request(name, [ModelRequest.user_text_prompt("script:warm-up")])
        genai_prices.calc_price(genai_prices.Usage(input_tokens=1), name.partition(":")[2])
        assert response.text == "warm", response


def serve() -> None:
    """Fork for every order; end when there can be no more, and take everybody along."""
    living: set[int] = set()
    pending = b""
    ended, wake = socket.socketpair()
    for one in (ended, wake):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([0, ended], [], [])
        if ended in readable:
            ended.recv(1 << 16)
        if 0 in readable:
            read = os.read(0, 1 << 16)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = fork(order)
                living.add(pid)
                report(order=order["number"], born=pid)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            living.discard(pid)
            report(died=pid, status=os.waitstatus_to_exitcode(status))
    for pid in living:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(warm_up())
    gc.collect()
    gc.freeze()
    report(ready=os.getpid())
    serve()
