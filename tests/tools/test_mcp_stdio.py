"""Tools of an MCP server that is a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp_agents import ToolFeedback, call_tools, start
from mcp_ledger import happened, is_alive, ledger
from mcp_servers import PIXEL, SECRET, command
from pydantic_ai.messages import BinaryContent

from holdfast import Agent, DefinitionError, RunFailed, Runtime, tool
from holdfast.errors import McpError, McpUnavailable, UsageError
from holdfast.testing import ScriptedModel, call
from holdfast.tools import McpServer, mcp_stdio
from holdfast.tools.mcp import server as serving
from holdfast.tools.mcp.connection import Connection
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(folder: Path) -> AsyncIterator[Runtime]:
    async with Runtime(f"sqlite:///{folder}/runs.db") as runtime:
        yield runtime


@pytest.fixture(scope="module")
def server(folder: Path, runtime: Runtime) -> McpServer:
    """One that most tests share, so that it is started only once."""
    return mcp_stdio(*command(folder), name="shared", env={"TOKEN": SECRET}, cwd=folder)


BROKEN = "import os, sys; sys.exit(f'No module \\'x\\' {os.environ[\"TOKEN\"]}')"


def connection_of(server: McpServer) -> Connection:
    return server._connections[asyncio.get_running_loop()]


async def records_of(runtime: Runtime, run_id: str) -> list[Any]:
    return list((await runtime.store_provider.read_journal(run_id))[1].records)


async def test_the_tools_are_listed_page_by_page_in_a_recorded_step_and_offered_to_the_model(
    server: McpServer, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    handle, _ = await start(server)
    await handle.result()
    first = (await records_of(runtime, handle.run_id))[0]
    assert (first.name, first.ok) == ("tools of shared", True)
    listed = {one["name"]: one for one in json.loads(first.payload)}
    assert list(listed) == "add look put book fail refuse show papers tell_all environment".split()  # noqa: SIM905
    assert {name: one["metadata"]["effect"] for name, one in listed.items() if name in ("add", "put", "book")} == {
        "add": "read",
        "put": "idempotent",
        "book": "once",
    }
    assert listed["add"]["schema"]["required"] == ["a", "b"]
    assert len(listed["look"]["description"]) == serving.MAX_DESCRIPTION_CHARS
    assert listed["tell_all"]["metadata"]["name"] == "tell all"
    assert "'tell.all' is left out: another one is called 'tell_all' already" in caplog.text
    assert "'odd' is left out: its schema is none" in caplog.text


async def test_results_are_recorded_as_plain_data_that_a_model_can_be_shown(server: McpServer) -> None:
    added, looked, shown, papers, all_told = await call_tools(
        server, call("add", a=1, b=2), call("look", name="x"), call("show"), call("papers"), call("tell_all")
    )
    assert added == ToolFeedback("success", {"sum": 3})  # and not the text beside it
    assert looked == ToolFeedback("success", "look: x")
    [words, picture] = shown.content
    assert words == "Look:"
    assert isinstance(picture, BinaryContent)
    assert (picture.base64, picture.media_type) == (PIXEL, "image/png")
    assert papers.content == [
        {"resource": "paper://1", "text": "one"},
        {"resource": "film://1", "left out": "resource of type video/mp4, 36 bytes"},
        {"resource": "paper://2", "name": "two"},
        {"left out": "audio of type audio/wav, 36 bytes"},
    ]
    assert all_told.content.endswith("[cut: the result has 500,000 characters, of which these are the first 100,000]")
    assert len(all_told.content) < 101_000


async def test_failures_are_described_to_the_model(server: McpServer, folder: Path) -> None:
    before = len(happened(folder, "add"))
    failed, refused, misfit, unreadable = await call_tools(
        server, call("fail", why="full"), call("refuse"), call("add", a="x", b=-1, c=3), call("add", "[1]")
    )
    assert failed == ToolFeedback("failed", "The tool 'fail' failed: No: full")
    assert refused.outcome == "failed"
    assert refused.content == (
        "The tool 'refuse' failed: McpError: the MCP server 'shared' says: It does not do that. Your token is ***."
    )
    assert misfit == ToolFeedback(
        "retried",
        "The arguments do not fit the tool 'add', which was not called:\n"
        "- a should be of type integer; it was 'x'\n"
        "- b should be 0 or more; it was -1\n"
        "- c is not a parameter\n"
        "Its parameters are: a, b. Correct the arguments.",
    )
    assert unreadable.outcome == "retried"
    assert "they are no JSON object" in unreadable.content
    assert len(happened(folder, "add")) == before


async def test_the_environment_of_a_server_is_small(server: McpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    [told] = await call_tools(server, call("environment"))
    assert told.content["TOKEN"] == SECRET
    assert "OPENAI_API_KEY" not in told.content
    assert SECRET not in repr(server)


async def test_calls_at_once_share_one_process_and_do_not_wait_for_each_other(server: McpServer, folder: Path) -> None:
    starts = len(happened(folder, "start"))
    (folder / "slow.hold").touch()
    slow, told_slowly = await start(server, call("look", name="slow"))
    await wait_until(
        lambda: {"look": "slow"} in [{one["tool"]: one["name"]} for one in ledger(folder)], "the slow call"
    )
    assert await call_tools(server, call("look", name="a"), call("look", name="b")) == [
        ToolFeedback("success", "look: a"),
        ToolFeedback("success", "look: b"),
    ]
    (folder / "slow.hold").unlink()
    await slow.result()
    assert told_slowly == [ToolFeedback("success", "look: slow")]
    assert len(happened(folder, "start")) == max(starts, 1)


async def test_a_cancelled_run_cancels_its_call_and_keeps_the_connection_open(server: McpServer, folder: Path) -> None:
    (folder / "long.hold").touch()
    (folder / "other.hold").touch()
    cancelled, _ = await start(server, call("look", name="long"))
    other, told = await start(server, call("look", name="other"))
    names = lambda: {one["name"] for one in happened(folder, "look")}  # noqa: E731
    await wait_until(lambda: names() >= {"long", "other"}, "both calls")
    await cancelled.cancel()
    stopped = {"tool": "look", "name": "long", "cancelled": True}
    await wait_until(lambda: any(stopped.items() <= one.items() for one in ledger(folder)), "the server was told")
    (folder / "other.hold").unlink()
    await other.result()
    assert told == [ToolFeedback("success", "look: other")]


async def test_a_call_that_takes_too_long_is_given_up_with_feedback(folder: Path, runtime: Runtime) -> None:
    hasty = mcp_stdio(*command(folder), name="hasty", timeout=0.2)
    await call_tools(hasty)  # it has started
    (folder / "late.hold").touch()
    [told] = await call_tools(hasty, call("look", name="late"))
    assert told.outcome == "failed"
    assert "took longer than its time-out of 0.2 seconds, and was given up" in told.content
    assert len([one for one in happened(folder, "look") if one["name"] == "late"]) == 1  # it is not made again
    assert await call_tools(hasty, call("look", name="now")) == [ToolFeedback("success", "look: now")]


async def test_a_killed_server_is_restarted_and_repeatable_calls_are_repeated(
    folder: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.server.BACKOFF_S", 0.01)
    mortal = mcp_stdio(*command(folder), name="mortal", retries=2)
    held = ["killed-look", "killed-put", "killed-book"]
    for name in held:
        (folder / f"{name}.hold").touch()
    tools = ("look", "put", "book")
    handle, told = await start(mortal, *(call(tool, name=name) for tool, name in zip(tools, held, strict=True)))

    def reached() -> list[dict[str, Any]]:
        return [one for one in ledger(folder) if one["name"] in held]

    await wait_until(lambda: len(reached()) == 3, "all three calls")
    [pid] = {one["pid"] for one in reached()}
    os.kill(pid, signal.SIGSTOP)  # so that it cannot answer when nothing holds it any more
    for name in held:
        (folder / f"{name}.hold").unlink()
    os.kill(pid, signal.SIGKILL)
    assert (await handle.result()).output == "done"
    assert told[:2] == [ToolFeedback("success", "look: killed-look"), ToolFeedback("success", "put: killed-put")]
    assert told[2].outcome == "failed"
    assert "it may or may not have happened. Check first, before you call it again." in told[2].content
    again = [(one["tool"], one["pid"] == pid) for one in reached()]
    assert sorted(again) == [("book", True), ("look", False), ("look", True), ("put", False), ("put", True)]
    await wait_until(lambda: not is_alive(pid), "the dead process is gone")


async def test_a_server_that_has_died_between_two_calls_is_started_again_even_for_a_tool_that_runs_once(
    folder: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.server.BACKOFF_S", 0.01)
    dying = mcp_stdio(*command(folder), name="dying")
    await call_tools(dying, call("book", name="before"))
    pid = happened(folder, "book")[-1]["pid"]
    live = connection_of(dying)._current
    assert live is not None
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: live.has_ended, "the end is noticed")
    assert await call_tools(dying, call("book", name="after")) == [ToolFeedback("success", "book: after")]
    assert happened(folder, "book")[-1]["pid"] != pid


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("./no-such-program", "the MCP server 'absent' could not be started: its command is './no-such-program'"),
        (BROKEN, "ended before it could be asked anything; the last that it wrote to its stderr: No module 'x' ***"),
        ("import sys; sys.stdin.read()", "gave no answer within 0.7 s of its start"),
    ],
    ids=["absent", "broken", "silent"],
)
async def test_a_server_that_does_not_start_fails_the_run_with_a_reason(
    folder: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.server.BACKOFF_S", 0.01)
    monkeypatch.setattr(serving, "OPEN_TIMEOUT_S", 0.7 if "stdin" in program else 60.0)
    started = (program, SECRET) if program.startswith(".") else (sys.executable, "-c", program)
    absent = mcp_stdio(*started, name="absent", env={"TOKEN": SECRET}, timeout=0.5, retries=1)
    handle, _ = await start(absent)
    with pytest.raises(RunFailed, match="absent") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, McpUnavailable)
    assert words in str(failed.value)
    [record] = await records_of(runtime, handle.run_id)
    assert (record.name, record.attempts) == ("tools of absent", 2)
    assert SECRET not in record.payload.decode()


async def test_a_server_that_writes_nonsense_to_its_stdout_is_understood_and_its_stderr_is_logged(
    folder: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.tools.mcp")
    noisy = mcp_stdio(*command(folder, "noisy"), name="noisy", env={"TOKEN": SECRET})
    assert await call_tools(noisy, call("add", a=1, b=1)) == [ToolFeedback("success", {"sum": 2})]
    # A thread reads it, which may be later than the answer on stdout.
    [line] = await wait_until(lambda: [one for one in caplog.records if one.name == "holdfast.tools.mcp.noisy"])
    assert line.getMessage() == "on stderr: ***"


async def test_names_get_a_prefix_and_tools_and_effects_can_be_chosen(
    server: McpServer, folder: Path, runtime: Runtime
) -> None:
    some = mcp_stdio(
        *command(folder),
        name="some",
        prefix="s_",
        only=["add", "book", "tell all"],
        effect={"book": "read"},
        requires_approval={"add": True},
    )
    some._connections = server._connections  # which is open
    handle, _ = await start(some)
    await handle.result()
    listed = json.loads((await records_of(runtime, handle.run_id))[0].payload)
    assert [one["name"] for one in listed] == ["s_add", "s_book", "s_tell_all"]
    tools = {one["name"]: some.make_tool(serving.ListedTool(**one)) for one in listed}
    assert {name: tool.definition.effect.value for name, tool in tools.items()} == {
        "s_add": "read",
        "s_book": "read",
        "s_tell_all": "read",
    }
    assert {name for name, tool in tools.items() if tool.can_require_approval} == {"s_add"}


async def test_a_name_that_the_server_does_not_have_is_reported(server: McpServer, folder: Path) -> None:
    wrong = mcp_stdio(*command(folder), name="wrong", effect={"bock": "read"})
    wrong._connections = server._connections  # which is open
    handle, _ = await start(wrong)
    with pytest.raises(RunFailed, match="has no tool 'bock', which `effect=` names; it has: add, book") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, McpError)


async def test_a_tool_with_the_name_of_another_is_refused_with_advice(server: McpServer) -> None:
    @tool
    async def add() -> str:
        """Adds nothing."""
        return ""

    agent = Agent(ScriptedModel(["done"]), name="mcp-two-adds", tools=[add, server])
    with pytest.raises(RunFailed, match="give the toolset a prefix"):
        await agent.run("go")


async def test_an_approved_call_is_made_with_the_approved_arguments(server: McpServer, folder: Path) -> None:
    careful = mcp_stdio(*command(folder), name="careful", requires_approval={"book": True})
    careful._connections = server._connections
    handle, told = await start(careful, call("book", name="suite"), call("add", a=2, b=2))
    for _ in range(1000):
        if asked := await handle.approvals():
            break
        await asyncio.sleep(0.01)
    assert not [one for one in happened(folder, "book") if one["name"] == "suite"]
    await handle.approve(asked[0].id)
    assert (await handle.result()).output == "done"
    assert told == [ToolFeedback("success", "book: suite"), ToolFeedback("success", {"sum": 4})]


async def test_the_connection_is_closed_when_idle_and_when_the_engine_closes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = mcp_stdio(*command(folder), name="brief")
    async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
        with monkeypatch.context() as patched:
            patched.setattr("holdfast.tools.mcp.connection.IDLE_TIMEOUT_S", 0.3)
            await call_tools(brief, call("look", name="idle"))
        pid = happened(folder, "look")[-1]["pid"]
        await wait_until(lambda: not is_alive(pid), "an idle server ends")
        await call_tools(brief, call("look", name="once more"))
        pid = happened(folder, "look")[-1]["pid"]
        assert is_alive(pid)
    assert not is_alive(pid)
    assert not connection_of(brief)._owners


async def test_without_the_package_the_error_says_what_to_install(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    handle, _ = await start(mcp_stdio("program", name="packageless"))
    with pytest.raises(RunFailed, match=r"pip install 'holdfast-agents\[mcp\]'") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, UsageError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a b"}, "has a name of letters"),
        ({"name": "x", "retries": -1}, "retries=-1"),
        ({"name": "x", "timeout": 0}, "timeout 0 is not a duration"),
        ({"name": "x", "only": "add"}, "a collection of names"),
        ({"name": "x", "prefix": "a b"}, "a model could not call it"),
        ({"name": "x", "effect": "twice"}, "is none of read, idempotent, once"),
    ],
)
async def test_wrong_options_are_refused_when_a_server_is_defined(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        mcp_stdio("program", **options)


async def test_a_command_must_be_given() -> None:
    with pytest.raises(DefinitionError, match="a command is a program and its arguments"):
        mcp_stdio(name="x")
