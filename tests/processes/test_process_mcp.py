"""A worker is killed while it waits for an MCP server: another one starts its own, and no server is left behind."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

from agent_processes import RUN, AgentWorld, ForkServer, call, turn
from mcp_ledger import is_alive, ledger

from waits import wait_until_sync

SCRIPT = {
    "killed-clerk": [
        turn("", call("add", a=1, b=2)),
        turn("", call("look", name="held"), call("put", name="held"), call("book", name="held")),
        turn("{results}"),
    ]
}
HELD = ("look", "put", "book")


def test_a_worker_killed_while_mcp_tools_run_is_followed_by_one_that_repeats_what_may_be_repeated(
    folder: Path, agent_forks: ForkServer
):
    with AgentWorld(folder, agent_forks, SCRIPT) as world:
        desk = world.folder / "desk"
        desk.mkdir()
        (desk / "held.hold").touch()

        def calls() -> list[dict[str, Any]]:
            return [one for one in ledger(desk) if one["name"] == "held" and not one.get("cancelled")]

        def pids() -> list[int]:
            return [one["pid"] for one in ledger(desk) if one["tool"] == "start"]

        process = world.fork("program", AGENT="clerk")
        wait_until_sync(lambda: len(calls()) == len(HELD), "all three calls are in flight", describe=world.describe)
        [first] = pids()
        process.kill()
        wait_until_sync(
            lambda: not is_alive(first), "the server of a killed worker ends by itself", describe=lambda: ledger(desk)
        )
        (desk / "held.hold").unlink()

        worker = world.serve("clerk")
        output = world.wait_for_end(RUN).output["output"]
        [_, second] = pids()
        assert "look: held, put: held, " in output
        assert "The process stopped while the tool 'book' ran; it may or may not have happened" in output
        assert Counter((one["tool"], one["pid"]) for one in calls()) == {
            **{(tool, first): 1 for tool in HELD},
            ("look", second): 1,
            ("put", second): 1,
        }
        # What was recorded is not asked for again: neither what there is, nor what came of the first call.
        asked = Counter((one["tool"], one["pid"]) for one in ledger(desk))
        assert (asked["tools/list", first], asked["tools/list", second]) == (3, 0)
        assert (asked["add", first], asked["add", second]) == (1, 0)
        assert set(world.count_turns().values()) == {1}

        worker.send(signal.SIGTERM)
        worker.ends()
        assert not is_alive(second), "a worker that stops in good order takes its servers along"
        assert "Traceback" not in worker.stderr_messages
        assert "Task was destroyed" not in worker.stderr_messages
