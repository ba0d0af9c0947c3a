"""What a server tells of itself, and whom it lets in."""

from __future__ import annotations

import pytest
from asgi_server import running_server

pytestmark = pytest.mark.asyncio


async def test_a_local_program_needs_no_key_until_there_is_one():
    async with running_server() as served:
        anybody = served.caller()
        assert (await anybody.get("/v1/health")).json()["ok"] is True
        me = (await anybody.get("/v1/whoami")).json()
        assert (me["key_id"], me["namespace"]) == (None, "default")
