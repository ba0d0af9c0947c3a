"""The shell tool: allowed programs only, never a shell, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic_ai.messages import ToolCallPart

from holdfast import Agent, DefinitionError, Effect, ModelRetry, Runtime, Tool
from holdfast.errors import ApprovalRequired, InvalidToolArguments
from holdfast.testing import Runner, ScriptedModel, call
from holdfast.tools import program_runner, shell_tool
from waits import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.skipif(sys.platform == "win32", reason="refused there")]


def make(cwd: Path, *allow: str | Sequence[str], **options: Any) -> Tool:
    return shell_tool(allow=allow, cwd=cwd, **{"requires_approval": False, **options})


async def run(tool: Tool, *argv: str) -> str:
    """The result for the model, or the exception of the call."""
    step = tool.make_call(ToolCallPart("shell", {"argv": list(argv)}, "call_1"), "the-agent", None)
    return await step.step.function(*step.args, **step.kwargs)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def number_in(file: Path) -> int:
    """The number that a program has written there, or 0 as long as it has not."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.endswith("\n") else 0


# What is allowed


async def test_it_needs_an_approval_and_is_not_repeated_by_default(tmp_path: Path):
    asking = shell_tool(allow=["touch"], cwd=tmp_path)
    assert (asking.name, asking.definition.effect) == ("shell", Effect.ONCE)
    with pytest.raises(ApprovalRequired):
        await run(asking, "touch", "file")
    assert not list(tmp_path.iterdir())
    assert make(tmp_path, "ls", effect="read").definition.effect is Effect.READ


async def test_what_a_person_approves_is_run_once(tmp_path: Path):
    model = ScriptedModel(
        [call("shell", argv=["rm", "log"]), call("shell", argv=["sh", "-c", "echo run >> log"]), "done"]
    )
    agent = Agent(model, name="shell_tool_asker", tools=[shell_tool(allow=["sh"], cwd=tmp_path)])
    runner = Runner()
    result = await runner.run(agent, "Go.")
    assert (result.status, list(tmp_path.iterdir())) == ("waiting", [])
    [asked] = result.approvals  # none for a command that is not allowed
    assert asked.arguments == {"argv": ["sh", "-c", "echo run >> log"]}
    result = await runner.approve(result.run_id)
    assert (result.status, (tmp_path / "log").read_text()) == ("completed", "run\n")


async def test_the_model_sees_the_allowed_commands(tmp_path: Path):
    tool = make(tmp_path, "ls", ["python", "-m", "pytest"], timeout=7)
    assert "\n- ls …\n- python -m pytest …" in tool.description
    assert "after 7 seconds" in tool.description
    assert tool.schema["properties"]["argv"]["description"].startswith("the program")


async def test_a_program_gets_its_arguments_as_they_are(tmp_path: Path):
    tricky = ["$HOME", "; touch made", "`touch made`", "$(touch made)", "| cat", "> made", "*", "a  b", "", "\n", "&&"]
    shown = make(tmp_path, "printf")
    assert await run(shown, "printf", "<%s>", *tricky) == "[exit code 0]\n" + "".join(f"<{one}>" for one in tricky)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argv",
    [
        ["rm", "-rf", "x"],
        ["/bin/ls"],
        ["./ls"],
        ["../ls"],
        ["LS"],
        ["ls "],
        [" ls"],
        ["ls -l"],
        ["ls;rm"],
        [""],
        ["echo"],
        ["echo", "hello there"],
        ["echo", "hello;", "there"],
        ["echo", "-n", "hello"],
        ["env", "ls"],
        ["sh", "-c", "ls"],
    ],
)
async def test_what_is_not_allowed_is_not_run(tmp_path: Path, argv: list[str]):
    tool = make(tmp_path, "ls", ["echo", "hello"])
    with pytest.raises(ModelRetry, match=r"was not run: it is not allowed[^§]*- ls …\n- echo hello …"):
        await run(tool, *argv)


async def test_a_list_allows_what_begins_so(tmp_path: Path):
    tool = make(tmp_path, ["echo", "hello"])
    assert await run(tool, "echo", "hello") == "[exit code 0]\nhello\n"
    assert await run(tool, "echo", "hello", "there") == "[exit code 0]\nhello there\n"


