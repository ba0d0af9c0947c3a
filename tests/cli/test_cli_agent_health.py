"""``holdfast agents``: whether live workers serve them."""

from __future__ import annotations

import re

from cli_project import Project

from waits import wait_until_sync


def test_agents_are_listed_with_their_health(lab: Project):
    out = lab.here("agents").out
    assert re.match(r"agent +state +workers +last heartbeat +runs\n", out)
    assert re.search(r"^research +unserved +0 ", out, re.M)
    [research] = [one for one in lab.here("agents", "--json").json if one["name"] == "research"]
    assert (research["state"], research["worker_count"], research["is_agent"]) == ("unserved", 0, True)
    assert sum(research["run_counts"].values()) >= 1


def test_only_all_lists_workflows(seeded: Project):
    assert seeded.here("agents").out.startswith("no worker has announced any agent yet: ")
    assert seeded.here("agents", "--json").json == []
    assert re.search(r"^order +unserved ", seeded.here("agents", "--all").out, re.M)
    assert "'order': 1 run to continue, and no worker serves it" in seeded.here("agents", "--all").out


def test_a_killed_worker_is_silent_and_a_disabled_workflow_is_shown(seeded: Project):
    def health() -> str:
        [one] = [one for one in seeded.here("agents", "--all", "--json").json if one["name"] == "nap"]
        return one["state"]

    worker = seeded.worker("app:nap")
    try:
        wait_until_sync(lambda: health() == "serving")
        assert re.search(r"^nap +serving +1 +\S+", seeded.here("agents", "--all").out, re.M)
        seeded.here("disable", "nap")
        assert health() == "disabled"
        output = seeded.here("agents", "--all").out
        assert "'nap' is disabled: `holdfast enable nap` lets its runs continue" in output
        seeded.here("enable", "nap")
    finally:
        worker.kill()
        worker.communicate(timeout=20)
    assert health() == "silent"  # nobody has looked yet but this command
