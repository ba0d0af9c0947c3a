"""``holdfast mcp``, as a real process, used through the MCP client of the package ``mcp``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from approvals_project import make_office, run_until_asked
from cli_project import SOURCE, Project, seed
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from waits import wait_until

READING = ["list_runs", "get_run", "get_conversation", "get_value", "list_approvals", "get_usage"]
OPERATING = ["answer_approval", "retry_run", "cancel_run", "pause_run", "resume_run", "fork_run"]
MAX_RESULT_CHARS = 60_000

LONG_APP = """
from holdfast import step, workflow

@step
async def one(number: int) -> str:
    return f"{number}:" + "ä" * 3000

@workflow(id="long")
async def long() -> int:
    for number in range(230):
        await one(number)
    return 230

@step
async def leak(token: str) -> dict[str, object]:
    return {"password": "pa55-word-1", "nested": {"api_key": ["k-list-2"]}, "url": "https://bob:hunter22@db/x"}

@workflow(id="leaky")
async def leaky(password: str, note: str) -> object:
    await leak("tok-3")
    raise ValueError("refused: Bearer abc.def.0123456789, key sk-abcdefgh12345678 \\ud800")
"""


class Assistant:
    """Calls tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """The data that a tool returns."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        assert not result.is_error, content.text
        assert json.loads(content.text) == result.structured_content
        assert len(content.text) < MAX_RESULT_CHARS
        return result.structured_content

    async def fail(self, tool: str, **arguments: Any) -> str:
        """The error that a tool returns."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        assert result.is_error, content.text
        return content.text

    async def list_tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}


@asynccontextmanager
async def assistant(
    project: Project, *options: str, url: str | None = None, mode: str = "auto", **env: str
) -> AsyncGenerator[Assistant]:
    """An assistant that starts ``holdfast mcp``; ``legacy``: it knows only older versions of the protocol."""
    environment = {"PYTHONPATH": SOURCE, "HOLDFAST_URL": project.url if url is None else url, **env}
    params = StdioServerParameters(
        command=sys.executable, args=["-m", "holdfast.cli", "mcp", *options], env=environment, cwd=project.folder
    )
    with (project.folder / "mcp.log").open("w") as log:
        async with Client(stdio_client(params, errlog=log), mode=mode) as client:
            yield Assistant(client)


@contextmanager
def worker(project: Project, target: str) -> Iterator[None]:
    process = project.worker(target)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@contextmanager
