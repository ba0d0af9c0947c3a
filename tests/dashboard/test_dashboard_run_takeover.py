"""A run's page is open while its workers are killed with SIGKILL, and tells what happened without being loaded again.

The workers are processes of their own, on one SQLite file; the server is in the test's process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import takeover_app
from accessibility import violations
from live_server import running_live_server

import holdfast
from holdfast import Client
from waits import wait_until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL"),
]

WORDS = takeover_app.SPEECH.split()


class Scene:
    """A store, workers, and a server with the page on it."""

    def __init__(self, folder: Path, address: str, client: Client) -> None:
        self.folder, self.address, self.client = folder, address, client
        self.workers: list[subprocess.Popen[str]] = []

    def worker(self, **settings: object) -> subprocess.Popen[str]:
        """One more; ``settings`` go into its environment."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")},
            "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
            "HOLDFAST_URL": url_of(self.folder),
            "GATES": str(self.folder),
            **{name: str(value) for name, value in settings.items()},
        }
        command = [sys.executable, str(Path(takeover_app.__file__)), "worker"]
        with (self.folder / f"worker-{len(self.workers)}.log").open("w") as log:
            worker = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.workers.append(worker)
        return worker

    async def serves(self, worker: subprocess.Popen[str]) -> None:
        """Until it does."""
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"

    def kill(self, worker: subprocess.Popen[str]) -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    async def start(self, workflow: str, id: str, **inputs: Any) -> None:
        async with httpx2.AsyncClient(base_url=self.address) as http:
            answer = await http.post("/v1/runs", json={"workflow": workflow, "id": id, "kwargs": inputs})
            assert answer.status_code == 201, answer.text

    async def begun(self, name: str) -> None:
        """Until a step has opened this gate of its own."""

        async def there() -> bool:
            return (self.folder / name).exists()

        await wait_until(there)

    def open(self, name: str) -> None:
        (self.folder / name).touch()


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}"


@asynccontextmanager
async def scene(folder: Path) -> AsyncGenerator[Scene]:
    async with running_live_server(url_of(folder)) as server, Client(url_of(folder)) as client:
        here = Scene(folder, server.address, client)
        try:
            yield here
        finally:
            for worker in here.workers:
                worker.kill()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()


async def test_the_page_shows_a_worker_death_the_takeover_and_the_end(
    page: Any, tmp_path: Path, keep_picture: Any
) -> None:
    async with scene(tmp_path) as here:
        victim = here.worker(PAUSE=0.3)
        heir = here.worker(PAUSE=0.03, LATER="later")
        await here.serves(victim)
        await here.start("tide_reporter", "tides", prompt="What are tides?")
        await here.start("night_watch", "night", name="storm")
        await here.start("lamp_purchase", "buying", item="lamp")
        await here.begun("storm-begun")
        await here.begun("paying")

        await page.goto(f"{here.address}/#/runs/tides?tab=conversation")
        await page.evaluate("window.stays = true")
        flight = page.locator(".said.flight")
        await flight.get_by_text(" ".join(WORDS[:4])).wait_for()  # it speaks, word by word
        here.open("later")
        await here.serves(heir)
        here.kill(victim)
        taken = page.locator(".said.taken-back")
        await taken.wait_for()  # what the dead one had said is not silently replaced
        assert (await taken.locator("del").inner_text()).startswith(" ".join(WORDS[:4]))
        await keep_picture(page, "dashboard-conversation")
        answer = page.locator(".said.model", has_text="answer").filter(has_text=takeover_app.SPEECH)
        await answer.wait_for()
        await page.get_by_text("completed", exact=True).wait_for()
        assert await page.locator(".said.flight").count() == 0
        assert await violations(page) == []

        await page.keyboard.press("[")  # the timeline, by keyboard
        await page.locator(".row.takeover.died").wait_for()
        text = await page.locator(".row.takeover.died").inner_text()
        assert "died here" in text
        assert "took over" in text
        assert await page.locator(".row .marks", has_text="replayed ×1").count() == 6
        assert await page.get_by_text("completed", exact=True).count() == 1
        await keep_picture(page, "dashboard-takeover")
        await page.locator(".row").get_by_role("button", name="model call").nth(1).click()
        await page.get_by_label("step 5 model call").get_by_text("read_almanac").wait_for()
        await keep_picture(page, "dashboard-run")

        # A step that had begun is run again by the one that took over, and the page shows it while it is in flight.
        await page.goto(f"{here.address}/#/runs/night")
        await page.locator(".row.flight", has_text="keep_watch").wait_for()
        here.open("storm")
        await page.locator(".row", has_text="place_order").nth(1).wait_for()
        await page.get_by_text("completed", exact=True).wait_for()
        assert await page.evaluate("window.stays")  # nothing was loaded again

        # Nobody knows whether the payment happened: a person says so on the page, and the run goes on.
        await page.goto(f"{here.address}/#/runs/buying")
        await page.get_by_text("failed", exact=True).first.wait_for()
        advice, dialog = page.get_by_role("list", name="what to do now"), page.get_by_role("dialog")
        await advice.get_by_role("button", name="Retry …").click()
        again = dialog.get_by_role("button", name="Retry")
        assert await again.is_disabled()  # it would happen a second time, perhaps
        await dialog.get_by_label("A step that must happen only once may run a second time.").check()
        assert await again.is_enabled()
        await dialog.get_by_role("button", name="Leave it").click()
        await advice.get_by_role("button", name="Settle it").click()
        await dialog.get_by_label("What it returned").fill('"receipt 17"')
        assert await violations(page) == []
        await dialog.get_by_role("button", name="It happened").click()
        await page.get_by_text("completed", exact=True).wait_for()
        await page.get_by_text("settled by a person", exact=True).wait_for()
        assert (await here.client.get("buying")).output == ["order of lamp", "receipt 17"]
