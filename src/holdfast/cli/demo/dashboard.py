"""The dashboard, served from the demo's process until Ctrl-C, and the browser that shows it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import webbrowser
from urllib.parse import quote

from holdfast.errors import UsageError

BROWSER_WAIT_S = 20.0
"""How long to wait for a browser. Then the demo starts without it: the page can be opened at any time."""
_PAGE_LOAD_S = 1.5
"""How long a browser gets to show the page, once it has connected."""
_START_TIMEOUT_S = 20.0


def has_browser() -> bool:
    """Whether there is a browser with a window. A text browser would take over the terminal that shows the demo."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return bool(os.environ.get("BROWSER")) or type(browser) is not webbrowser.GenericBrowser


class DashboardServer:
    """A server of the dashboard, in a thread with an event loop of its own: that of the demo is busy."""

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
        self._address = f"http://{DEFAULT_HOST}:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Start the thread, and wait until it serves."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise UsageError(f"the dashboard did not start within {_START_TIMEOUT_S:g} s")

    def stop(self) -> None:
        """Stop the server and its thread."""
        self._server.stop()
        self._thread.join(5.0)

    async def _serve(self) -> None:
        async with self._app.running():
            await self._server.serve([self._socket])

    def get_run_url(self, run_id: str) -> str:
        """The page of a run."""
        return f"{self._address}/#/runs/{quote(run_id, safe='')}"

    async def show_run(self, run_id: str) -> bool:
        """Open a browser on the page of a run, and wait until it is shown; false if no browser connects in time."""
        failed = threading.Event()

        def open_browser() -> None:  # some browsers return only when they are closed
            if not webbrowser.open(self.get_run_url(run_id)):
                failed.set()

        threading.Thread(target=open_browser, name="browser", daemon=True).start()
        deadline = time.monotonic() + BROWSER_WAIT_S
        while not self._server.server_state.connections:
            if failed.is_set() or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        await asyncio.sleep(_PAGE_LOAD_S)
        return True