async def test_an_option_that_runs_a_command_is_as_allowed_as_its_program(tmp_path: Path):
    """Not a sandbox: an allowed program can do anything. ``env`` here represents ``git -c core.pager=...``."""
    (tmp_path / "file").touch()
    assert await run(make(tmp_path, "env"), "env", "ls") == "[exit code 0]\nfile\n"


@pytest.mark.parametrize("argv", [[], ["ls", "a\0b"], ["ls", "x" * 100_001]])
async def test_an_invalid_command_is_refused(tmp_path: Path, argv: list[str]):
    with pytest.raises((InvalidToolArguments, ModelRetry)):
        await run(make(tmp_path, "ls"), *argv)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow": []}, "allow is empty"),
        ({"allow": "git"}, "a list of programs"),
        ({"allow": ["git status"]}, r"write \['git', 'status'\]"),
        ({"allow": ["./run"]}, "relative path"),
        ({"allow": ["bin/run"]}, "relative path"),
        ({"allow": [[]]}, "neither"),
        ({"allow": [""]}, "neither"),
        ({"allow": [["ls", 1]]}, "neither"),
        ({"env": "HOME"}, "a list of names"),
        ({"env": ["PATH"]}, "can be passed on"),
        ({"env": ["A=b"]}, "can be passed on"),
        ({"timeout": 0}, "longer than zero"),
        ({"max_output": 0}, "at least 1"),
        ({"cwd": "/"}, "choose a smaller cwd"),
    ],
)
async def test_a_tool_that_cannot_work_is_refused_when_it_is_made(tmp_path: Path, options: Any, words: str):
    with pytest.raises(DefinitionError, match=words):
        shell_tool(**{"allow": ["ls"], "cwd": tmp_path, **options})


# Which program it is


async def test_nothing_in_the_working_folder_replaces_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    for place in (work / "ls", work / "bin" / "ls"):
        place.write_text("#!/bin/sh\necho mine\n")
        place.chmod(0o755)
    (tmp_path / "link").symlink_to(work / "bin")
    system = os.environ["PATH"]
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "bin", str(work), f"{tmp_path}/link", system]))
    monkeypatch.chdir(work)
    tool = make(work, "ls", "env")
    assert await run(tool, "ls") == "[exit code 0]\nbin\nls\n"
    path = next(line for line in (await run(tool, "env")).split("\n") if line.startswith("PATH="))
    assert not any(str(tmp_path) in one or not one.startswith("/") for one in path[5:].split(":"))


async def test_a_program_is_located_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = make(tmp_path, "ls")
    fake = tmp_path / "elsewhere" / "ls"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho mine\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    assert await run(tool, "ls") == "[exit code 0]\nelsewhere\n"


async def test_an_absolute_path_is_used_as_it_is(tmp_path: Path):
    tool = make(tmp_path, [sys.executable, "-c"])
    assert await run(tool, sys.executable, "-c", "print(6 * 7)") == "[exit code 0]\n42\n"


async def test_a_program_that_is_not_installed_is_reported(tmp_path: Path):
    with pytest.raises(ModelRetry, match="allowed, but not installed here"):
        await run(make(tmp_path, "no-such-program"), "no-such-program")
    with pytest.raises(ModelRetry, match="was not started: No such file"):
        await run(make(tmp_path, "/no/such/program"), "/no/such/program")


async def test_a_removed_folder_is_reported_without_its_name(tmp_path: Path):
    work = tmp_path / "work"
    with pytest.raises(ModelRetry, match="was not started") as told:
        await run(make(work, "ls"), "ls")
    assert str(tmp_path) not in str(told.value)


# What it gets


async def test_nothing_of_the_environment_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.delenv("MISSING", raising=False)
    told = await run(make(tmp_path, "env", env=["WANTED", "MISSING"]), "env")
    names = {line.partition("=")[0] for line in told.split("\n")[1:] if line}
    assert names == {"PATH", "LANG", "WANTED"}
    assert "WANTED=yes" in told


