"""``holdfast demo --open``: whoever watches the page sees the kill and the takeover."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
]


async def read_line(demo: asyncio.subprocess.Process) -> str:
    assert demo.stdout is not None
    line = await demo.stdout.readline()
    assert line, "the demo has ended before its time"
    return line.decode()


async def test_the_demo_is_watched_in_a_browser(
    page: Any, tmp_path: Path, keep_picture: Any, request: pytest.FixtureRequest
) -> None:
    page.allowed += ["404 (Not Found)"]  # the page is there before the run is
    await page.set_viewport_size({"width": 1280, "height": 1240})
    pace = [] if request.config.getoption("--screenshots") else ["--fast"]
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli", "demo", "--open", *pace),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "BROWSER": "true %s", "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
    )
    assert demo.stdout is not None
    output = ""
    try:
        while (found := re.search(r"Watch it on (http://\S+)", output)) is None:
            output += await read_line(demo)
        await page.goto(found[1])  # before the run begins: the demo waits for it
        died = page.locator(".row.takeover.died")
        await died.wait_for(timeout=40_000)
        assert re.search(r"died here; \S+ took over", await died.inner_text())
        await page.get_by_text("completed", exact=True).wait_for(timeout=40_000)
        words = await page.locator("main").inner_text()
        assert "replayed 18 steps and repeated 1" in words
        assert await page.locator(".row .marks", has_text="replayed ×1").count() == 18
        await keep_picture(page, "demo")
        while "The page stays until Ctrl-C" not in output:
            output += await read_line(demo)
        await page.goto("about:blank")  # it would complain of the server that is gone
        demo.send_signal(signal.SIGINT)
        output += (await demo.stdout.read()).decode()
        assert await demo.wait() == 0, output
        assert "Not paid twice: 8 model calls" in output
    finally:
        if demo.returncode is None:
            demo.kill()
            await demo.wait()
        if folder := re.search(r"(\S+)/effects.log", output):
            shutil.rmtree(folder[1], ignore_errors=True)
