"""A page for the dashboard's tests, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from browsers import PICTURES, chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Any]:
    """One for a module; its tests have ``pytest.mark.asyncio(loop_scope="module")``."""
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Any) -> AsyncGenerator[Any]:
    """A page of its own for each test. What it complains about, in its console or by an exception, fails the test."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", locale="en-GB")
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    # Words of complaints that are expected: the browser's own about a server that is gone, as it is at a test's end.
    page.allowed = ["net::ERR_CONNECTION_REFUSED"]
    page.set_default_timeout(30_000)
    yield page
    await context.close()
    assert [one for one in complaints if not any(words in one for words in page.allowed)] == []


@pytest.fixture
def keep_picture(request: pytest.FixtureRequest) -> Any:
    """Keeps what a page shows as a picture in docs/images, with ``--screenshots``."""

    async def keep(page: Any, name: str, **more: Any) -> None:
        if request.config.getoption("--screenshots"):
            PICTURES.mkdir(exist_ok=True)
            await page.screenshot(path=PICTURES / f"{name}.png", animations="disabled", **more)

    return keep
