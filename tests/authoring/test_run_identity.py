"""Which run a call is: new, joined, or over already."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    InputError,
    RunConflict,
    RunFailed,
    Runtime,
    UsageError,
    current_run,
    step,
    wait_for_signal,
    workflow,
)

pytestmark = pytest.mark.asyncio
SRC = Path(__file__).parents[2] / "src"


async def test_the_template_makes_the_id(url: str):
    @workflow(id="etl-{customer}-{year}")
    async def etl(customer: str, year: int = 2026) -> str:
        return current_run().id

    async with Runtime(url):
        assert await etl("acme") == "etl-acme-2026"
        assert await etl("acme", 2027) == "etl-acme-2027"
        assert await etl(year=2025, customer="acme") == "etl-acme-2025"


async def test_an_unfinished_run_is_joined(url: str):
    begun: list[int] = []

    @workflow(id="etl-{customer}")
    async def etl(customer: str) -> str:
        begun.append(1)
        return await wait_for_signal("go")

    async with Runtime(url):
        first, second = await etl.start("acme"), await etl.start("acme")
        assert first.run_id == second.run_id
        await first.signal("go", "done")
        assert [await first.result(), await second.result()] == ["done", "done"]
        assert begun == [1]


async def test_a_completed_run_returns_its_recorded_result(url: str):
    calls: list[int] = []

    @step
    async def load() -> int:
        calls.append(1)
        return len(calls)

    @workflow(id="etl-{customer}")
    async def etl(customer: str) -> int:
        return await load()

    async with Runtime(url):
        assert [await etl("acme"), await etl("acme"), await etl("other")] == [1, 1, 2]


class Broken(Exception):
    pass


async def test_a_failed_run_raises_again_and_names_retry(url: str):
    @workflow(id="etl-{customer}")
    async def etl(customer: str) -> None:
        raise Broken("no such customer")

    async with Runtime(url):
        with pytest.raises(RunFailed) as first:
            await etl("acme")
        assert isinstance(first.value.__cause__, Broken)
        with pytest.raises(RunFailed, match="holdfast retry etl-acme") as second:
            await etl("acme")
        assert second.value.run_id == "etl-acme"
        assert (second.value.state, second.value.error) == ("failed", "Broken: no such customer")


async def test_other_inputs_under_the_same_id_are_a_conflict(url: str):
    @workflow(id="etl-{customer}")
    async def etl(customer: str, full: bool = False) -> str:
        return "done"

    async with Runtime(url):
        await etl("acme")
        with pytest.raises(RunConflict, match="was started with other inputs") as conflict:
            await etl("acme", full=True)
        assert conflict.value.run_id == "etl-acme"
        assert "every input that matters" in str(conflict.value)


async def test_an_id_that_belongs_to_another_workflow_is_a_conflict(url: str):
    @workflow
    async def one() -> str:
        return "one"

    @workflow
    async def two() -> str:
        return "two"

    async with Runtime(url):
        await one.options(id="shared")()
        with pytest.raises(RunConflict, match="belongs to a run of workflow 'one', not 'two'"):
            await two.options(id="shared")()


async def test_without_an_id_every_call_is_a_run_of_its_own(url: str):
    @workflow
    async def etl(customer: str) -> str:
        return current_run().id

    async with Runtime(url):
        ids = {await etl("acme") for _ in range(5)}
        assert len(ids) == 5
        assert all(run_id.startswith("etl-") for run_id in ids)


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    return path


def run_script(path: Path, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(path)],
        env={**os.environ, "HOLDFAST_URL": url, "PYTHONPATH": str(SRC), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # so that it tells where it hangs
        out, err = process.communicate()
        pytest.fail(f"the script does not end:\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


ORPHAN = """
    import asyncio, os
    from holdfast import step, workflow

    @step
    async def pay(n: int) -> int:
        print("paid", n, flush=True)
        if n == 2 and os.environ.get("DIE"):
            os._exit(9)
        return n

    @workflow
    async def etl(customer: str) -> int:
        return await pay(1) + await pay(2)

    async def main():
        call = etl.options(new=True) if os.environ.get("NEW") else etl
        print("result", await call(os.environ.get("CUSTOMER", "acme")))

    asyncio.run(main())
