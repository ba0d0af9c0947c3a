"""Events over HTTP: whoever comes back goes on exactly where they were, and nobody holds up a server that closes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from asgi_server import AsgiServer, running_server
from server_worker import running_worker

from holdfast import ask, step, wait_for_signal, workflow
from holdfast.services.api_keys import revoke_key

pytestmark = pytest.mark.asyncio

STREAM = {"accept": "text/event-stream"}


@step
async def numbered_step(number: int) -> int:
    return number * number


@workflow
async def stepping_run(steps: int) -> int:
    total = sum([await numbered_step(number) for number in range(steps)])
    await wait_for_signal("go")
    if await ask("Really?"):
        total += await numbered_step(100)
    return total


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of a stream, as browsers read them."""
    found: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            found.append(dict(line.split(": ", 1) for line in lines))
    return found


class Stream:
    """A reader of a stream, that can be cut: requests through ASGI by hand, since the client's transport waits for the
    whole answer.
    """

    def __init__(self, served: AsgiServer, path: str, **headers: str) -> None:
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 0
        self._rest = ""
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")]
            + [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
            "scheme": "http",
            "http_version": "1.1",
        }
        self.task = asyncio.create_task(self._ask(served, scope))

    async def _ask(self, served: AsgiServer, scope: dict[str, Any]) -> None:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            else:
                await self._parts.put(message.get("body", b""))

        try:
            await served.app(scope, receive, send)
        finally:
            await self._parts.put(None)

    async def next(self) -> dict[str, Any] | None:
        """The next event; ``None``: the stream has ended."""
        while not (found := events_in(self._rest.rpartition("\n\n")[0])):
            part = await asyncio.wait_for(self._parts.get(), 20)
            if part is None:
                return None
            self._rest += part.decode()
        _, _, self._rest = self._rest.partition(f"data: {found[0]['data']}\n\n")
        return found[0]

    async def cut(self) -> None:
        """The connection breaks."""
        self._gone.set()
        await asyncio.wait_for(self.task, 20)


@asynccontextmanager
async def stepping_server() -> AsyncGenerator[tuple[AsgiServer, str]]:
    """A run that waits for a signal, after some steps."""
    async with running_server() as served, running_worker(served):
        run = (await served.caller().post("/v1/runs", json={"workflow": "stepping_run", "args": [5]})).json()["id"]
        yield served, run


async def go_on(served: AsgiServer, run: str) -> None:
    caller = served.caller()
    await caller.post(f"/v1/runs/{run}/signals", json={"name": "go"})
    tenant = await served.app.platform.tenants.get_tenant("default")
    async with aclosing(tenant.client.events(run)) as events:
        while (await anext(events)).kind != "approval":
            pass
    [question] = (await caller.get("/v1/approvals", params={"run_id": run})).json()["items"]
    answered = await caller.post(f"/v1/approvals/{question['id']}/approve", json={"by": "Ada"})
    assert answered.json() == {"changed": True}


