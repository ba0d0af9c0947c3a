"""A graph with a checkpointer whose process is killed: its thread continues from the last super-step that was kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_kit import App, Kill, open_store, run_app

NODES = ["search", "choose", "charge", "report"]
POINTS = [f"{phase}:{name}" for name in NODES for phase in ("start", "end")]
APP = App(Path(__file__).with_name("checkpointed_app.py"), {})


@pytest.mark.timeout(900)  # as many kills as were asked for
def test_a_killed_graph_repeats_the_node_that_was_running_and_no_earlier_one(
    tmp_path: Path, request: pytest.FixtureRequest
):
    count = min(request.config.getoption("--kills"), len(POINTS))
    points = [POINTS[(2 * index + 1) * len(POINTS) // (2 * count)] for index in range(count)]
    for store in request.config.getoption("--kill-stores").split(","):
        for point in points:
            check_kill(store, point, tmp_path / f"{store}-{point}".replace(":", "-"))


def check_kill(store: str, point: str, folder: Path) -> None:
    with open_store(store, folder) as url:
        first = run_app(APP, folder, url, Kill(point, 1))
        assert first.returncode == -9, first.log
        second = run_app(APP, folder, url)
    assert second.result == str(NODES), second.log
    phase, _, killed = point.partition(":")
    number = NODES.index(killed)
    assert [first.effects[f"end:{name}"] for name in NODES[:number]] == [1] * number
    assert first.effects[f"end:{killed}"] == (phase == "end")  # it was done, and it is done again
    assert [second.effects[f"start:{name}"] for name in NODES] == [int(name in NODES[number:]) for name in NODES]
