"""A client over HTTP while servers and workers are killed: it waits, follows and starts as if nothing had happened."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

from app_processes import App, World

from free_ports import free_port
from holdfast import Client
from waits import wait_until_sync

STAGES = 3
RUN = "http-staged"


class Site:
    """Servers on one port, one after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.serve()

    def serve(self) -> None:
        self.server: App = self.world.spawn("http_server.py", PORT=self.port).wait_for_output("ready")


def in_background(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """In a thread that a failed test does not wait for."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def test_waiters_and_followers_get_everything_once_no_matter_which_process_is_killed(world: World):
    worker, site = world.worker(), Site(world)
    Client(site.url).options(id=RUN).start_sync("staged", STAGES)
    waiter = in_background(Client(site.url).wait_sync, RUN, 90)
    reader = in_background(lambda: [*Client(site.url).events_sync(RUN)])
    for stage in range(STAGES):
        mine = (f"stage {stage}", worker.pid)
        wait_until_sync(
            lambda mine=mine: mine in [(line.label, line.pid) for line in world.lines("hold", "start")],
            f"stage {stage} begins",
            describe=world.describe,
        )
        site.server.kill()
        if stage == 1:
            worker.kill()
            worker = world.worker()
        other = in_background(Client(site.url).start_sync, "sequential")
        world.open_gate(f"stage {stage}")
        wait_until_sync(
            lambda stage=stage: len(world.journal(RUN).records) > stage, "the run goes on", describe=world.describe
        )
        time.sleep(0.3)  # so that there are tries in vain
        site.serve()
        assert other.result(60)
    assert waiter.result(60) == [f"stage {number}" for number in range(STAGES)]
    told = [(event.kind, event.step) for event in reader.result(60) if event.kind != "started"]
    assert told == [*(("step", number + 1) for number in range(STAGES)), ("ended", None)]
    assert Counter(journal.workflow for journal in world.journals().values()) == {"staged": 1, "sequential": STAGES}
