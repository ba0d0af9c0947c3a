"""A client: runs by name, without their code."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import (
    Client,
    InputError,
    RetryRefused,
    RunConflict,
    RunEnded,
    RunFailed,
    RunNotFound,
    Runtime,
    UnknownWorkflow,
    UsageError,
    step,
    wait_for_signal,
    workflow,
)

URL = "sqlite:///runs.db"
healed = False


@dataclass
class Invoice:
    number: int
    due: datetime


@step
async def bill(number: int, due: datetime) -> Invoice:
    return Invoice(number, due)


@workflow(id="invoice-{number}")
async def invoicing(number: int, due: datetime) -> Invoice:
    return await bill(number, due)


@workflow
async def asking(question: str) -> str:
    return f"{question} {await wait_for_signal('answer', type=str)}"


@step
async def fragile() -> str:
    if not healed:
        raise ConnectionError("down")
    return "up"


@workflow(id="mending")
async def mending() -> str:
    return await fragile()


@asynccontextmanager
async def worker_and_client() -> AsyncIterator[Client]:
    async with Runtime(URL), Client(URL) as client:
        yield client


DUE = datetime(2030, 1, 2, tzinfo=UTC)


def test_a_client_runs_a_workflow_by_name_and_gets_plain_data():
    async def main() -> None:
        async with worker_and_client() as client:
            assert await client.run("invoicing", 7, due=DUE) == {"number": 7, "due": "2030-01-02T00:00:00Z"}
            info = await client.get("invoice-7")
            assert (info.workflow, info.state, info.output["number"]) == ("invoicing", "completed", 7)

    asyncio.run(main())


def test_a_client_and_the_program_itself_mean_the_same_run_by_the_same_id():
    async def main() -> None:
        async with worker_and_client() as client:
            assert await invoicing(7, DUE) == Invoice(7, DUE)
            assert (await client.start("invoicing", 7, DUE)).run_id == "invoice-7"
            with pytest.raises(RunConflict):
                await client.start("invoicing", 7, datetime(2031, 1, 1, tzinfo=UTC))

    asyncio.run(main())


def test_arguments_of_the_wrong_type_are_refused_before_anything_starts():
    async def main() -> None:
        async with worker_and_client() as client:
            with pytest.raises(InputError, match="input 'number' must be an integer, not a string"):
                await client.run("invoicing", "seven", DUE)
            assert await client.list() == []

    asyncio.run(main())


def test_unchecked_arguments_of_the_wrong_type_fail_the_run_and_not_the_worker():
    async def main() -> None:
        async with worker_and_client() as client:
            store = await client.connections.store()
            # As an earlier release announces it.
            await store.announce_workflows([replace((await store.get_workflow_specs())["invoicing"], inputs_schema="")])
            with pytest.raises(RunFailed, match="number"):
                await client.run("invoicing", "seven", DUE)
            assert (await client.run("invoicing", 8, DUE))["number"] == 8

    asyncio.run(main())


def test_arguments_that_do_not_exist_are_refused_before_anything_starts():
    async def main() -> None:
        async with worker_and_client() as client:
            with pytest.raises(InputError, match="colour"):
                await client.start("invoicing", 7, DUE, colour="red")
            assert await client.list() == []

    asyncio.run(main())


def test_an_unknown_workflow_is_an_error_with_a_suggestion():
    async def main() -> None:
        async with worker_and_client() as client:
            with pytest.raises(UnknownWorkflow, match="did you mean 'invoicing'"):
                await client.start("invoicin", 7)

    asyncio.run(main())


def test_an_unknown_run_is_an_error():
    async def main() -> None:
        async with worker_and_client() as client:
            for call in (client.get("nope"), client.wait("nope"), client.signal("nope", "x"), client.retry("nope")):
                with pytest.raises(RunNotFound, match="nope"):
                    await call

    asyncio.run(main())


def test_signals_are_sent_once_per_id_and_not_to_ended_runs():
    async def main() -> None:
        async with worker_and_client() as client:
            handle = await client.options(id="q").start("asking", "ready?")
            assert await client.signal("q", "answer", "yes", id="click") is True
            assert await client.signal("q", "answer", "yes", id="click") is False
            assert await client.wait("q", timeout="10 s") == "ready? yes"
            assert await handle.result() == "ready? yes"
            with pytest.raises(RunEnded, match="has completed"):
                await client.signal("q", "answer", "too late")

    asyncio.run(main())


def test_runs_are_listed_newest_first_and_filtered():
    async def main() -> None:
        async with worker_and_client() as client:
            for number in range(3):
                await client.options(tags=["even"] if number % 2 == 0 else []).run("invoicing", number, DUE)
            await client.start("asking", "?")
            assert [run.id for run in await client.list(workflow="invoicing")] == [
                "invoice-2",
                "invoice-1",
                "invoice-0",
            ]
            assert [run.id for run in await client.list(tag="even")] == ["invoice-2", "invoice-0"]
            assert len(await client.list(state="completed", limit=2)) == 2
            assert [run.workflow for run in await client.list(state=["pending", "running", "waiting"])] == ["asking"]
            with pytest.raises(UsageError, match="pending, running"):
                await client.list(state="done")

    asyncio.run(main())


def test_a_retried_run_continues_from_its_failed_step():
    async def main() -> None:
        global healed
        async with worker_and_client() as client:
            with pytest.raises(RunFailed, match="ConnectionError: down"):
                await mending()
            with pytest.raises(RunFailed):
                await client.start("mending")
            healed = True
            await client.retry("mending")
            assert await client.wait("mending", timeout=10) == "up"
            with pytest.raises(RetryRefused, match="completed"):
                await client.retry("mending")

    asyncio.run(main())


def test_a_client_can_be_used_from_several_loops_and_without_one():
    async def serve(ready: asyncio.Event) -> None:
        async with Runtime(URL) as runtime:
            ready.set()
            await runtime.run_worker(stop=stop)

    client = Client(URL)
    stop = asyncio.Event()

    async def main(number: int) -> int:
        nonlocal stop
        stop, ready = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(serve(ready))
        await ready.wait()
        result = await client.run("invoicing", number, DUE)
        stop.set()
        await serving
        return result["number"]

    assert [asyncio.run(main(number)) for number in (1, 2)] == [1, 2]
    assert client.wait_sync("invoice-1")["number"] == 1
    assert client.get_sync("invoice-2").state == "completed"
    assert client.start_sync("invoicing", 2, DUE) == "invoice-2"


def test_a_client_imports_none_of_the_code_that_runs_workflows(tmp_path: Path):
    code = (
        "import sys; from holdfast import Client; Client('sqlite:///runs.db');"
        "print([m for m in sys.modules if m.startswith(('holdfast.engine', 'holdfast.authoring', 'holdfast.worker'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def _wait_too_short() -> None:
    async with Client(URL) as client:
        run = await client.send("nobody-listens", 1)
        with pytest.raises(TimeoutError, match=rf"run '{run.run_id}' has not ended within 0.01 s.*`holdfast show"):
            await client.wait(run.run_id, timeout=0.01)
        with pytest.raises(TimeoutError, match="has not ended within 0 s"):
            await run.result(-1)


def test_a_timeout_says_which_run_and_where_to_look() -> None:
    asyncio.run(_wait_too_short())


def test_a_client_shows_its_url_and_its_arguments() -> None:
    assert repr(Client("sqlite:///runs.db?namespace=acme")) == "<Client of sqlite:///runs.db?namespace=acme>"
    assert list(inspect.signature(Client).parameters)[:3] == ["url", "namespace", "max_value"]
    with pytest.raises(UsageError, match="the URL is a text, such as"):
        Client(Path("runs.db"))  # type: ignore[arg-type]
