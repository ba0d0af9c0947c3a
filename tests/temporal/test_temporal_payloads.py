"""Values that are too large for a history, and values that nobody but us is to read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import payload_flows as flows
import pytest
import pytest_asyncio
from temporal_engines import client_of, engine_of, serving
from temporalio.api.enums.v1 import EventType

import temporal_server
from holdfast import Client, RunFailed, Runtime, ValueTooLarge
from holdfast.codec import AesEncryption
from holdfast.stores.temporal.payloads import MAX_INLINE_SIZE
from holdfast.temporal import worker_thread
from temporal_server import TemporalServer

pytestmark = pytest.mark.asyncio

FLOWS = [flow for name, flow in vars(flows).items() if name.startswith("payload_")]
FIVE = 5_000_000
WAY_OUT = r"\?payloads="


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[Runtime]:
    """Without a storage for what is large."""
    async with serving(temporal_server.fresh_url(), *FLOWS) as runtime:
        yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """With one."""
    url = f"{temporal_server.fresh_url()}?payloads={tmp_path_factory.mktemp('payloads')}"
    async with serving(url, *FLOWS) as runtime:
        yield runtime


async def result(runtime: Runtime, flow: Any, *args: Any) -> Any:
    async with asyncio.timeout(30):
        return await (await runtime.start(flow, *args)).result()


# With a storage


@pytest.mark.asyncio(loop_scope="module")
async def test_with_a_storage_values_may_be_large_wherever_they_are(apart: Runtime) -> None:
    assert await result(apart, flows.payload_output, FIVE) == FIVE
    assert await result(apart, flows.payload_input, "x" * FIVE) == FIVE
    assert await result(apart, flows.payload_child, FIVE) == FIVE
    assert await result(apart, flows.payload_results, FIVE) == FIVE
    assert len(await result(apart, flows.payload_result, FIVE)) == FIVE
    assert await result(apart, flows.payload_progress, FIVE) == FIVE
    assert await result(apart, flows.payload_question, FIVE) is False
    handle = await apart.start(flows.payload_signal)
    await handle.signal("text", "x" * FIVE)
    assert await handle.result() == FIVE
    for in_step in (True, False):
        with pytest.raises(RunFailed, match=r"ApprovalRequired: y{1000}"):
            await result(apart, flows.payload_error, 3_000_000, in_step)


@pytest.mark.asyncio(loop_scope="module")
async def test_histories_hold_no_more_than_references(apart: Runtime) -> None:
    handle = await apart.start(flows.payload_output.options(id="referred"), FIVE)
    await handle.result()
    description = await engine_of(apart).store.client.get_workflow_handle("referred").describe()
    assert description.raw_description.workflow_execution_info.history_size_bytes < 10_000


# Without


@pytest.mark.asyncio(loop_scope="module")
async def test_without_one_a_step_fails_in_words_and_its_run_may_go_on(plain: Runtime) -> None:
    message = await result(plain, flows.payload_caught, 3_000_000)
    assert message.startswith("ValueTooLarge: the output of step 'large' takes 2.9 MiB")
    assert "?payloads=" in message


@pytest.mark.asyncio(loop_scope="module")
async def test_without_one_each_kind_of_value_is_refused_by_name(plain: Runtime) -> None:
    for flow, args, what in (
        (flows.payload_child, (3_000_000,), "the inputs of workflow 'payload_input'"),
        (flows.payload_result, (3_000_000,), "the result of workflow 'payload_result'"),
        (flows.payload_progress, (3_000_000,), "the progress of step 'progress'"),
        (flows.payload_question, (3_000_000,), "what the run asks people"),
        (flows.payload_error, (3_000_000, True), "ApprovalRequired: y{1000}.*the error takes"),
        (flows.payload_error, (3_000_000, False), "ApprovalRequired: y{1000}.*the error takes"),
    ):
        with pytest.raises(RunFailed, match=f"(?s){what}.*{WAY_OUT}"):
            await result(plain, flow, *args)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("size", [3_000_000, FIVE])
async def test_without_external_storage_a_large_signal_is_refused_at_once(plain: Runtime, size: int) -> None:
    """More than Temporal takes as a value, and more than it takes as a message: that would break the connection."""
    with pytest.raises(ValueTooLarge, match=WAY_OUT):
        await plain.start(flows.payload_input, "x" * size)
    handle = await plain.start(flows.payload_signal)
    with pytest.raises(ValueTooLarge, match=WAY_OUT):
        await handle.signal("text", "x" * size)
    async with Client(engine_of(plain).store.target.url) as client:
        with pytest.raises(ValueTooLarge, match=WAY_OUT):
            await client.start("payload_input", text="x" * size)
        with pytest.raises(ValueTooLarge, match=WAY_OUT):
            await client.signal(handle.run_id, "text", "x" * size)
    await handle.signal("text", "short")
    assert await handle.result() == 5


@pytest.mark.asyncio(loop_scope="module")
async def test_what_just_fits_goes_through(plain: Runtime) -> None:
    """The limit is below Temporal's own, and not far."""
    assert await result(plain, flows.payload_output, MAX_INLINE_SIZE - 2) == MAX_INLINE_SIZE - 2
    assert len(await result(plain, flows.payload_result, MAX_INLINE_SIZE - 2)) == MAX_INLINE_SIZE - 2
    assert await result(plain, flows.payload_child, MAX_INLINE_SIZE - 11) == MAX_INLINE_SIZE - 11
    with pytest.raises(ValueTooLarge):
        await plain.start(flows.payload_input, "x" * (MAX_INLINE_SIZE - 10))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_run_that_failed_for_lack_of_a_storage_goes_on_with_one(tmp_path: Path) -> None:
    url = temporal_server.fresh_url()
    async with serving(url, flows.payload_output) as runtime:
        handle = await runtime.start(flows.payload_output.options(id="retried"), 3_000_000)
        with pytest.raises(RunFailed, match=WAY_OUT):
            await handle.result()
    with_storage = f"{url}?payloads={tmp_path}"
    async with serving(with_storage, flows.payload_output) as runtime, Client(with_storage) as client:
        await client.retry("retried")
        assert await client.wait("retried") == 3_000_000