"""


async def test_a_script_without_ids_that_is_killed_and_run_again_pays_once(tmp_path: Path, url: str):
    path = script(tmp_path, ORPHAN)
    killed = run_script(path, url, DIE="1")
    assert killed.returncode == 9
    assert killed.stdout.split("\n")[:2] == ["paid 1", "paid 2"]
    again = run_script(path, url)
    assert again.stdout == "paid 2\nresult 3\n", again.stderr


async def test_an_orphan_with_other_inputs_is_not_joined(tmp_path: Path, url: str):
    path = script(tmp_path, ORPHAN)
    run_script(path, url, DIE="1")
    other = run_script(path, url, CUSTOMER="other")
    assert other.stdout.count("paid 1") == 1  # its own; the orphan goes on beside it
    assert other.stdout.strip().endswith("result 3"), other.stderr


async def test_new_forces_another_run(tmp_path: Path, url: str):
    path = script(tmp_path, ORPHAN)
    run_script(path, url, DIE="1")
    again = run_script(path, url, NEW="1")
    assert again.stdout.count("paid 1") == 1
    assert again.stdout.strip().endswith("result 3")


# Options


async def test_options_go_around_the_workflow_and_leave_it_as_it_is(url: str):
    @workflow(tags=["nightly"], queue="slow")
    async def etl(customer: str) -> str:
        return current_run().id

    async with Runtime(url) as runtime:
        special = etl.options(id="by-hand", queue="fast", priority=7, tags=["urgent", "nightly"])
        assert await special("acme") == "by-hand"
        info = await (await special.start("acme")).info()
        assert (info.queue, info.tags) == ("fast", ("nightly", "urgent"))
        assert (await runtime.store_provider.read("by-hand")).priority == 7
        plain = await (await etl.start("acme")).info()
        assert (plain.queue, plain.tags) == ("slow", ("nightly",))
        assert plain.id != "by-hand"


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a\nb"])
async def test_an_id_that_cannot_be_one_is_refused(url: str, run_id: str):
    @workflow
    async def etl() -> None: ...

    async with Runtime(url):
        with pytest.raises((UsageError, InputError)):
            await etl.options(id=run_id)()


async def test_a_delay_must_not_be_negative(url: str):
    @workflow
    async def etl() -> str:
        return "done"

    with pytest.raises(UsageError, match=r"workflow 'etl': delay -1 is not a duration.*zero or longer"):
        etl.options(delay=-1)
    async with Runtime(url):
        assert await etl.options(delay=0)() == "done"  # as for the options of a client


# Inputs


async def test_arguments_of_the_wrong_type_are_refused_before_anything_is_started(url: str):
    @workflow
    async def etl(customer: str, limit: int) -> None: ...

    async with Runtime(url) as runtime:
        for args, kwargs in (
            (("acme", "many"), {}),
            (("acme",), {}),
            (("acme", 1, 2), {}),
            (("acme", 1), {"extra": 1}),
            ((object(), 1), {}),
        ):
            with pytest.raises(InputError, match=r"[wW]orkflow 'etl'"):
                await etl(*args, **kwargs)  # type: ignore[arg-type, call-arg]
        assert await runtime._engine.store.count_runs() == {}


async def test_a_workflow_sees_its_inputs_as_they_were_declared(url: str):
    seen: list[Any] = []

    @workflow
    async def etl(numbers: tuple[int, ...], *rest: str, flag: bool = False, **more: float) -> None:
        seen.append((numbers, rest, flag, more))

    async with Runtime(url):
        await etl((1, 2), "a", "b", flag=True, x=1.5)
    assert seen == [((1, 2), ("a", "b"), True, {"x": 1.5})]


async def test_a_caller_who_is_cancelled_leaves_the_run_running(url: str):
    @workflow
    async def etl() -> str:
        return await wait_for_signal("go")

    async with Runtime(url) as runtime:
        handle = await etl.start()
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        await handle.signal("go", "still there")
        assert await etl.get_handle(runtime.store_provider, handle.run_id).result() == "still there"
