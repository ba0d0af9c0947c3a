"""Webhooks: deliveries that the server sends, signed, and settles by what it is answered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from asgi_server import AsgiServer, Clock, running_server
from webhook_receiver import Got, Receiver, Reply, receiving

from holdfast.errors import UsageError, WebhookVerificationFailed
from holdfast.server.app import Settings
from holdfast.server.background.sweeper import sweep
from holdfast.server.deliveries.history import read_deliveries
from holdfast.server.webhooks import sender
from holdfast.server.webhooks.response_outcomes import get_retry_delay
from holdfast.stores.leases import LeaseWindow
from holdfast.webhooks import verify

pytestmark = pytest.mark.asyncio


@dataclass
class World:
    served: AsgiServer
    clock: Clock
    http: httpx2.AsyncClient
    receiver: Receiver

    async def hook(self, address: str, url: str | None = None, **more: Any) -> str:
        """Set a webhook: its secret."""
        answer = await self.http.put(f"/v1/addresses/{address}", json={"webhook": url or self.receiver.url, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["webhook_secret"]

    async def send(self, address: str, payload: Any = None, **more: Any) -> str:
        answer = await self.http.post(f"/v1/addresses/{address}/send", json={"payload": payload, **more})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    async def run(self, run: str, *states: str) -> Any:
        """The run, once it is in one of these states."""
        client = self.served.app.platform.tenants.list_open()[0].client
        async with asyncio.timeout(20):
            while True:
                info = await client.get(run)
                if info.state in states:
                    return info
                await asyncio.sleep(0.01)

    async def on(self, delivery: Any, what: str, body: Any = None) -> httpx2.Response:
        return await self.http.post(f"/v1/deliveries/{delivery['id']}/{what}", json=body or {})

    async def deliveries(self, run: str) -> list[Any]:
        return (await self.http.get(f"/v1/runs/{run}/deliveries")).json()["items"]

    async def failed(self, run: str, times: int) -> None:
        """Until it was given back so often."""
        async with asyncio.timeout(20):
            while True:
                if len([one for one in await self.deliveries(run) if one["state"] == "returned"]) >= times:
                    return
                await asyncio.sleep(0.01)

    async def advance(self, seconds: float) -> None:
        """Time passes, and the server looks around."""
        self.clock.now += seconds
        platform = self.served.app.platform
        for tenant in platform.tenants.list_open():
            await sweep(platform, tenant, LeaseWindow(1_000_000.0, self.clock.now), should_trim_audit=False)
            tenant.dispatcher.notify()

    async def workers(self) -> int:
        store = self.served.app.platform.tenants.list_open()[0].store
        return len(await store.list_workers())


@asynccontextmanager
async def a_world(**settings: Any) -> AsyncGenerator[World]:
    clock = Clock(1_000_000.0)
    chosen = {"allowed_webhook_hosts": ("127.0.0.1",), "clock": clock} | settings
    async with receiving() as receiver, running_server(settings=Settings(**chosen)) as served:
        yield World(served, clock, served.caller(), receiver)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "POLL_INTERVAL_S", 0.02)


async def test_a_delivery_is_sent_signed_and_the_answer_is_the_output():
    async with a_world() as world:
        secret = await world.hook("hooked")
        world.receiver.replies = [Reply(200, b'{"sum": 6}')]
        run = await world.send("hooked", {"rows": [1, 2, 3]}, tags=["nightly"])
        got = await world.receiver.has_got(1)
        assert (await world.run(run, "completed")).output == {"sum": 6}
        delivery = got.delivery
        assert (delivery["run_id"], delivery["payload"], delivery["number"]) == (run, {"rows": [1, 2, 3]}, 1)
        assert (delivery["address"], delivery["tags"], delivery["steps"]) == ("hooked", ["nightly"], [])
        assert got.signed_by(secret)
        assert got.headers["webhook-id"] == delivery["id"].replace(".", "_")
        assert got.headers["webhook-timestamp"] == "1000000"
        assert (got.headers["host"], got.path) == (f"127.0.0.1:{world.receiver.port}", "/hook")
        assert verify(got.headers, got.body, secret, now=1_000_010) == delivery
        [delivery] = await world.deliveries(run)
        assert (delivery["listener_name"], delivery["remote_address"], delivery["state"]) == (
            "webhook",
            "127.0.0.1",
            "completed",
        )
        await asyncio.sleep(0.05)
        assert await world.workers() == 0


@pytest.mark.parametrize(
    ("reply", "state", "expected"),
    [
        (Reply(201, b"[1, 2]"), "completed", [1, 2]),
        (Reply(200, b'{"output": 1}'), "completed", {"output": 1}),
        (Reply(200), "completed", None),
        (Reply(204), "completed", None),
        (Reply(400, b"no\x00 such rows"), "failed", "WebhookRefused: the receiver answered 400: no  such rows"),
        (Reply(404), "failed", "WebhookRefused: the receiver answered 404"),
        (Reply(200, b"x" * 2000), "failed", "is larger than 1000 bytes"),
        (Reply(200, b'"\\ud800"'), "failed", "cannot be recorded"),
        (Reply(200, b"<html>Sign in</html>"), "pending", "answered 200 with a body that is not JSON"),
        (Reply(200, b"NaN"), "pending", "NaN and Infinity are not numbers in JSON"),
        (Reply(200, b"[" * 100 + b"]" * 100), "pending", "nested more than 64 levels deep"),
        (Reply(200, b"\x1f\x8b", {"content-encoding": "gzip"}), "pending", "a body that is not JSON"),
        (Reply(302, b"", {"location": "/elsewhere"}), "pending", "redirects are followed only with 307 and 308"),
        (Reply(408), "pending", "answered 408"),
        (Reply(425), "pending", "answered 425"),
        (Reply(429), "pending", "answered 429"),
        (Reply(500, b"oops"), "pending", "answered 500: oops"),
        (Reply(503), "pending", "answered 503"),
        (None, "pending", "the connection broke"),
    ],
)
async def test_the_outcome_of_each_response(reply: Reply | None, state: str, expected: Any):
    async with a_world(max_body_bytes=1000) as world:
        await world.hook("hooked")

        async def answering(_: Got) -> Reply | None:
            return reply

        world.receiver.answering = answering
        run = await world.send("hooked")
        if state == "pending":
            await world.failed(run, 1)
            [one] = await world.deliveries(run)
            assert expected in one["reason"]
        info = await world.run(run, state)
        if state == "completed":
            assert info.output == expected
        elif state == "failed":
            assert expected in str(info.error)
        assert len(world.receiver.got) == 1


async def test_a_failure_is_sent_again_later_and_later_and_at_last_the_run_is_dead():
    async with a_world() as world:
        await world.hook("hooked", max_deliveries=3)
        world.receiver.replies = [Reply(500)] * 9
        run = await world.send("hooked")
        for failures, number in ((0, 1), (1, 2)):
            got = await world.receiver.has_got(number)
            await world.failed(run, number)
            pause = get_retry_delay(failures, got.delivery["id"])
            await world.advance(pause - 0.5)
            await asyncio.sleep(0.05)
            assert len(world.receiver.got) == number
            await world.advance(1)
        third = (await world.receiver.has_got(3)).delivery
        assert (third["number"], third["failure_count"]) == (3, 2)
        assert "WebhookFailed: the receiver answered 500" in str((await world.run(run, "dead")).error)
        assert len({got.headers["webhook-id"] for got in world.receiver.got}) == 3
    assert 4 <= get_retry_delay(0, "x") <= 6 < 20 <= get_retry_delay(1, "x") <= 30
    assert 0.8 * 3600 <= get_retry_delay(50, "x") <= 1.2 * 3600


@pytest.mark.parametrize("retry_after", ["120", "Mon, 12 Jan 1970 13:48:40 GMT"])
async def test_a_receiver_that_wants_to_be_left_alone_is(retry_after: str):
    async with a_world() as world:
        await world.hook("hooked")
        world.receiver.replies = [Reply(429, b"", {"retry-after": retry_after}), Reply(204)]
        run = await world.send("hooked")
        await world.failed(run, 1)
        await world.advance(119)
        await asyncio.sleep(0.05)
        assert len(world.receiver.got) == 1
        await world.advance(2)
        await world.run(run, "completed")


async def test_a_receiver_that_is_gone_is_sent_nothing_more_until_the_webhook_is_set_again():
    async with a_world() as world:
        await world.hook("hooked")
        world.receiver.replies = [Reply(410, b"moved out")]
        run = await world.send("hooked")
        assert "WebhookGone: the receiver answered 410: moved out" in str((await world.run(run, "failed")).error)
        settings = (await world.http.get("/v1/addresses/hooked")).json()
        assert (settings["webhook"], settings["webhook_disabled_reason"]) == (
            world.receiver.url,
            "the receiver answered 410: moved out",
        )
        await asyncio.sleep(0.05)
        later = await world.send("hooked")
        await asyncio.sleep(0.1)
        assert (len(world.receiver.got), (await world.run(later, "pending")).state) == (1, "pending")
        assert await world.hook("hooked") is None  # the secret stays
        await world.run(later, "completed")


async def test_a_receiver_may_go_on_by_itself_and_is_sent_it_again_when_it_falls_silent():
    async with a_world() as world:
        await world.hook("hooked", lease=60)
        world.receiver.replies = [Reply(202), Reply(202)]
        run = await world.send("hooked")
        first = (await world.receiver.has_got(1)).delivery
        assert (await world.on(first, "steps", {"name": "extract", "output": 7})).status_code == 200
        await asyncio.sleep(0.1)
        await world.advance(50)
        assert (await world.on(first, "heartbeat")).status_code == 200
        await world.advance(50)
        await asyncio.sleep(0.1)
        assert len(world.receiver.got) == 1
        await world.advance(61)
        second = (await world.receiver.has_got(2)).delivery
        assert (second["run_id"], second["number"]) == (run, 2)
        assert [(step["name"], step["output"]) for step in second["steps"]] == [("extract", 7)]
        assert (await world.on(first, "complete", {"output": "late"})).status_code == 409
        assert (await world.on(second, "complete", {"output": 8})).json() == {"state": "completed"}
        assert (await world.run(run, "completed")).output == 8


async def test_a_receiver_may_wait_for_a_person_and_is_sent_the_answer():
    async with a_world() as world:
        await world.hook("hooked")

        async def answering(got: Got) -> Reply:
            response = await world.on(got.delivery, "ask", {"name": "ok", "question": "Go on?"})
            if response.status_code == 202:
                return Reply(202)
            return Reply(200, json.dumps(response.json()["output"]["approved"]).encode())

        world.receiver.answering = answering
        run = await world.send("hooked")
        await world.run(run, "waiting")
        client = world.served.app.platform.tenants.list_open()[0].client
        [response] = await client.approvals(run)
        await client.approve(response.id, by="alice")
        assert (await world.run(run, "completed")).output is True
        assert [got.delivery["number"] for got in world.receiver.got] == [1, 2]


async def test_a_receiver_that_does_not_answer_in_time_is_not_waited_for_and_a_cancel_breaks_it_off(
    monkeypatch: pytest.MonkeyPatch,
):
    async with a_world() as world:
        await world.hook("slow", lease=86400, webhook_timeout=1)
        await world.hook("cancelled", lease=60)
        monkeypatch.setattr(sender, "MAX_HEARTBEAT_INTERVAL_S", 0.05)

        async def answering(_: Got) -> Reply:
            await asyncio.sleep(60)
            return Reply(200, b"too late")

        world.receiver.answering = answering
        slow, cancelled = await world.send("slow"), await world.send("cancelled")
        await world.receiver.has_got(2)
        await world.served.app.platform.tenants.list_open()[0].client.cancel(cancelled)
        await world.failed(slow, 1)
        [one] = await world.deliveries(slow)
        assert "no answer within 1 s" in one["reason"], "whatever the lease is"
        await world.receiver.was_broken_off(2)
        refused = await world.http.put("/v1/addresses/slow", json={"webhook_timeout": 301})
        assert refused.status_code == 422


async def test_secrets_are_shown_once_and_both_sign_while_they_are_exchanged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with a_world() as world:
        old = await world.hook("hooked")
        assert await world.hook("hooked", max_deliveries=5) is None
        answer = await world.http.post("/v1/addresses/hooked/webhook/secret", json={"overlap": 100})
        new = answer.json()["webhook_secret"]
        assert answer.json()["old_secret_expires_at"] == "1970-01-12T13:48:20Z"
        newest = ""
        for number, (waits, signs) in enumerate([(0, [True, True]), (101, [False, True])], 1):
            await world.advance(waits)
            await world.run(await world.send("hooked"), "completed")
            got = await world.receiver.has_got(number)
            assert [got.signed_by(old), got.signed_by(new)] == signs
            assert verify(got.headers, got.body, [old, new], now=world.clock.now)["address"] == "hooked"
        for _ in range(2):
            newest = (await world.http.post("/v1/addresses/hooked/webhook/secret")).json()["webhook_secret"]
        await world.run(await world.send("hooked"), "completed")
        got = await world.receiver.has_got(3)
        assert (got.signed_by(newest), got.signed_by(new), len(got.headers["webhook-signature"].split())) == (
            True,
            False,
            2,
        )
        seen = (await world.http.get("/v1/addresses/hooked")).text + (await world.http.get("/v1/addresses")).text
        assert world.receiver.url in seen
        assert "whsec_" not in seen + caplog.text
        for secret in (old, new, newest):
            assert secret.removeprefix("whsec_") not in seen + caplog.text
        await world.http.put("/v1/addresses/hooked", json={"webhook": None})
        gone = await world.http.post("/v1/addresses/hooked/webhook/secret")
        assert (gone.status_code, "has no webhook" in gone.json()["detail"]) == (422, True)
        assert await world.hook("hooked") not in (None, old, new, newest)


async def test_settings_that_change_count_from_the_next_delivery_on():
    async with a_world() as world:
        await world.hook("hooked")
        for number, lease in enumerate((30, 60, 20), 1):
            await world.http.put("/v1/addresses/hooked", json={"lease": lease})
            await world.advance(3)
            await world.run(await world.send("hooked"), "completed")
            assert (await world.receiver.has_got(number)).delivery["lease"] == lease
            await asyncio.sleep(0.05)  # somebody waits for the next one by now


async def test_many_go_out_at_once_but_not_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "MAX_PER_ADDRESS", 3)
    monkeypatch.setattr(sender, "MAX_REQUESTS", 5)
    async with a_world() as world:
        at_once = {"one": 0, "two": 0}
        most = {"one": 0, "two": 0, "both": 0}
        all_out = {"one": asyncio.Event(), "two": asyncio.Event(), "both": asyncio.Event()}

        async def answering(got: Got) -> Reply:
            address = got.delivery["address"]
            at_once[address] += 1
            most[address] = max(most[address], at_once[address])
            most["both"] = max(most["both"], sum(at_once.values()))
            for name, limit in (("one", 3), ("two", 3), ("both", 5)):
                if most[name] == limit:
                    all_out[name].set()
            # Nobody is answered before there is as much under way as may be, and a moment for more to come.
            async with asyncio.timeout(20):
                await asyncio.gather(all_out[address].wait(), all_out["both"].wait())
            await asyncio.sleep(0.05)
            at_once[address] -= 1
            return Reply(204)

        world.receiver.answering = answering
        await world.hook("one")
        await world.hook("two")
        runs = [await world.send(address) for _ in range(9) for address in ("one", "two")]
        for run in runs:
            await world.run(run, "completed")
        assert most == {"one": 3, "two": 3, "both": 5}
        assert len(world.receiver.got) == len(runs)


async def test_a_receiver_that_does_not_answer_stops_no_other_namespace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "MAX_PER_NAMESPACE", 2)
    monkeypatch.setattr(sender, "MAX_REQUESTS", 3)
    async with a_world() as world:
        answered = asyncio.Event()

        async def answering(got: Got) -> Reply:
            if got.delivery["payload"] == "slow":
                await answered.wait()
            return Reply(204)

        world.receiver.answering = answering
        tokens = {name: await world.served.key("admin", namespace=name, name=name) for name in ("slow", "quick")}
        callers = {name: world.served.caller(token) for name, token in tokens.items()}
        for caller in callers.values():
            await caller.put("/v1/addresses/hooked", json={"webhook": world.receiver.url})
        for _ in range(5):
            await callers["slow"].post("/v1/addresses/hooked/send", json={"payload": "slow"})
        await world.receiver.has_got(2)
        for number in range(3):
            sent = await callers["quick"].post("/v1/addresses/hooked/send", json={"payload": number})
            ended = await callers["quick"].get(f"/v1/runs/{sent.json()['id']}", params={"wait": 20})
            assert ended.json()["state"] == "completed"
        assert [got.delivery["payload"] for got in world.receiver.got] == ["slow", "slow", 0, 1, 2]
        answered.set()


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_server_that_stops_waits_a_moment_for_responses_and_releases_everything_else(
    monkeypatch: pytest.MonkeyPatch, in_time: bool
):
    monkeypatch.setattr(sender, "SHUTDOWN_GRACE_S", 10 if in_time else 0.3)
    monkeypatch.setattr(sender, "MAX_REQUESTS", 1)
    second_taken = asyncio.Event()

    class WatchedErrand(sender.WebhookDelivery):
        async def run(self, *args: Any) -> None:
            if world.receiver.got:
                second_taken.set()
            await super().run(*args)

    monkeypatch.setattr(sender, "WebhookDelivery", WatchedErrand)
    async with a_world() as world:
        answered = asyncio.Event()

        async def answering(_: Got) -> Reply:
            await answered.wait()
            return Reply(204)

        world.receiver.answering = answering
        await world.hook("hooked")
        runs = [await world.send("hooked")]
        await world.receiver.has_got(1)
        runs.append(await world.send("hooked"))
        # It waits for the first one's slot. That the store says it is held does not mean that this server knows.
        await asyncio.wait_for(second_taken.wait(), 20)
        platform = world.served.app.platform
        connections = platform.tenants.list_open()[0].connections
        after: list[Any] = []

        async def closing() -> None:  # what the store says when the sender has stopped
            for run in runs:
                row, [delivery] = await connections.read(run), await read_deliveries(connections, run)
                after.append((row.state, row.delivery_count, delivery.state, delivery.reason))

        monkeypatch.setattr(platform.tenants.list_open()[0].dispatcher, "close", closing)
        if in_time:
            asyncio.get_running_loop().call_later(0.2, answered.set)
    given_back = ("pending", 0, "returned", "the server has stopped")
    assert after == [("completed", 0, "completed", "") if in_time else given_back, given_back]
    assert (len(world.receiver.got), world.receiver.broken_off) == (1, 0 if in_time else 1)


async def test_a_redirect_is_followed_on_the_same_host_only():
    async with a_world(allowed_webhook_hosts=("127.0.0.1", "localhost")) as world:
        secret = await world.hook("hooked")
        port = world.receiver.port
        world.receiver.replies = [Reply(307, b"", {"location": "/new"}), Reply(308, b"", {"location": "newer"})]
        await world.run(await world.send("hooked"), "completed")
        assert [got.path for got in world.receiver.got] == ["/hook", "/new", "/newer"]
        assert all(got.signed_by(secret) for got in world.receiver.got)
        assert len({got.headers["webhook-id"] for got in world.receiver.got}) == 1
        for location, why in (
            (f"http://localhost:{port}/new", "redirects to another host"),
            ("http://169.254.169.254/latest/meta-data", "must be https"),
            ("https://10.0.0.1/", "redirects to another host"),
            ("http://me:secret@127.0.0.1/", "no user name"),
            ("file:///etc/passwd", "must begin with https"),
            ("http://[::1", "does not say where to"),
            ("", "does not say where to"),
        ):
            seen = len(world.receiver.got)
            world.receiver.replies = [Reply(307, b"", {"location": location} if location else {})]
            run = await world.send("hooked")
            await world.failed(run, 1)
            assert why in (await world.deliveries(run))[0]["reason"], location
            assert len(world.receiver.got) == seen + 1
        world.receiver.replies = [Reply(307, b"", {"location": "/round"})] * 4
        run = await world.send("hooked")
        await world.failed(run, 1)
        assert "redirects more than 3 times" in (await world.deliveries(run))[0]["reason"]


async def test_a_webhook_that_cannot_be_is_refused_when_it_is_set():
    async with a_world() as world:
        for url, why in (("https://127.0.0.2/", "not public"), ("http://93.184.215.14/", "must be https")):
            answer = await world.http.put("/v1/addresses/refused", json={"webhook": url, "max_deliveries": 9})
            assert answer.status_code == 422
            assert why in answer.json()["detail"]
            assert "--allow-webhook-to" in answer.json()["detail"]
        assert (await world.http.get("/v1/addresses/refused")).status_code == 404  # nothing of it is kept


async def test_a_receiver_accepts_only_signed_and_new_requests():
    async with a_world() as world:
        secret = await world.hook("hooked")
        await world.run(await world.send("hooked"), "completed")
        got = world.receiver.got[0]
    now = 1_000_000
    upper = {name.title(): value for name, value in got.headers.items()}
    assert verify(upper, got.body, secret, now=now + 299)["number"] == 1
    other = "whsec_" + "A" * 43 + "="
    for headers, body, given, at, why in (
        (got.headers, got.body + b" ", secret, now, "not signed with this secret"),
        (got.headers | {"webhook-id": "1_other"}, got.body, secret, now, "not signed with this secret"),
        (got.headers | {"webhook-timestamp": "1000001"}, got.body, secret, now, "not signed with this secret"),
        (got.headers | {"webhook-signature": "v1,"}, got.body, secret, now, "not signed with this secret"),
        (got.headers, got.body, other, now, "not signed with this secret"),
        (got.headers, got.body, [], now, "not signed with this secret"),
        (got.headers, got.body, secret, now + 301, "301 s ago"),
        (got.headers, got.body, secret, now - 301, "301 s from now"),
        ({}, got.body, secret, now, "no header webhook-id and no webhook-timestamp and no webhook-signature"),
    ):
        with pytest.raises(WebhookVerificationFailed, match=why):
            verify(headers, body, given, now=at)
    with pytest.raises(UsageError, match="begins with whsec_"):
        verify(got.headers, got.body, "hf_no_secret", now=now)
