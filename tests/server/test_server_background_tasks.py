"""What runs beside the requests goes on, whatever goes wrong with one look."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.server.background.tasks import poll_tenants, running_task
from holdfast.server.tenants import Tenant, Tenants

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("error", [StoreUnavailable("it is away"), OverflowError("a time that there is not")])
async def test_a_failed_poll_is_logged_and_delays_neither_other_namespaces_nor_the_next_poll(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    tenants, looks, both = Tenants("memory://"), Counter[str](), asyncio.Event()
    for namespace in ("default", "acme"):
        await tenants.get_tenant(namespace)

    async def look(tenant: Tenant) -> None:
        looks[tenant.namespace] += 1
        if min(looks["default"], looks["acme"]) == 2:
            both.set()
        if tenant.namespace == "default":
            raise error

    async with running_task(poll_tenants(tenants, look, interval_s=0.0, error_message="it could not be looked at")):
        await asyncio.wait_for(both.wait(), 10)
    await tenants.close()
    assert "namespace 'default': it could not be looked at" in caplog.text
    assert str(error) in caplog.text
    assert "'acme'" not in caplog.text