def server(project: Project) -> Iterator[str]:
    """``holdfast serve``, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0"],
        cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def create_key(project: Project, *scopes: str) -> str:
    options = [word for scope in scopes for word in ("--scope", scope)]
    return project("keys", "create", f"key-{scopes[0]}", *options, "--quiet").out.strip()


async def wait_for_state(ask: Assistant, run_id: str, state: str) -> Any:
    async def get() -> Any:
        run = await ask("get_run", run_id=run_id)
        return run if run["state"] == state else None

    return await wait_until(get, f"run {run_id} is {state}")


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_runs_are_listed_and_inspected(seeded: Project, mode: str):
    async with assistant(seeded, mode=mode) as ask:
        page = await ask("list_runs", limit=2)
        rest = await ask("list_runs", limit=2, before=page["next_before"])
        assert [run["id"] for run in [*page["runs"], *rest["runs"]]] == ["order-7", "etl-bad", "etl-acme"]
        assert "next_before" not in rest
        assert page["runs"][0]["waits_for"] == "signal 'approved'"

        [failed] = (await ask("list_runs", state=["failed", "dead"], workflow="etl", query="BAD"))["runs"]
        assert failed["error"].startswith("builtins.ValueError: [red]no such[/red] customer")
        assert failed["tags"] == ["nightly"]

        run = await ask("get_run", run_id="etl-bad")
        assert run["summary"].startswith("Failed after")
        assert run["error"].startswith("ValueError: [red]no such[/red] customer")
        assert [step["tool"] for step in run["next_steps"]] == ["retry_run", "fork_run"]
        steps = [step for step in run["steps"] if step["kind"] == "step"]
        assert sorted((step["number"], step["name"], step["outcome"], step.get("attempts", 1)) for step in steps) == [
            (1, "extract", "ok", 1), (2, "load", "ok", 2), (3, "load", "ok", 2), (4, "load", "ok", 2),
            (5, "check", "failed", 1),
        ]  # fmt: skip
        error = (await ask("get_value", run_id="etl-bad", part="error"))["text"]
        assert "in etl" in json.loads(error)["traceback"]

        assert (await ask("get_usage"))["total"]["model_calls"] == 0
        assert (await ask("list_approvals"))["approvals"] == []
        assert (await ask("get_conversation", run_id="etl-acme"))["total"] == 0


@pytest.mark.asyncio
async def test_tools_say_what_they_take_return_and_do(seeded: Project):
    async with assistant(seeded) as ask:
        assert "untrusted data" in (ask.client.instructions or "")
        assert ask.client.server_info.name == "holdfast"
        tools = await ask.list_tools()
        assert list(tools) == [*READING, *OPERATING, "signal_run"]
        for name, tool in tools.items():
            assert tool.description
            assert tool.output_schema["type"] == "object"
            assert tool.annotations.read_only_hint is (name in READING)
            for argument, schema in tool.input_schema["properties"].items():
                assert "description" in schema or argument == "decision", f"{name}.{argument}"
        destructive = [name for name, tool in tools.items() if tool.annotations.destructive_hint]
        assert destructive == ["answer_approval", "retry_run", "cancel_run"]
        repeatable = [name for name, tool in tools.items() if tool.annotations.idempotent_hint]
        assert set(tools) - set(repeatable) == {"retry_run", "fork_run", "signal_run"}


@pytest.mark.asyncio
async def test_a_failed_run_is_retried_and_forked(seeded: Project):
    async with assistant(seeded) as ask:
        fork = await ask("fork_run", run_id="etl-bad", at="check", output_json="null", new_id="etl-fork")
        assert fork["run"]["forked_from"] == "etl-bad"
        assert "no live worker" in fork["run"]["stalled"]
        again = await ask("fork_run", run_id="etl-bad", at=5)
        assert again["run"]["id"].startswith("etl-bad-fork-")
        with worker(seeded, "app:etl"):
            # The fork took the check for passed; in the other one it runs again, and fails again.
            assert (await wait_for_state(ask, "etl-fork", "completed"))["output"] == {"sum": 6}
            await wait_for_state(ask, again["run"]["id"], "failed")
            (seeded.folder / "mended").touch()
            assert (await ask("retry_run", run_id="etl-bad"))["changed"] is True
            run = await wait_for_state(ask, "etl-bad", "completed")
            assert run["output"] == {"sum": 6}
            assert run["record_count"] == 6  # the steps that had succeeded did not run again


@pytest.mark.asyncio
async def test_runs_are_signalled_paused_and_cancelled(seeded: Project):
    async with assistant(seeded) as ask:
        assert (await ask("pause_run", run_id="order-7"))["run"]["is_paused"] is True
        assert (await ask("pause_run", run_id="order-7"))["changed"] is False
        assert (await ask("resume_run", run_id="order-7"))["changed"] is True
        signal_once = {"run_id": "order-7", "name": "approved", "value": {"by": "ann"}, "id": "s-1"}
        assert (await ask("signal_run", **signal_once))["changed"] is True
        assert (await ask("signal_run", **signal_once))["changed"] is False
        with worker(seeded, "app:order"):
            assert (await wait_for_state(ask, "order-7", "completed"))["output"] == {"approved": {"by": "ann"}}
        assert "RunEnded: " in await ask.fail("cancel_run", run_id="order-7")
        seeded.start("order", 8)
        assert (await ask("cancel_run", run_id="order-8"))["run"]["state"] == "cancelled"


@pytest.mark.asyncio
async def test_approvals_are_answered_until_the_run_has_finished(tmp_path: Path):
    office = make_office(tmp_path / "office")
    async with assistant(office, "--as", "ann") as ask:
        first, mail = (await ask("list_approvals"))["approvals"]
        assert first["question"].startswith("Ship vase?")
        assert (mail["tool"], mail["reason"]) == ("send_mail", "it leaves the house")
        assert mail["arguments"]["to"] == "customer@example.org"
        assert (await ask("get_run", run_id="shipping-vase"))["next_steps"][0]["tool"] == "answer_approval"

        answered = await ask("answer_approval", approval_id=first["id"], decision="approve", reason="wrapped well")
        assert answered["changed"] is True
        assert answered["approval"]["answered_by"] == "ann"
        assert answered["approval"]["answer"] == "yes (wrapped well)"
        repeated = await ask("answer_approval", approval_id=first["id"], decision="approve", reason="wrapped well")
        assert repeated["changed"] is False
        closed = await ask.fail("answer_approval", approval_id=first["id"], decision="deny")
        assert closed.startswith(f"ApprovalClosed: approval {first['id']}")

        run_until_asked(office, "shipping-vase", 2)
        [how] = (await ask("list_approvals", run_id="shipping-vase"))["approvals"]
        wrong = await ask.fail("answer_approval", approval_id=how["id"], decision="approve", value="by mule")
        assert "choose one of by sea, by air" in wrong
        await ask("answer_approval", approval_id=how["id"], decision="approve", value="by sea")

        run_until_asked(office, "shipping-vase", 3)
        [what] = (await ask("list_approvals", run_id="shipping-vase"))["approvals"]
        assert what["form"]["required"] == ["weight"]
        assert "is not of type 'number'" in await ask.fail(
            "answer_approval", approval_id=what["id"], decision="approve", value={"weight": "heavy"}
        )
        await ask("answer_approval", approval_id=what["id"], decision="approve", value={"weight": 2.5})
        edited = {"to": "boss@example.org", "text": "hello"}
        await ask("answer_approval", approval_id=mail["id"], decision="approve", arguments=edited)

        run_until_asked(office, "shipping-vase", 99)
        run_until_asked(office, "mailing", 99)
        assert (await ask("get_run", run_id="shipping-vase"))["output"] == "shipped by sea, 2.5 kg"
        assert (await ask("get_run", run_id="mailing"))["output"] == edited
        assert (await ask("list_approvals"))["approvals"] == []
        closed_ones = (await ask("list_approvals", include_closed=True))["approvals"]
        assert {one["answered_by"] for one in closed_ones} == {"ann"}


@pytest.mark.asyncio
async def test_a_conversation_is_read_in_pages(lab: Project):
    async with assistant(lab, "--read-only") as ask:
        last = await ask("get_conversation", run_id="research-1", limit=3)
        first = await ask("get_conversation", run_id="research-1", limit=3, after=0)
        assert last["total"] == last["messages"][-1]["index"] > 6
        assert "next_after" not in last
        seen, after = list(first["messages"]), first.get("next_after")
        while after is not None:
            page = await ask("get_conversation", run_id="research-1", limit=3, after=after)
            seen += page["messages"]
            after = page.get("next_after")
        assert [message["index"] for message in seen] == list(range(1, last["total"] + 1))
        assert seen[0] | {"role": "user", "text": "Explain entanglement to me."} == seen[0]
        [call] = [one for message in seen for one in message.get("tool_calls", []) if one.startswith("write_file")]
        assert json.loads(call.removeprefix("write_file "))["path"] == "out.py"
        assert any(message.get("run_id", "").startswith("research-1:") for message in seen)
        # A text that was cut says how to read all of it.
        cut = next(message for message in seen if "[cut, " in message.get("text", ""))
        assert f'get_value(run_id="research-1", part="message", number={cut["index"]})' in cut["text"]
        whole = await ask("get_value", run_id="research-1", part="message", number=cut["index"])
        assert "The end." in json.loads(whole["text"])["text"]
        run = await ask("get_run", run_id="research-1")
        assert run["is_agent"] is True
        assert run["usage"]["cost_usd"] > 0
        usage = await ask("get_usage", workflow="research")
        assert usage["total"]["model_calls"] == sum(line["usage"]["model_calls"] for line in usage["lines"])


@pytest.mark.asyncio
async def test_large_results_are_bounded_and_can_be_read_in_pages(project: Project):
    (project.folder / "app.py").write_text(LONG_APP)
    seed(project, "import asyncio, app\nasync def main():\n    await app.long()\nasyncio.run(main())\n")
    async with assistant(project) as ask:
        last = await ask("get_run", run_id="long")
        assert [step["record"] for step in last["steps"]] == list(range(210, 230))
        assert last["earlier_steps"] is True
        records, after = [], -1
        while after is not None:
            page = await ask("get_run", run_id="long", limit=50, after=after)
            records += [step["record"] for step in page["steps"]]
            after = page.get("next_after")
        assert records == list(range(230))
        step = page["steps"][-1]
        assert step["output"].startswith("229:ä")
        assert 'all of it: get_value(run_id="long", part="record", number=229)' in step["output"]
        record = await ask("get_value", run_id="long", part="record", number=229)
        assert json.loads(record["text"])["output"] == "229:" + "ä" * 3000


@pytest.mark.asyncio
async def test_a_large_output_is_read_in_pages(relatives: Project):
    async with assistant(relatives) as ask:
        assert 'get_value(run_id="large", part="output")' in (await ask("get_run", run_id="large"))["output"]
        page = await ask("get_value", run_id="large", part="output")
        assert page["total_chars"] == 3_000_000
        assert len(page["text"]) == page["next_offset"] == 20_000
        end = await ask("get_value", run_id="large", part="output", offset=2_999_990)
        assert end == {"text": "y" * 10, "total_chars": 3_000_000}


@pytest.mark.asyncio
async def test_credentials_are_not_shown(project: Project):
    (project.folder / "app.py").write_text(LONG_APP)
    seed(
        project,
        "import asyncio, app\nfrom holdfast import RunFailed\n"
        "async def main():\n"
        "    try:\n"
        "        await app.leaky('pa55-word-0', 'the key is hf-environment-key')\n"
        "    except RunFailed:\n"
        "        pass\n"
        "asyncio.run(main())\n",
    )
    async with assistant(project, SERVICE_TOKEN="hf-environment-key") as ask:
        results = [
            await ask("list_runs"),
            await ask("get_run", run_id="leaky"),
            await ask("get_value", run_id="leaky", part="inputs"),
            await ask("get_value", run_id="leaky", part="error"),
            await ask("get_value", run_id="leaky", part="record", number=0),
            await ask.fail("get_run", run_id="sk-abcdefgh12345678"),
        ]
    texts = [json.dumps(result) for result in results]
    secrets = ("pa55-word", "k-list-2", "hunter22", "tok-3", "abc.def", "sk-abcdefgh", "hf-environment-key")
    assert [(secret, text) for text in texts for secret in secrets if secret in text] == []
    assert json.loads(results[2]["text"]) == {"password": "***", "note": "the key is [key]"}


@pytest.mark.asyncio
async def test_errors_say_what_to_do_and_the_connection_stays(seeded: Project):
    async with assistant(seeded) as ask:
        assert "Did you mean etl-acme" in await ask.fail("get_run", run_id="etl-acm")
        unknown = await ask.fail("cancel_run", run_id="xyz")
        assert unknown.startswith("RunNotFound: there is no run 'xyz'")
        assert unknown.endswith("`list_runs` lists those that are there.")
        assert "RunNotFound" in await ask.fail("list_approvals", run_id="xyz")
        assert (await ask.fail("retry_run", run_id="etl-acme")).startswith("RetryRefused: ")
        assert "no recorded step 'nope'; recorded: 1 (extract)" in await ask.fail(
            "fork_run", run_id="etl-bad", at="nope"
        )
        assert "UnknownApproval: " in await ask.fail("answer_approval", approval_id="zzzz", decision="deny")
        for tool, arguments, says in (
            ("get_run", {}, "run_id: Missing required argument"),
            ("get_run", {"run_id": "etl-acme", "depth": 3}, "depth: Unexpected keyword argument"),
            ("list_runs", {"state": ["ended"]}, "state.0: Input should be 'pending'"),
            ("list_runs", {"limit": 1000}, "limit: Input should be less than or equal to 50"),
            ("list_runs", {"created_after": "2026-11-15T08:30:00"}, "created_after: Input should have timezone info"),
            ("answer_approval", {"approval_id": "zzzz", "decision": "deny", "value": 1}, "a denial has a reason"),
            ("fork_run", {"run_id": "etl-bad", "at": 5, "output_json": "{"}, "output_json is not JSON"),
            ("fork_run", {"run_id": "etl-bad", "output_json": "1"}, "say which with"),
            ("get_value", {"part": "record", "run_id": "etl-bad"}, "needs number"),
            ("get_value", {"part": "record", "run_id": "etl-bad", "number": 99}, "has no record 99"),
            ("get_value", {"part": "message", "run_id": "etl-bad", "number": 1}, "has no message 1"),
            ("get_value", {"part": "approval"}, "needs approval_id"),
            ("get_value", {"part": "inputs"}, "needs run_id"),
            ("drop_database", {}, "there is no tool 'drop_database'; the tools are list_runs, "),
        ):
            error = await ask.fail(tool, **arguments)
            assert error.startswith("UsageError: ")
            assert says in error
        assert len((await ask("list_runs"))["runs"]) == 3


@pytest.mark.asyncio
async def test_a_read_only_server_has_no_tools_that_change_anything(seeded: Project):
    async with assistant(seeded, "--read-only") as ask:
        assert list(await ask.list_tools()) == READING
        for tool in [*OPERATING, "signal_run"]:
            error = await ask.fail(tool, run_id="etl-bad")
            assert error == f"UsageError: {tool} is not available: this server was started with --read-only"
        run = await ask("get_run", run_id="etl-bad")
        assert run["state"] == "failed"
        assert not any("tool" in step for step in run["next_steps"])


@pytest.mark.asyncio
async def test_over_http_the_scopes_of_the_key_decide(tmp_path: Path):
    office = make_office(tmp_path / "office")
    keys = {scope: create_key(office, scope) for scope in ("read", "operate", "submit", "listen:x")}
    with server(office) as url:
        async with assistant(office, url=url, HOLDFAST_API_KEY=keys["read"]) as ask:
            assert list(await ask.list_tools()) == READING
            question = (await ask("list_approvals", run_id="mailing"))["approvals"][0]["id"]
            # The tool is not listed. Whoever calls it all the same is refused by the server.
            refused = await ask.fail("answer_approval", approval_id=question, decision="approve")
            assert refused.startswith("NotAllowed: ")
            assert "It needs the scope 'operate'" in refused
            assert (await ask("get_run", run_id="mailing"))["state"] == "waiting"
            assert "Did you mean mailing?" in await ask.fail("get_run", run_id="mailin")
        async with assistant(office, url=url, HOLDFAST_API_KEY=keys["submit"]) as ask:
            assert list(await ask.list_tools()) == ["signal_run"]
            sent = await ask("signal_run", run_id="mailing", name="hurry")
            assert sent == {"changed": True, "message": "sent signal 'hurry'"}
        async with assistant(office, "--as", "ann", url=url, HOLDFAST_API_KEY=keys["operate"]) as ask:
            assert list(await ask.list_tools()) == [*READING, *OPERATING]
            answered = await ask("answer_approval", approval_id=question, decision="approve")
            # A key cannot pass for a person unnoticed.
            assert answered["approval"]["answered_by"] == "ann (key key-operate)"
            run_until_asked(office, "mailing", 99)
            assert (await ask("get_run", run_id="mailing"))["state"] == "completed"
        async with assistant(office, url=url, HOLDFAST_API_KEY=keys["operate"]) as ask:
            [open_one] = (await ask("list_approvals"))["approvals"]
            denied = await ask("answer_approval", approval_id=open_one["id"], decision="deny", reason="too fragile")
            assert denied["approval"]["answered_by"] == "key-operate"
            run_until_asked(office, "shipping-vase", 99)
            assert (await ask("get_run", run_id="shipping-vase"))["output"] == "kept"
        assert "approve" in office("audit").out
        useless = {
            keys["listen:x"]: "the key has no scope that a tool needs (listen:x)",
            "hf_x": "does not know the caller",
        }
        for key, says in useless.items():
            done = run_mcp(office, "--url", url, HOLDFAST_API_KEY=key)
            assert done.returncode == 1
            assert says in done.stderr
            assert key not in done.stderr


def run_mcp(project: Project, *options: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "mcp", *options],
        cwd=project.folder, env=project.environment(**env), input=input, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip


def test_stdout_has_only_the_protocol_and_the_end_of_stdin_ends_the_command(seeded: Project):
    done = run_mcp(seeded, "--log-level", "debug", input=f"{json.dumps(HELLO)}\nthis is not JSON\n[]\n\xff\n")
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[0]["result"]["serverInfo"]["name"] == "holdfast"
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert f"holdfast mcp: 13 tools for {seeded.url}" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_cleanly_though_stdin_stays_open(seeded: Project):
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "mcp"], cwd=seeded.folder, env=seeded.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{json.dumps(HELLO)}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == HELLO["id"]  # from here on, it waits for another line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        out, err = process.communicate()
    assert out == ""
    assert err.startswith("holdfast mcp: ")
    assert len(err.splitlines()) == 1


def test_what_is_missing_is_said_before_the_protocol_begins(project: Project):
    missing = run_mcp(project)
    assert missing.returncode == 1
    assert "there is no database at" in missing.stderr
    code = "import sys\nsys.modules['mcp'] = None\nfrom holdfast.cli import main\nmain(['mcp'])\n"
    done = project.python("-c", code, is_fresh=True)
    assert done.code == 1
    assert "pip install 'holdfast-agents[mcp]'" in done.err
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        "main(['mcp', '--help'], standalone_mode=False)\nprint('mcp' in sys.modules)\n"
    )
    assert project.python("-c", code, is_fresh=True).out.splitlines()[-1] == "False"