async def test_it_runs_in_its_folder_and_has_no_input(tmp_path: Path):
    tool = make(tmp_path, "pwd", "cat")
    assert await run(tool, "pwd") == f"[exit code 0]\n{tmp_path.resolve()}\n"
    assert await run(tool, "cat") == "[exit code 0, no output]"


async def test_no_other_open_file_is_inherited(tmp_path: Path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files cannot be listed here")
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        told = await run(make(tmp_path, "ls"), "ls", "/proc/self/fd")
    assert told.split("\n")[1:4] == ["0", "1", "2"]
    assert len(told.split()) <= 7, told  # ls has its own, on the folder that it lists


# How it ends


async def test_the_model_gets_the_exit_code_and_both_kinds_of_output(tmp_path: Path):
    tool = make(tmp_path, "sh")
    assert await run(tool, "sh", "-c", "echo out; echo err >&2; exit 3") == "[exit code 3]\nout\nerr\n"
    assert await run(tool, "sh", "-c", "kill -SEGV $$") == "[ended by signal SIGSEGV, no output]"
    assert await run(tool, "sh", "-c", r"printf '\377\0ok'") == "[exit code 0]\n\ufffd\ufffdok"


async def test_the_model_gets_the_beginning_and_the_end_of_long_output(tmp_path: Path):
    tool = make(tmp_path, "seq", max_output=20)
    assert await run(tool, "seq", "1000") == (
        "[exit code 0]\n1\n2\n3\n4\n5\n\n[... 3873 bytes left out ...]\n\n999\n1000\n"
    )
    assert await run(tool, "seq", "9") == "[exit code 0]\n1\n2\n3\n4\n5\n6\n7\n8\n9\n"


async def test_a_program_that_writes_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_runner, "MAX_WRITTEN_BYTES", 1024 * 1024)
    told = await run(make(tmp_path, "yes", max_output=100), "yes")
    assert told.startswith("[stopped because it wrote too much (1,")
    assert len(told) < 300


async def test_a_time_out_ends_it_with_all_that_it_started(tmp_path: Path):
    """The program waits for a child, which waits for one of its own."""
    script = "echo begun; sh -c 'sleep 600 & echo $! > pid; wait' & wait"
    for timeout in (0.5, 2, 8, 30):  # on a busy machine it takes a while until all have started
        told = await run(make(tmp_path, "sh", timeout=timeout), "sh", "-c", script)
        if number_in(tmp_path / "pid"):
            break
    assert told == f"[stopped, with all that it had started, after {timeout:g} seconds]\nbegun\n"
    await wait_until(lambda: not lives(number_in(tmp_path / "pid")))


async def test_a_child_that_is_left_behind_does_not_block_and_is_killed(tmp_path: Path):
    told = await run(make(tmp_path, "sh", timeout=60), "sh", "-c", "sleep 600 & echo $! > pid; echo done")
    assert told == "[exit code 0]\ndone\n"
    await wait_until(lambda: not lives(number_in(tmp_path / "pid")))


async def test_cancelling_ends_it_with_all_that_it_started(tmp_path: Path):
    tool = make(tmp_path, "sh", timeout=600)
    task = asyncio.create_task(run(tool, "sh", "-c", "sleep 600 & echo $! > pid; wait"))
    await wait_until(lambda: number_in(tmp_path / "pid"))
    assert lives(number_in(tmp_path / "pid"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not lives(number_in(tmp_path / "pid")))


async def test_cancelling_the_run_ends_it_with_all_that_it_started(tmp_path: Path):
    model = ScriptedModel([call("shell", argv=["sh", "-c", "sleep 600 & echo $! > pid; wait"]), "done"])
    agent = Agent(model, name="shell_tool_canceller", tools=[make(tmp_path, "sh", timeout=600)])
    async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
        handle = await agent.start("Go.")
        await wait_until(lambda: number_in(tmp_path / "pid"))
        await handle.cancel()
        await wait_until(lambda: not lives(number_in(tmp_path / "pid")))


async def test_nothing_stays_open(tmp_path: Path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files cannot be counted here")
    tool = make(tmp_path, "ls", "/no/such/program")
    await run(tool, "ls")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run(tool, "ls")
        with pytest.raises(ModelRetry):
            await run(tool, "/no/such/program")
    assert len(os.listdir("/proc/self/fd")) == before
