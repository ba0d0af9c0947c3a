"""Deliveries over a stream: as many as the listener can hold, and what happens when the connection breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from live_server import LiveServer, running_live_server

from holdfast import Client
from holdfast.server.calls import Call
from holdfast.server.deliveries import delivery_operations, dispatcher, listener_registry, listener_session
from holdfast.server.deliveries.listener_session import ListenerSession
from holdfast.stores.operations import NewRun, ReleaseRun, Run, StartRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def post(server: LiveServer, path: str, body: Any, status: int = 200) -> Any:
    async with httpx2.AsyncClient(base_url=server.address, timeout=30) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def send(server: LiveServer, payload: Any) -> str:
    return (await post(server, "/v1/addresses/stream/send", {"payload": payload}, status=201))["id"]


async def test_a_listener_gets_as_many_deliveries_as_it_can_hold():
    async with running_live_server() as server:
        for number in range(4):
            await send(server, number)
        async with server.stream("/v1/addresses/stream/listen", max_active=2, name="box") as events:
            kind, hello = await anext(events)
            assert (kind, hello["lease"]) == ("listener", 30.0)
            held = [(await anext(events))[1] for _ in range(2)]
            assert [one["payload"] for one in held] == [0, 1]
            third = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.2)
            assert not third.done()
            await post(server, f"/v1/deliveries/{held[0]['id']}/complete", {})
            async with asyncio.timeout(5):
                assert await third == ("ended", {"id": held[0]["id"]})
                assert (await anext(events))[1]["payload"] == 2


async def test_the_end_of_a_delivery_is_reported_also_if_there_is_no_next_one():
    async with running_live_server() as server:
        await send(server, 1)
        async with server.stream("/v1/addresses/stream/listen") as events, asyncio.timeout(5):
            await anext(events)
            held = (await anext(events))[1]
            await post(server, f"/v1/deliveries/{held['id']}/complete", {})
            assert await anext(events) == ("ended", {"id": held["id"]})


async def test_a_run_is_delivered_at_once_although_nothing_was_due_a_moment_ago(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatcher, "MIN_POLL_GAP_S", 3600.0)
    async with (
        running_live_server() as server,
        server.stream("/v1/addresses/stream/listen") as events,
        asyncio.timeout(10),
    ):
        await anext(events)
        for number in range(3):
            await send(server, number)
            while (event := await anext(events))[0] != "delivery":
                pass
            assert event[1]["payload"] == number
            await post(server, f"/v1/deliveries/{event[1]['id']}/complete", {})


async def test_no_run_is_claimed_twice_because_its_stream_reports_something_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_session, "EXPECTED_END_DELAY_S", 0.001)
    numbers: list[int] = []

    async def listen(server: LiveServer) -> None:
        async with server.stream("/v1/addresses/stream/listen") as events:
            async for kind, delivery in events:
                if kind == "delivery":
                    numbers.append(delivery["number"])
                    await post(server, f"/v1/deliveries/{delivery['id']}/complete", {})

    async with running_live_server() as server, asyncio.timeout(30):
        listeners = [asyncio.create_task(listen(server)) for _ in range(4)]
        runs = [await send(server, number) for number in range(40)]
        async with Client(server.address) as client:
            for run in runs:
                await client.wait(run)
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    assert numbers == [1] * 40


async def test_a_listener_sends_no_heartbeat_for_a_delivery_that_it_ends(monkeypatch: pytest.MonkeyPatch):
    heartbeats: list[str] = []

    async def note(call: Call, id: str) -> float:
        heartbeats.append(id)
        return 30.0

    monkeypatch.setattr(delivery_operations, "record_heartbeat", note)
    async with running_live_server() as server, Client(server.address) as client:
        runs = [await client.send("stream", number) for number in range(20)]
        count = 0
        async for delivery in client.listen("stream"):
            async with delivery:
                await delivery.complete(delivery.payload)
            count += 1
            if count == len(runs):
                break
        assert [await run.result() for run in runs] == list(range(20))
    assert heartbeats == []


async def test_a_connection_that_breaks_frees_the_delivery_after_a_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_registry, "RECONNECT_GRACE_S", 0.2)
    async with running_live_server() as server:
        run = await send(server, 1)
        async with server.stream("/v1/addresses/stream/listen") as events:
            await anext(events)
            first = (await anext(events))[1]
        async with asyncio.timeout(10), server.stream("/v1/addresses/stream/listen") as events:
            await anext(events)
            second = (await anext(events))[1]
        assert (first["run_id"], second["run_id"], second["number"]) == (run, run, 2)


async def test_a_listener_that_reconnects_in_time_keeps_what_it_holds():
    async with running_live_server() as server:
        await send(server, 1)
        async with server.stream("/v1/addresses/stream/listen") as events:
            name = (await anext(events))[1]["listener_id"]
            first = (await anext(events))[1]
        async with server.stream(
            "/v1/addresses/stream/listen", listener_id=name, active_deliveries=[first["id"]], max_active=2
        ) as events:
            assert (await anext(events))[1]["listener_id"] == name
            await send(server, 2)
            assert (await anext(events))[1]["payload"] == 2
            recorded = await post(server, f"/v1/deliveries/{first['id']}/steps", {"name": "a", "output": 1})
            assert recorded["is_new"] is True
        async with server.stream("/v1/addresses/stream/listen", listener_id=name, max_active=2) as events:
            await anext(events)
            assert [(await anext(events))[1]["payload"] for _ in range(2)] == [1, 2]  # it has forgotten both


async def test_a_listener_that_reconnects_while_its_old_stream_closes_keeps_what_it_is_handed(
    monkeypatch: pytest.MonkeyPatch,
):
    """A server that is busy may serve the new stream before it has finished with the old one."""
    async with running_live_server() as server, asyncio.timeout(20):
        store = (await server.app.platform.tenants.get_tenant("default")).store
        retire, is_closing, may_close = store.workers.retire, asyncio.Event(), asyncio.Event()

        async def retire_late(worker: int, **options: bool) -> bool:
            is_closing.set()
            await may_close.wait()
            return await retire(worker, **options)

        monkeypatch.setattr(store.workers, "retire", retire_late)
        async with server.stream("/v1/addresses/stream/listen") as events:
            name = (await anext(events))[1]["listener_id"]
        await is_closing.wait()
        async with server.stream("/v1/addresses/stream/listen", listener_id=name) as events:
            assert (await anext(events))[1]["listener_id"] == name
            await send(server, 1)
            held = (await anext(events))[1]
            [worker] = await store.list_workers()
            may_close.set()
            await asyncio.sleep(0.1)
            assert [one.lease_expires_at for one in await store.list_workers()] == [worker.lease_expires_at]
            recorded = await post(server, f"/v1/deliveries/{held['id']}/steps", {"name": "a", "output": 1})
            assert recorded["is_new"] is True


async def test_a_run_that_the_next_stream_of_a_listener_has_sent_is_not_released_by_the_previous_one(
    monkeypatch: pytest.MonkeyPatch,
):
    async with running_live_server() as server, asyncio.timeout(20):
        tenant = await server.app.platform.tenants.get_tenant("default")
        get_histories, is_held_up, may_continue = tenant.store.get_histories, asyncio.Event(), asyncio.Event()

        async def get_histories_late(keys: list[int]) -> Any:
            if not is_held_up.is_set():
                is_held_up.set()
                await may_continue.wait()
            return await get_histories(keys)

        monkeypatch.setattr(tenant.store, "get_histories", get_histories_late)
        async with server.stream("/v1/addresses/stream/listen") as events:
            name = (await anext(events))[1]["listener_id"]
            new = NewRun("one", "stream", b'{"payload":1}', b"d", b"s", tenant.store.now(), is_delivery=True)
            await tenant.store.commit([StartRun(new)])
            tenant.dispatcher.notify()
            await is_held_up.wait()
        await wait_until(lambda: not tenant.listeners._stream_counts)
        async with server.stream("/v1/addresses/stream/listen", listener_id=name) as events:
            assert (await anext(events))[1]["listener_id"] == name
            held = (await anext(events))[1]
            may_continue.set()
            await asyncio.gather(*tenant.dispatcher._handover_tasks)
            recorded = await post(server, f"/v1/deliveries/{held['id']}/steps", {"name": "a", "output": 1})
            assert recorded["is_new"] is True


async def test_a_run_that_is_released_is_not_sent_again_to_its_listener(monkeypatch: pytest.MonkeyPatch):
    async with running_live_server() as server, asyncio.timeout(20):
        tenant = await server.app.platform.tenants.get_tenant("default")
        run = await send(server, 1)
        async with server.stream("/v1/addresses/stream/listen") as events:
            name = (await anext(events))[1]["listener_id"]
            assert (await anext(events))[1]["run_id"] == run
        store = tenant.store
        commit, is_releasing, may_release = store.commit, asyncio.Event(), asyncio.Event()

        async def commit_late(ops: Any) -> Any:
            if isinstance(ops[0], ReleaseRun):
                is_releasing.set()
                await may_release.wait()
            return await commit(ops)

        monkeypatch.setattr(store, "commit", commit_late)
        held = await store.get_run(run)
        assert held is not None
        releasing = asyncio.create_task(tenant.dispatcher.release(held))
        await is_releasing.wait()
        async with server.stream("/v1/addresses/stream/listen", listener_id=name) as events:
            assert (await anext(events))[1]["listener_id"] == name
            may_release.set()
            await releasing
            assert (await anext(events))[1]["number"] == 2


async def test_a_listener_that_retired_while_it_reconnected_becomes_a_new_one(monkeypatch: pytest.MonkeyPatch):
    async with running_live_server() as server, asyncio.timeout(20):
        registry = (await server.app.platform.tenants.get_tenant("default")).listeners
        async with server.stream("/v1/addresses/stream/listen") as events:
            name = (await anext(events))[1]["listener_id"]

        async def has_retired() -> bool:
            return not await registry._store.list_workers()

        await wait_until(has_retired)
        keep_alive = registry.keep_alive
        answers = iter([True])  # of the moment before it retired

        async def keep_alive_once(worker_id: int, lease: float) -> bool:
            return next(answers, None) or await keep_alive(worker_id, lease)

        monkeypatch.setattr(registry, "keep_alive", keep_alive_once)
        async with server.stream("/v1/addresses/stream/listen", listener_id=name) as events:
            assert [event async for event in events] == []
        async with server.stream("/v1/addresses/stream/listen", listener_id=name) as events:
            assert (await anext(events))[1]["listener_id"] != name


async def test_a_listener_that_leaves_with_nothing_is_gone_at_once():
    async with running_live_server() as server:
        async with server.stream("/v1/addresses/stream/listen", name="box") as events:
            await anext(events)
            store = (await server.app.platform.tenants.get_tenant("default")).store
            assert [worker.name for worker in await store.list_workers()] == ["box"]
        async with asyncio.timeout(5):
            while await store.list_workers():
                await store.wait_for_change(0.1)


async def test_a_listener_that_leaves_releases_deliveries_that_it_does_not_name():
    async with running_live_server() as server:
        for number in range(2):
            await send(server, number)
        async with server.stream("/v1/addresses/stream/listen", max_active=2) as events:
            name = (await anext(events))[1]["listener_id"]
            first, second = [(await anext(events))[1] for _ in range(2)]
        leave = "/v1/addresses/stream/leave"
        async with httpx2.AsyncClient(base_url=server.address) as client:
            body = {"listener_id": name, "active_deliveries": [first["id"]]}
            assert (await client.post(leave, json=body)).status_code == 204
            assert (await client.post(f"/v1/deliveries/{first['id']}/heartbeat")).status_code == 200
            assert (await client.post(f"/v1/deliveries/{second['id']}/heartbeat")).status_code == 409
            assert (await client.post(leave, json={"listener_id": name})).status_code == 204
            assert (await client.get("/v1/workers")).json()["items"] == []
            history = (await client.get(f"/v1/runs/{second['run_id']}/deliveries")).json()["items"]
            assert [(one["state"], one["reason"]) for one in history] == [("returned", "the listener has left")]
            stranger = await client.post(leave, json={"listener_id": "7.nobody"})
            assert stranger.status_code == 204  # nobody is told who is there
        again = await post(server, "/v1/addresses/stream/claim?wait=5", {})
        assert (again["run_id"], again["failure_count"]) == (first["run_id"], 0)


async def test_a_delivery_that_a_listener_does_not_know_about_is_sent_again():
    """An older stream of the same process, which nobody reads any more, may have been handed it."""
    async with running_live_server() as server:
        async with httpx2.AsyncClient(base_url=server.address) as client:
            await client.put("/v1/addresses/stream", json={"lease": 1})
        async with asyncio.timeout(10), server.stream("/v1/addresses/stream/listen") as events:
            await anext(events)
            store = (await server.app.platform.tenants.get_tenant("default")).store
            [worker] = await store.list_workers()
            new = NewRun("lost", "stream", b'{"payload":1}', b"d", b"s", store.now(), is_delivery=True)
            await store.commit([StartRun(new, claim_as=worker.id)])  # behind the back of this stream
            assert (await anext(events))[1]["run_id"] == "lost"


async def test_a_broken_stream_does_not_end_the_one_that_replaced_it():
    async with running_live_server() as server, asyncio.timeout(20):
        async with server.stream("/v1/addresses/stream/listen") as old:
            name = (await anext(old))[1]["listener_id"]
            second = server.stream("/v1/addresses/stream/listen", listener_id=name)
            new = await second.__aenter__()
            assert (await anext(new))[1]["listener_id"] == name
        await asyncio.sleep(0.3)  # the server sees that the old one is gone
        await send(server, 7)
        kind, delivery = await anext(new)
        assert (kind, delivery["payload"], delivery["listener_id"]) == ("delivery", 7, name)
        await second.__aexit__(None, None, None)


async def test_the_stream_of_a_listener_declared_dead_ends_and_it_reconnects_as_a_new_one():
    async with running_live_server() as server, asyncio.timeout(20):
        async with httpx2.AsyncClient(base_url=server.address) as client:
            await client.put("/v1/addresses/stream", json={"lease": 1})
        async with server.stream("/v1/addresses/stream/listen") as events:
            await anext(events)
            store = (await server.app.platform.tenants.get_tenant("default")).store
            [worker] = await store.list_workers()
            await store.workers.retire(worker.id)
            assert await anext(events, None) is None


async def test_the_end_of_an_older_stream_takes_nothing_from_the_new_one():
    async with running_live_server() as server, AsyncExitStack() as back:
        await send(server, 1)
        path = "/v1/addresses/stream/listen"
        async with server.stream(path) as old:
            name = (await anext(old))[1]["listener_id"]
            first = (await anext(old))[1]["id"]
            events = await back.enter_async_context(server.stream(path, listener_id=name, active_deliveries=[first]))
            await anext(events)
            await streams_are(server, 2)
        await streams_are(server, 1)
        await send(server, 2)
        await post(server, f"/v1/deliveries/{first}/complete", {})
        async with asyncio.timeout(10):
            assert await anext(events) == ("ended", {"id": first})
            assert (await anext(events))[1]["payload"] == 2


def after_look(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], Awaitable[Any]]) -> None:
    """Something happens after a request has read what its listener holds for this time, and before it goes on."""
    looks: Counter[ListenerSession] = Counter()
    look = ListenerSession.list_claimed

    async def slow_look(listener: ListenerSession) -> list[Run]:
        found = await look(listener)
        looks[listener] += 1
        if looks[listener] == number:
            await happens()
        return found

    monkeypatch.setattr(ListenerSession, "list_claimed", slow_look)


async def test_a_delivery_completed_during_the_search_is_not_handed_out_again(monkeypatch: pytest.MonkeyPatch):
    async with running_live_server() as server, asyncio.timeout(20):
        await send(server, 1)
        path = "/v1/addresses/stream/listen"
        async with server.stream(path) as events:
            name = (await anext(events))[1]["listener_id"]
            first = (await anext(events))[1]["id"]
        # The first look is for what the listener names, the second one for all the rest.
        after_look(monkeypatch, 2, lambda: post(server, f"/v1/deliveries/{first}/complete", {}))
        async with server.stream(path, listener_id=name, active_deliveries=[first], max_active=2) as events:
            await anext(events)
            assert await anext(events) == ("ended", {"id": first})
            await send(server, 2)
            kind, delivery = await anext(events)
            assert (kind, delivery["payload"]) == ("delivery", 2)


@pytest.mark.parametrize("end", ["complete", "release"])
async def test_a_delivery_that_ended_meanwhile_is_not_repeated(monkeypatch: pytest.MonkeyPatch, end: str):
    async with running_live_server() as server, asyncio.timeout(20):
        await send(server, 1)
        lost = await post(server, "/v1/addresses/stream/claim?wait=5", {})
        after_look(monkeypatch, 1, lambda: post(server, f"/v1/deliveries/{lost['id']}/{end}", {}))
        await send(server, 2)
        found = await post(server, "/v1/addresses/stream/claim?wait=5", {"listener_id": lost["listener_id"]})
        assert (found["payload"], found["number"]) == ((2, 1) if end == "complete" else (1, 2))


async def streams_are(server: LiveServer, number: int) -> None:
    """Waits until the server has so many streams of listeners."""
    async with asyncio.timeout(10):
        listeners = server.app.platform.tenants.list_open()[0].listeners
        while listeners._stream_counts.total() != number:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.01)