# Encrypted

SECRET = "xylophone-quartz"
OPEN = "marmalade-gyroscope"
"""What a run without encryption says: to be found, or nothing could be."""


async def test_nothing_of_what_a_run_says_is_in_the_servers_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the file, not in the histories; and runs are recalled, continued, retried and read as ever."""
    file = tmp_path / "temporal.db"
    encryption = AesEncryption(b"k" * 32)
    server = TemporalServer(file, namespaces=1).start()
    try:
        with monkeypatch.context() as patching:
            make = worker_thread.Worker
            patching.setattr(
                worker_thread, "Worker", lambda *args, **kept: make(*args, **kept | {"max_cached_workflows": 0})
            )
            async with (
                serving(server.url, *FLOWS, encryption=encryption, continue_as_new_after=40) as runtime,
                Client(server.url, encryption=encryption) as client,
            ):
                handle = await runtime.start(flows.payload_secret.options(id="secret"), SECRET)
                await handle.signal("word", f"said {SECRET}")
                await _approve(client, "secret")
                seen = await asyncio.wait_for(handle.result(), 40)
                assert seen == [f"hidden {SECRET}", f"hidden {SECRET}", f"leaked {SECRET}", f"said {SECRET}"]
                assert engine_of(runtime).rebuilt_runs.history_read_count > 0
                await runtime.start(flows.payload_retried.options(id="again"), SECRET)
                with pytest.raises(RunFailed, match=f"not yet {SECRET}"):
                    await client.wait("again")
                await client.retry("again")
                assert await client.wait("again") == [f"hidden {SECRET}", f"at last {SECRET}", f"hidden {SECRET}"]
                assert (await client.get("secret")).inputs == {"secret": SECRET}
        async with serving(f"temporal://{server.address}/{server.namespaces[0]}", flows.payload_confided) as runtime:
            assert await result(runtime, flows.payload_confided, OPEN) == f"hidden {OPEN}"
        raw = await client_of(server.url)
        histories = 0
        async for found in raw.list_workflows():
            history = await raw.get_workflow_handle(found.id, run_id=found.run_id).fetch_history()
            text = str(history.events) + str((await raw.get_workflow_handle(found.id).describe()).raw_description)
            assert SECRET not in text
            assert any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED for event in history.events)
            histories += 1
        assert histories >= 5
    finally:
        server.stop()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert OPEN.encode() in content
    assert SECRET.encode() not in content


async def _approve(client: Client, run_id: str) -> None:
    async with asyncio.timeout(30):
        while not (found := await client.approvals(run_id=run_id)):  # noqa: ASYNC110 - the run gets there by itself
            await asyncio.sleep(0.05)
    [question] = found
    assert question.question == f"May I tell {SECRET}?"
    await client.approve(question.id, by="ada")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_result_of_an_awaited_run_may_be_too_large(plain: Runtime) -> None:
    for count, pattern in ((1000, "1000"), (400_000, WAY_OUT)):
        run_id = temporal_server.own("words")
        await result(plain, flows.payload_words.options(id=run_id), count)
        assert re.search(pattern, await result(plain, flows.payload_other, run_id, count))