@pytest.mark.parametrize("way", ["header", "query"])
async def test_a_reader_that_is_disconnected_at_every_event_sees_each_event_once(way: str):
    async with stepping_server() as (served, run):
        path, seen = f"/v1/runs/{run}/events", list[dict[str, Any]]()
        going = asyncio.create_task(go_on(served, run))
        while not seen or seen[-1]["event"] != "ended":
            last = seen[-1]["id"] if seen else ""
            if way == "header":
                stream = Stream(served, path, **({"last_event_id": last} if last else {}))
            else:
                stream = Stream(served, f"{path}?after={last}" if last else path)
            event = await stream.next()
            assert event is not None
            seen.append(event)
            await stream.cut()
        await going
        whole = events_in((await served.caller().get(path, headers=STREAM)).text)

        def lasting(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [one for one in events if one["event"] != "started"]  # those go when their steps are recorded

        assert [one["event"] for one in whole] == [one["event"] for one in lasting(whole)]
        assert [json.loads(one["data"]) for one in lasting(seen)] == [json.loads(one["data"]) for one in whole]
        assert len({one["id"] for one in seen}) == len(seen)
        kinds = [one["event"] for one in whole]
        assert (kinds[:5], kinds[-1]) == (["step"] * 5, "ended")


async def test_pages_have_the_same_events_and_wait_for_the_next_one():
    async with stepping_server() as (served, run):
        caller, path = served.caller(), f"/v1/runs/{run}/events"
        seen: list[dict[str, Any]] = []
        after: dict[str, str] = {}

        async def read(wait: float) -> int:
            nonlocal after
            page = (await caller.get(path, params={"limit": 2, "wait": wait, **after})).json()
            seen.extend(page["items"])
            after = {"after": page["next"]}
            return len(page["items"])

        while [one["kind"] for one in seen].count("step") < 5:
            assert 1 <= await read(20) <= 2
        while await read(0):
            pass
        reading = asyncio.create_task(read(20))
        await caller.post(f"/v1/runs/{run}/signals", json={"name": "go", "value": [1]})
        assert await reading
        lasting = [one for one in seen if one["kind"] != "started"]
        assert [one["kind"] for one in lasting[:6]] == ["step"] * 5 + ["signal"]
        assert lasting[5]["data"] == {"value": [1]}
        assert len({one["offset"] for one in seen}) == len(seen)


async def test_an_invalid_offset_is_refused_before_a_stream_begins():
    async with stepping_server() as (served, run):
        caller = served.caller()
        for headers in (STREAM, {}):
            wrong = await caller.get(f"/v1/runs/{run}/events", params={"after": "nonsense"}, headers=headers)
            assert (wrong.status_code, wrong.json()["type"]) == (422, "bad-request")
            unknown = await caller.get("/v1/runs/unknown/events", headers=headers)
            assert (unknown.status_code, unknown.json()["type"]) == (404, "run-not-found")


async def test_long_polls_and_streams_end_when_the_server_closes():
    async with stepping_server() as (served, run):
        caller = served.caller()
        stream = Stream(served, f"/v1/runs/{run}/events")
        for _ in range(5):
            await stream.next()
        waiting = [
            asyncio.create_task(caller.get(f"/v1/runs/{run}", params={"wait": 60})),
            asyncio.create_task(caller.get(f"/v1/runs/{run}/result", params={"wait": 60})),
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        served.app.platform.closing.set()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert [one.status_code for one in answers] == [200, 202]
        while await stream.next() is not None:
            pass
        await asyncio.wait_for(stream.task, 10)


async def test_many_waits_for_a_run_share_one_query_of_the_store():
    async with stepping_server() as (served, run):
        tenant = await served.app.platform.tenants.get_tenant("default")
        store = tenant.store
        looks = 0
        get_many = store.get_runs

        async def counted(ids: Any) -> Any:
            nonlocal looks
            looks += 1
            return await get_many(ids)

        store.get_runs = counted
        caller = served.caller()
        waiting = [asyncio.create_task(caller.get(f"/v1/runs/{run}", params={"wait": 30})) for _ in range(900)]
        await asyncio.sleep(1.0)
        before = looks
        await asyncio.sleep(0.5)
        assert looks - before < 100
        await caller.post(f"/v1/runs/{run}/cancel")
        assert {one.json()["state"] for one in await asyncio.gather(*waiting)} == {"cancelled"}


async def test_a_stream_of_a_run_that_is_deleted_ends():
    async with stepping_server() as (served, run):
        stream = Stream(served, f"/v1/runs/{run}/events")
        assert await stream.next() is not None
        store = (await served.app.platform.tenants.get_tenant("default")).store

        async def gone(*_: Any) -> None:
            return None

        store.get_run_updates = gone
        while await stream.next() is not None:
            pass
        await asyncio.wait_for(stream.task, 20)


async def test_a_stream_ends_when_its_key_is_revoked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.server.http.stream_sender.KEY_RECHECK_S", 0.05)
    async with stepping_server() as (served, run):
        token, keys = await served.key("read"), served.app.platform.authenticator
        id = token.split("_")[1]
        keys.invalidate(id)  # as the endpoint that makes keys does
        stream = Stream(served, f"/v1/runs/{run}/events", authorization=f"Bearer {token}")
        for _ in range(5):
            assert await stream.next() is not None
        await asyncio.sleep(0.2)
        assert not stream.task.done()
        await revoke_key(await served.app.platform.tenants.get_default_store(), id, 1.0)
        keys.invalidate(id)
        while await stream.next() is not None:
            pass
        await asyncio.wait_for(stream.task, 20)
