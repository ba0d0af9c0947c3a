"""Tools of an MCP server that is asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp_agents import ToolFeedback, call_tools, start
from mcp_ledger import happened, ledger
from mcp_servers import SECRET, HttpServer

from holdfast import Agent, DefinitionError, RunFailed, Runtime
from holdfast.errors import McpError, McpUnavailable
from holdfast.testing import ScriptedModel, call
from holdfast.tools import mcp_http
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    async with Runtime(f"sqlite:///{tmp_path_factory.mktemp('runs')}/runs.db") as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def soon(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.server.BACKOFF_S", 0.01)


def journal_of(payloads: list[Any]) -> str:
    return "\n".join((record.payload or b"").decode() for record in payloads)


def calls(body: bytes) -> bool:
    return b'"tools/call"' in body


@pytest.mark.parametrize("legacy", [False, True], ids=["without sessions", "with sessions"])
@pytest.mark.parametrize("as_json", [False, True], ids=["events", "json"])
async def test_a_server_over_http_is_listed_and_called(tmp_path: Path, legacy: bool, as_json: bool) -> None:
    with HttpServer(tmp_path, legacy=legacy, json_response=as_json) as web:
        server = mcp_http(web.url, name="web", headers={"Authorization": f"Bearer {SECRET}"})
        told = await call_tools(server, call("add", a=2, b=3), call("fail", why="closed"), call("add", a="2"))
        assert told[0] == ToolFeedback("success", {"sum": 5})
        assert told[1] == ToolFeedback("failed", "The tool 'fail' failed: No: closed")
        assert "- b is missing" in told[2].content
        assert {headers.get("authorization") for headers in web.requests} == {f"Bearer {SECRET}"}
        assert any("mcp-session-id" in headers for headers in web.requests) is legacy


@pytest.mark.parametrize("is_async", [False, True])
async def test_headers_can_be_made_for_every_request(tmp_path: Path, is_async: bool) -> None:
    made: list[str] = []

    def headers() -> dict[str, str]:
        made.append(f"token-{len(made)}")
        return {"X-Token": made[-1]}

    async def headers_async() -> dict[str, str]:
        return headers()

    with HttpServer(tmp_path) as web:
        server = mcp_http(web.url, name="fresh", headers=headers_async if is_async else headers)
        await call_tools(server, call("add", a=1, b=1))
        sent = [headers["x-token"] for headers in web.requests]
        assert len(sent) == len(set(sent)) >= 4
        assert set(sent) <= set(made)


async def test_failing_headers_are_reported_without_the_secret(tmp_path: Path) -> None:
    def headers() -> dict[str, str]:
        raise ConnectionError("the vault is closed")

    with HttpServer(tmp_path) as web:
        handle, _ = await start(mcp_http(web.url, name="vault", headers=headers, retries=1))
        with pytest.raises(RunFailed, match=r"its headers could not be made .ConnectionError: the vault is closed"):
            await handle.result()
        assert not web.requests


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_client_fails_at_once_without_its_secret(tmp_path: Path, runtime: Runtime, status: int) -> None:
    with HttpServer(tmp_path) as web:
        web.before = lambda headers, body: (status, {"WWW-Authenticate": SECRET})
        server = mcp_http(web.url, name="guarded", headers={"Authorization": SECRET})
        handle, _ = await start(server)
        with pytest.raises(RunFailed, match=rf"refuses this client \(HTTP {status}\): check the headers") as failed:
            await handle.result()
        assert type(failed.value.__cause__) is McpError
        [record] = (await runtime.store_provider.read_journal(handle.run_id))[1].records
        assert (record.attempts, SECRET in journal_of([record]), SECRET in repr(server)) == (1, False, False)


async def test_an_agent_may_have_several_servers_whose_tools_are_listed_at_the_same_time(
    tmp_path: Path, runtime: Runtime
) -> None:
    (tmp_path / "other").mkdir()
    with HttpServer(tmp_path) as web, HttpServer(tmp_path / "other") as other:
        servers = [mcp_http(web.url, name="one"), mcp_http(other.url, name="two", prefix="two_")]
        model = ScriptedModel([[call("look", name="a"), call("two_look", name="b")], "done"])
        handle = await Agent(model, name="mcp-several", tools=servers).start("go")
        assert (await handle.result()).output == "done"
        records = (await runtime.store_provider.read_journal(handle.run_id))[1].records
        assert {record.name for record in records if record.position < 2} == {"tools of one", "tools of two"}
        assert [len(happened(folder, "look")) for folder in (tmp_path, tmp_path / "other")] == [1, 1]

        other.before = lambda headers, body: (401, {})
        refused = mcp_http(other.url, name="three", prefix="three_")
        with pytest.raises(RunFailed, match="the MCP server 'three' refuses this client"):
            await Agent(ScriptedModel(["done"]), name="mcp-several-refused", tools=[servers[0], refused]).run("go")


async def test_a_rejected_call_is_feedback_at_once(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as web:
        web.before = lambda headers, body: (403, {}) if calls(body) else None
        server = mcp_http(web.url, name="half-guarded", headers={"Authorization": SECRET})
        [told] = await call_tools(server, call("look", name="x"))
        assert told.outcome == "failed"
        assert "refuses this client (HTTP 403)" in told.content
        assert sum("tools/call" in headers.get("mcp-method", "") for headers in web.requests) == 1


@pytest.mark.parametrize(
    ("status", "booked"),
    [(503, "it may or may not have happened. Check first"), (429, "book: room")],
)
async def test_repeatable_calls_of_an_overloaded_server_are_repeated(tmp_path: Path, status: int, booked: str) -> None:
    with HttpServer(tmp_path) as web:
        refused: set[bytes] = set()

        def before(headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]] | None:
            tool = next((name for name in (b"look", b"book") if b'"name":"' + name in body.replace(b" ", b"")), b"")
            if not calls(body) or tool in refused:
                return None
            refused.add(tool)
            return status, {"Retry-After": "0"}

        web.before = before
        looked, told = await call_tools(
            mcp_http(web.url, name="busy"), call("look", name="it"), call("book", name="room")
        )
        assert refused == {b"look", b"book"}
        assert looked == ToolFeedback("success", "look: it")
        assert booked in told.content
        assert len(happened(tmp_path, "look")) == 1


async def test_a_server_that_never_recovers_is_given_up_and_the_run_continues(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as web:
        asked: list[bytes] = []

        def before(headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]] | None:
            if not calls(body):
                return None
            asked.append(body)
            return 502, {}

        web.before = before
        [told] = await call_tools(mcp_http(web.url, name="down", retries=2), call("look", name="it"))
        assert told == ToolFeedback(
            "failed", "The tool 'look' failed: McpUnavailable: the MCP server 'down' answered with HTTP 502"
        )
        assert len(asked) == 3


@pytest.mark.parametrize("legacy", [False, True], ids=["without sessions", "with sessions"])
async def test_after_a_restart_between_two_calls_there_is_a_new_session(tmp_path: Path, legacy: bool) -> None:
    with HttpServer(tmp_path, legacy=legacy) as web:
        server = mcp_http(web.url, name="restarted", only=["book"])
        await call_tools(server, call("book", name="first"))
        web.stop()
        web.start()
        # Although it runs once: a session that is not known any more has not been asked anything.
        assert await call_tools(server, call("book", name="second")) == [ToolFeedback("success", "book: second")]
        sessions = {headers.get("mcp-session-id") for headers in web.requests} - {None}
        assert len(sessions) == (2 if legacy else 0)


async def test_repeatable_calls_of_a_server_that_dies_are_repeated(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as web:
        server = mcp_http(web.url, name="cut", retries=100)
        (tmp_path / "cut.hold").touch()
        handle, told = await start(server, call("look", name="cut"), call("book", name="cut"))
        await wait_until(lambda: len(happened(tmp_path, "look") + happened(tmp_path, "book")) == 2, "both calls")
        await asyncio.to_thread(web.stop)
        (tmp_path / "cut.hold").unlink()
        web.start()
        assert (await handle.result()).output == "done"
        assert told[0] == ToolFeedback("success", "look: cut")
        assert "it may or may not have happened. Check first" in told[1].content
        assert len(happened(tmp_path, "book")) == 1


async def test_a_cancelled_run_cancels_its_calls_on_the_server(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as web:
        (tmp_path / "long.hold").touch()
        handle, _ = await start(mcp_http(web.url, name="stopped"), call("look", name="long"))
        await wait_until(lambda: happened(tmp_path, "look"), "the call")
        await handle.cancel()
        await wait_until(lambda: any(line.get("cancelled") for line in ledger(tmp_path)), "the server was told")
        (tmp_path / "long.hold").unlink()


async def test_a_server_that_rejects_a_cancellation_still_gets_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.http_transport.CONNECT_TIMEOUT_S", 0.2)
    with HttpServer(tmp_path, legacy=True) as web:
        (tmp_path / "long.hold").touch()
        server = mcp_http(web.url, name="deaf")
        handle, _ = await start(server, call("look", name="long"))
        await wait_until(lambda: happened(tmp_path, "look"), "the call")
        web.silent = b"notifications/cancelled"
        await handle.cancel()
        assert await call_tools(server, call("look", name="other")) == [ToolFeedback("success", "look: other")]
        (tmp_path / "long.hold").unlink()


async def test_a_server_that_is_not_there_fails_the_run(tmp_path: Path) -> None:
    gone = HttpServer(tmp_path)
    handle, _ = await start(mcp_http(f"{gone.url}?key={SECRET}", name="gone", retries=1))
    with pytest.raises(RunFailed, match="the MCP server 'gone' cannot be reached") as failed:
        await handle.result()
    assert isinstance(failed.value.__cause__, McpUnavailable)
    assert SECRET not in str(failed.value)


async def test_a_wrong_url_is_reported(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as web:
        handle, _ = await start(mcp_http(f"{web.url}/elsewhere", name="elsewhere"))
        with pytest.raises(RunFailed, match="answered with HTTP 404: is the URL the right one"):
            await handle.result()


async def test_a_redirect_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with HttpServer(tmp_path) as web, HttpServer(tmp_path / "other") as other:
        web.before = lambda headers, body: (307, {"Location": other.url})
        handle, _ = await start(mcp_http(web.url, name="redirecting", headers={"Authorization": SECRET}))
        with pytest.raises(RunFailed, match="not followed"):
            await handle.result()
        assert not other.requests


async def test_an_answer_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer(tmp_path, json_response=True) as web:
        server = mcp_http(web.url, name="endless")
        await call_tools(server)
        monkeypatch.setattr("holdfast.tools.mcp.http_transport.MAX_RESPONSE_BYTES", 100_000)
        [told] = await call_tools(server, call("tell_all"))
        assert "gave an answer of more than" in told.content


@pytest.mark.parametrize(
    ("url", "words"),
    [("ftp://x/mcp", "begins with https://"), ("https://ada:pw@x/mcp", "must not have a password"), ("x", "begins")],
)
async def test_wrong_urls_are_refused_when_a_server_is_defined(url: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words) as refused:
        mcp_http(url, name="x")
    assert "pw" not in str(refused.value)


async def test_wrong_headers_are_refused_when_a_server_is_defined() -> None:
    with pytest.raises(DefinitionError, match="headers is a mapping"):
        mcp_http("https://x/mcp", name="x", headers=["Authorization"])  # type: ignore[arg-type]
