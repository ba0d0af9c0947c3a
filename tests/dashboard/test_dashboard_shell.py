"""The frame around all pages: it loads without a complaint, under a strict policy, and asks for a key when it must."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from accessibility import violations
from live_server import running_live_server

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_content_security_policy_lets_only_the_pages_own_files_run(page: Any) -> None:
    async with running_live_server() as server:
        answer = await page.goto(server.address)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        await page.get_by_role("navigation").get_by_text("Runs", exact=True).wait_for()
        await page.get_by_text("live", exact=True).wait_for()
        assert await violations(page) == []


async def test_an_unknown_key_is_rejected_and_a_known_one_opens_the_pages(page: Any) -> None:
    page.allowed += ["401"]
    async with running_live_server() as server, httpx2.AsyncClient(base_url=server.address) as client:
        token = (await client.post("/v1/keys", json={"name": "ada", "scopes": ["read"]})).json()["token"]
        await page.goto(server.address)
        await page.get_by_label("API key").fill("hf_no_such")
        await page.get_by_role("button", name="Open").click()
        await page.get_by_role("alert").get_by_text("was revoked, or has expired").wait_for()
        assert await violations(page) == []
        await page.get_by_label("API key").fill(token)
        await page.get_by_role("button", name="Open").click()
        await page.get_by_text("live", exact=True).wait_for()


async def test_an_unchanged_file_is_revalidated_and_not_sent_again() -> None:
    async with running_live_server() as server, httpx2.AsyncClient(base_url=server.address) as client:
        first = await client.get("/ui/js/main.js")
        assert first.headers["content-type"].startswith("text/javascript")
        again = await client.get("/ui/js/main.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.get("/ui/../app.py")).status_code == 404
        assert (await client.get("/ui/%2e%2e/__init__.py")).status_code == 404
        assert (await client.post("/")).status_code in (404, 405)


async def test_an_old_key_does_not_lock_out_a_reader_where_no_key_is_needed(page: Any) -> None:
    page.allowed += ["401"]
    async with running_live_server() as server:
        await page.add_init_script(
            "sessionStorage.getItem('holdfast-key') ?? sessionStorage.setItem('holdfast-key', 'hf_old')"
        )
        await page.goto(server.address)
        await page.get_by_role("alert").get_by_text("was revoked, or has expired").wait_for()
        assert await violations(page) == []
        await page.get_by_role("button", name="Without a key").click()
        await page.get_by_text("live", exact=True).wait_for()
