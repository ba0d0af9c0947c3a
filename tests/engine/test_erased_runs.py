"""Runs that have recorded a person's data everywhere are erased: no byte of it is left, and all can still be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import postgres_server
import psycopg
import pytest
import pytest_asyncio
from live_server import running_live_server
from psycopg import sql
from test_encrypted_runs import WORD, declare, declare_failing, on_disk

from holdfast import Client, RunErased, RunFailed, Runtime, ValueErased, memory, step, wait_for_signal, workflow
from holdfast.errors import RunNotFound, UsageError
from holdfast.services.erasure import EraseReport
from waits import wait_until

pytestmark = pytest.mark.asyncio

TAG = "user:42"


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runs.db'}"
        return
    with postgres_server.database() as url:
        yield url


def read_everything(url: str) -> bytes:
    """Every byte of the database: of SQLite's files, and of all rows of PostgreSQL's tables."""
    if url.startswith("sqlite"):
        return on_disk(Path(url.removeprefix("sqlite:///")).parent).lower()
    found: list[str] = []
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall()
        for (table,) in tables:
            name = sql.Identifier("holdfast", table)
            query = sql.SQL("SELECT encode(convert_to(t::text, 'UTF8'), 'escape') FROM {} t").format(name)
            found += [row[0] for row in connection.execute(query)]
            for (column,) in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND atttypid = 'bytea'::regtype",
                [f"holdfast.{table}"],
            ).fetchall():
                query = sql.SQL("SELECT {} FROM {} WHERE {} IS NOT NULL")
                rows = connection.execute(query.format(sql.Identifier(column), name, sql.Identifier(column)))
                found += [bytes(row[0]).decode("utf-8", "replace") for row in rows]
    return "\n".join(found).lower().encode()


async def run_everything(url: str) -> None:
    """A run with data in every place, an agent, and a failed run; and memories."""
    everything, musician = declare()
    async with Runtime(url) as runtime, Client(url) as client:
        handle = await runtime.start(everything.options(tags=[TAG, "eu"]), WORD * 20_000)
        await client.signal("do-everything", "go", f"{WORD} now")
        await answer_long(client)
        await handle.result()
        await (await runtime.start(musician.options(tags=[TAG]), f"Play the {WORD}")).result()
        with pytest.raises(RunFailed):
            await (await runtime.start(declare_failing().options(tags=[TAG]), WORD)).result()
        await memory.put("other", "k", "flute")


async def answer_long(client: Client) -> None:
    for say in ("approve", "deny", "choose"):
        [asked] = await wait_until(lambda: client.approvals("do-everything"))
        if say == "deny":
            await client.deny(asked.id, reason=f"never the {WORD}")
        else:
            await client.approve(asked.id, asked.choices[0] if asked.choices else True)
        await wait_until(lambda id=asked.id: _is_closed(client, id))


async def _is_closed(client: Client, id: str) -> bool:
    return all(one.id != id for one in await client.approvals("do-everything"))


async def test_nothing_of_erased_runs_and_memories_is_left_in_the_database(url: str):
    await run_everything(url)
    word = WORD.encode()
    assert word in read_everything(url)
    async with Client(url) as client:
        planned = await client.erase(tag=TAG, memories=["things", "m"], dry_run=True)
        assert word in read_everything(url)
        report = await client.erase(tag=TAG, memories=["things", "m"], by="ann")
        assert (planned.run_count, planned.record_count) == (report.run_count, report.record_count)
        assert report.run_count == 5  # with the two runs of ``tune``
        assert (report.approval_count, report.memory_count, report.refused) == (3, 2, {})
        assert word not in read_everything(url)
        assert await client.memory.get("other", "k") == "flute"
        assert {one.action for one in await client.audit()} == {"erase_run"}
        assert await client.erase(tag=TAG) == EraseReport()
    assert word not in read_everything(url)


async def test_erased_runs_are_listed_and_shown_and_say_that_they_were_erased(url: str):
    await run_everything(url)
    async with Client(url) as client:
        before = await client.describe("do-everything", full=True)
        await client.erase(tag=TAG, memories=["things", "m"])
        after = await client.describe("do-everything", full=True)
        assert [(e.number, e.kind, e.name, e.ok, e.recorded_at) for e in after.journal] == [
            (e.number, e.kind, e.name, e.ok, e.recorded_at) for e in before.journal
        ]
        assert (after.inputs, after.output) == ("<erased>", "<erased>")
        assert {str(e.output) for e in after.journal if e.ok and e.output is not None} == {"<erased>"}
        assert all("erased" in e.error.message for e in after.journal if e.error is not None)
        assert {approval.question for approval in after.approvals} == {"<erased>"}
        assert {approval.answered_by for approval in after.approvals} == {a.answered_by for a in before.approvals}
        runs = await client.list()
        assert len(runs) == 5
        for run in runs:
            events = [event async for event in client.events(run.id, follow=False)]
            assert events[-1].kind == "ended"
            assert WORD not in str(events)
            report = await client.describe(run.id)
            conversation = await client.conversation(run.id)
            exported = await client.export(run.id)
            assert exported.loads(exported.dumps()) == exported
            assert WORD not in f"{run}{report}{conversation}{exported}{await client.tree(run.id)}"
        [agent_run] = [run for run in runs if run.workflow == "sealed-musician"]
        assert (await client.usage(agent_run.id)).calls == 3
        failing = await client.describe("failing-for-good")
        assert failing.state == "failed"
        assert failing.error is not None
        assert "erased" in failing.error.message


async def test_an_erased_run_is_not_continued_and_its_id_stays_taken(url: str):
    calls: list[str] = []

    @step
    async def work(word: str) -> int:
        calls.append(word)
        return len(calls)

    @workflow(id="counting")
    async def counting(word: str) -> int:
        return await work(word)

    async with Runtime(url) as runtime, Client(url) as client:
        handle = await runtime.start(counting, WORD)
        assert await client.wait("counting") == 1
        with pytest.raises(RunFailed):
            await (await runtime.start(declare_failing(), WORD)).result()
        await client.erase(["counting", "failing-for-good"])
        for refused in (
            client.retry("failing-for-good"),
            client.retry("failing-for-good", run_again=True),
            client.settle("counting", "work", 5),
            client.fork("counting"),
            client.fork("counting", at="work"),
            runtime.start(counting, WORD),
        ):
            with pytest.raises(RunErased, match="was erased, so it cannot be retried, settled, forked, or joined"):
                await refused
        with pytest.raises(ValueErased, match="What run 'counting' returned was erased"):
            await client.wait("counting")
        with pytest.raises(ValueErased, match="What run 'counting' returned was erased"):
            await handle.result()
        with pytest.raises(RunFailed, match="the error was erased"):
            await client.wait("failing-for-good")
        with pytest.raises(RunNotFound):
            await client.erase(["counting", "nowhere"])
        with pytest.raises(UsageError, match="say what"):
            await client.erase()
    assert calls == [WORD]


async def test_a_run_that_waits_is_refused_and_erased_once_it_is_cancelled(url: str):
    @workflow(id="waiting")
    async def waiting(word: str) -> str:
        return await wait_for_signal("never")

    async with Runtime(url) as runtime, Client(url) as client:
        handle = await runtime.start(waiting.options(tags=[TAG]), WORD)
        report = await client.erase(tag=TAG)
        assert report.run_count == 0
        assert report.refused == {"waiting": "it, a run that it started, or a fork of it has not ended"}
        await handle.cancel()
        await wait_until(lambda: _has_ended(client))
        assert (await client.erase(tag=TAG)).run_count == 1
    assert WORD.encode() not in read_everything(url)


async def _has_ended(client: Client) -> bool:
    return (await client.get("waiting")).state == "cancelled"


async def test_a_server_erases_and_logs_it(url: str):
    async with Runtime(url) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.start(declare_failing().options(tags=[TAG]), WORD)).result()
    async with running_live_server(url) as server, Client(server.address) as client:
        assert (await client.erase(tag=TAG, dry_run=True)).dry_run
        assert (await client.erase(tag=TAG, by="ann")).run_count == 1
        with pytest.raises(RunErased):
            await client.retry("failing-for-good")
        with pytest.raises(RunFailed, match="the error was erased"):
            await client.wait("failing-for-good")
        with pytest.raises(UsageError, match="say what"):
            await client.erase()
        entries = [(entry.action, entry.target) for entry in await client.audit()]
        assert ("erase_run", "failing-for-good") in entries
        assert "erase_data" in {action for action, _ in entries}
        assert TAG not in str(entries)
    assert WORD.encode() not in read_everything(url)
