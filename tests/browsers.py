"""The browser for tests: the machine's Chromium, driven by Playwright.

It prefers the headless shell, which does half the work. Without a browser, tests are skipped, unless
``HOLDFAST_BROWSER=required`` is set, as in the gate.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).parents[1] / "docs" / "images"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


@asynccontextmanager
async def chromium() -> AsyncGenerator[Any]:
    """A browser without pages."""
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if found is None:
        if os.environ.get("HOLDFAST_BROWSER") == "required":
            pytest.fail("HOLDFAST_BROWSER=required, and there is no chromium on the PATH (a Debian package)")
        pytest.skip("needs Chromium")
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield browser
        await browser.close()
