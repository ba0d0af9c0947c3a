"""The audit log, and how often somebody may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from asgi_server import Clock, running_server

from holdfast.errors import StoreUnavailable
from holdfast.server.app import Settings
from holdfast.server.auth.audit_log import AuditWriter
from holdfast.server.auth.rate_limits import RateLimiter
from holdfast.server.http.remote_addresses import get_network
from holdfast.services.problems import Problem
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.contract import Store
from holdfast.stores.grouped_calls import TurnCalls
from holdfast.stores.operations import Op, OpResult

pytestmark = pytest.mark.asyncio


def entry(target: str = "x") -> AuditEvent:
    return AuditEvent(1.0, "k", "key", "act", target, "allowed", "127.0.0.1")


@dataclass
class Log:
    """A store that notes entries when it is let."""

    fails: bool = False
    commits: list[list[str]] = field(default_factory=list[list[str]])
    let: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def audit_log(self) -> Log:
        return self

    async def append(self, entries: Sequence[AuditEvent]) -> None:
        await self.let.wait()
        if self.fails:
            raise StoreUnavailable("gone")
        self.commits.append([one.target for one in entries])


async def test_the_audit_log_has_allowed_and_denied_requests_with_their_targets():
    async with running_server() as served:
        admin, reader = await served.key("admin", name="boss"), await served.key("read", name="ci")
        boss, ci = served.caller(admin), served.caller(reader, remote="203.0.113.9")
        assert (await boss.put("/v1/addresses/jobs", json={})).status_code == 200
        assert (await ci.put("/v1/addresses/jobs", json={"nonsense": 1})).status_code == 403
        made = (await boss.post("/v1/keys", json={"name": "third", "scopes": ["read"]})).json()
        assert (await boss.get("/v1/keys")).status_code == 200  # which changes nothing
        assert (await boss.put("/v1/addresses/jobs", json={"nonsense": 1})).status_code == 422  # nothing to carry out
        page = (await boss.get("/v1/audit", params={"limit": 2})).json()
        rest = (await boss.get("/v1/audit", params={"limit": 2, "cursor": page["next"]})).json()
        assert rest["next"] is None
        entries = [
            (one["key_name"], one["action"], one["target"], one["outcome"]) for one in page["items"] + rest["items"]
        ]
        assert entries == [
            ("boss", "create_api_key", "third", "allowed"),
            ("ci", "set_address", "jobs", "denied"),
            ("boss", "set_address", "jobs", "allowed"),
        ]
        assert page["items"][1]["remote_address"] == "203.0.113.9"
        assert page["items"][1]["key_id"] == reader.split("_")[1]
        assert made["token"] not in str(page)


async def test_a_request_that_cannot_be_audited_is_not_carried_out(monkeypatch: pytest.MonkeyPatch):
    async with running_server() as served:
        store = await served.app.platform.tenants.get_default_store()

        async def fail(entries: Sequence[AuditEvent]) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(store.audit_log, "append", fail)
        http = served.caller()
        assert (await http.put("/v1/addresses/jobs", json={})).status_code == 503
        assert (await http.get("/v1/addresses/jobs")).status_code == 404
        monkeypatch.undo()
        assert (await http.put("/v1/addresses/jobs", json={})).status_code == 200
        [noted] = await store.audit_log.list()
        assert (noted.event.key_id, noted.event.key_name) == ("", "local")


async def test_a_start_and_its_audit_entry_are_one_transaction(monkeypatch: pytest.MonkeyPatch):
    async with running_server() as served:
        store = await served.app.platform.tenants.get_default_store()
        http, commits, commit = served.caller(), list[list[str]](), store.commit
        tenant = await served.app.platform.tenants.get_tenant("default")

        async def note(ops: Sequence[Op]) -> list[OpResult]:
            commits.append([type(op).__name__ for op in ops])
            return await commit(ops)

        async def fail(ops: Sequence[Op]) -> list[OpResult]:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(tenant, "commits", TurnCalls(fail))
        assert (await http.post("/v1/addresses/jobs/send", json={"id": "a"})).status_code == 503
        assert await store.audit_log.list() == []
        monkeypatch.setattr(tenant, "commits", TurnCalls(note))
        assert (await http.post("/v1/addresses/jobs/send", json={"id": "a"})).status_code == 201
        assert commits == [["AuditEvent", "StartRun"]]
        # A request that is refused before it changes anything has an entry as well.
        refused = await http.post("/v1/addresses/jobs/send", json={"id": "b", "version": "1"})
        assert refused.status_code == 422
        assert [row.event.target for row in await store.audit_log.list()] == ["jobs/b", "jobs/a"]


async def test_entries_that_come_in_together_share_a_commit():
    store = Log()
    auditor = AuditWriter(cast(Store, store))
    noting = [asyncio.create_task(auditor.append(entry(str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in noting)  # nothing is durable yet
    noting += [asyncio.create_task(auditor.append(entry(str(number)))) for number in range(50, 100)]
    await asyncio.sleep(0)
    store.let.set()
    await asyncio.gather(*noting)
    assert len(store.commits) == 2
    assert [int(target) for commit in store.commits for target in commit] == list(range(100))


async def test_a_failing_store_fails_the_waiting_entries_and_no_later_ones():
    store = Log(fails=True)
    auditor = AuditWriter(cast(Store, store))
    gone = asyncio.create_task(auditor.append(entry("gone")))
    noting = [asyncio.create_task(auditor.append(entry())) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()  # whoever hangs up takes nobody else with it
    store.let.set()
    ended = await asyncio.gather(gone, *noting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError, *[StoreUnavailable] * 3]
    store.fails = False
    await auditor.append(entry("after"))
    assert store.commits == [["after"]]


# Rates


async def test_the_rate_limit_of_a_key_does_not_affect_others():
    clock = Clock(1000.0)
    async with running_server(settings=Settings(requests_per_s=2.0, clock=clock)) as served:
        busy, other = served.caller(await served.key("read")), served.caller(await served.key("read"))
        codes = [(await busy.get("/v1/whoami")).status_code for _ in range(6)]
        assert codes == [200] * 4 + [429] * 2  # twice the rate at once
        refused = await busy.get("/v1/whoami")
        assert (refused.headers["retry-after"], refused.json()["type"]) == ("1", "too-many-requests")
        assert (await other.get("/v1/whoami")).status_code == 200
        clock.now += 0.5
        assert [(await busy.get("/v1/whoami")).status_code for _ in range(2)] == [200, 429]
        clock.now -= 10_000  # somebody sets the clock: nobody is locked out for as long
        assert (await busy.get("/v1/whoami")).status_code == 429
        clock.now += 1
        assert (await busy.get("/v1/whoami")).status_code == 200
        # What needs no key is counted by address.
        assert [(await served.caller(remote="10.0.0.1").get("/v1/health")).status_code for _ in range(5)][-1] == 429


async def test_addresses_of_one_network_of_ipv6_count_together():
    assert get_network("2001:db8:1:2:aaaa::1") == get_network("2001:db8:1:2:bbbb::2") != get_network("2001:db8:1:3::1")
    assert get_network("::ffff:10.0.0.1") == get_network("10.0.0.1") != get_network("10.0.0.2")
    rates = RateLimiter(1.0, 2.0, Clock(1000.0))
    for number in range(20_000):  # so many that the first are forgotten
        rates.count_request(str(number))
    with pytest.raises(Problem):
        [rates.count_request("19999") for _ in range(2)]
