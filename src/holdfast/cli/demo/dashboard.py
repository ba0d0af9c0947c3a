"""The demo on a page: the dashboard, served from this process while the demo goes on, and until Ctrl-C afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import webbrowser
from urllib.parse import quote

from holdfast.errors import UsageError

PAGE_LOAD_S = 1.5
"""Seconds that a browser gets to show the page, once it has connected."""
BROWSER_WAIT_S = 20.0
"""Seconds that a browser gets to connect. Then the demo begins without it: the page can be opened at any time."""
_START_TIMEOUT_S = 20.0


def has_browser() -> bool:
    """Whether there is a browser with a window. A text browser would take over the terminal that shows the demo."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return bool(os.environ.get("BROWSER")) or type(browser) is not webbrowser.GenericBrowser


class DashboardServer:
    """A server of the dashboard, in a thread with an event loop of its own: the demo's is busy watching."""

    def __init__(self, url: str) -> None:
        try:
            from holdfast.server.app import create_app
            from holdfast.server.uvicorn_server import DEFAULT_HOST, UvicornServer
        except UsageError as error:
            raise UsageError(f"`holdfast demo --open` serves a page: {error}") from None
        self._socket = socket.create_server((DEFAULT_HOST, 0))
        self._app = create_app(url)
        self._started = threading.Event()
        self._server = UvicornServer(self._app, on_started=self._started.set, grace_s=1.0)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="dashboard", daemon=True)
        self.address = f"http://{DEFAULT_HOST}:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Serve."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise UsageError(f"the dashboard did not start within {_START_TIMEOUT_S:g} s")

    def stop(self) -> None:
        """Serve no more."""
        self._server.stop()
        self._thread.join(5.0)

    async def _serve(self) -> None:
        async with self._app.running():
            await self._server.serve([self._socket])

    def get_run_url(self, run_id: str) -> str:
        """Where a run is shown."""
        return f"{self.address}/#/runs/{quote(run_id, safe='')}"

    async def show_run(self, run_id: str) -> bool:
        """Open a browser on the page of a run, and wait until it is there; false if none came in time."""
        failed = threading.Event()

        def open_browser() -> None:  # some browsers let this return only when they are closed
            if not webbrowser.open(self.get_run_url(run_id)):
                failed.set()

        threading.Thread(target=open_browser, name="browser", daemon=True).start()
        deadline = time.monotonic() + BROWSER_WAIT_S
        while not self._server.server_state.connections:
            if failed.is_set() or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        await asyncio.sleep(PAGE_LOAD_S)
        return True
