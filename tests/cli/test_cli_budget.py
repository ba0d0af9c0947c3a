"""``holdfast budget``."""

from __future__ import annotations

import json
import re

from cli_project import Project

from waits import wait_until_sync


def test_the_budget_of_a_run_is_shown_with_the_usage_of_its_run_tree(lab: Project):
    done = lab.here("budget", "rich-1")
    assert done.code == 0
    assert done.out.startswith(
        "rich-1 (rich), waiting\nused, with the runs below it: 3 model calls: 21,000 tokens in, 1,050 out, $0.063\n"
    )
    assert re.search(r"^ +tokens +25,000 +22,050 +2,950$", done.out, re.M)
    assert re.search(r"^ +rich-1:sub-2 +waiting +1 turn +10,500 tokens +\$0\.03$", done.out, re.M)
    data = lab.here("budget", "rich-1", "--json").json
    assert (data["budget"]["tokens"], data["used"]["input_tokens"] + data["used"]["output_tokens"]) == (25_000, 22_050)
    assert data["changed"] is False
    assert [(one["run_id"], one["used"]["calls"]) for one in data["children"]] == [
        ("rich-1:sub-3", 1),
        ("rich-1:sub-2", 1),
    ]


def test_a_run_without_a_budget_shows_which_budget_applies(lab: Project):
    assert "no budget: nothing limits what it uses" in lab.here("budget", "research-1").out
    below = lab.here("budget", "rich-1:sub-2")
    assert "\nit keeps to the budget of run 'rich-1', which is above it\n" in below.out
    assert [one["run_id"] for one in lab.here("budget", "rich-1:sub-2", "--json").json["ancestors"]] == ["rich-1"]


def test_only_what_is_given_is_changed(own_lab: Project):
    done = own_lab.here("budget", "poor-1", "--usd", "1")
    assert done.code == 0
    assert done.out.startswith(
        "run 'poor-1' has $0.97 of $1.00 and 8 of 9 turns left (used: 1 model call: 10,000 tokens in, 500 out, $0.03): "
        "it continues\nno live worker serves workflow 'poor'"
    )
    data = own_lab.here("budget", "poor-1", "--tokens", "50000", "--seconds", "60", "--json").json
    assert data["budget"] == {"usd": 1.0, "tokens": 50_000, "turns": 9, "seconds": 60.0}
    assert data["changed"] is True
    assert own_lab.here("budget", "poor-1", "--usd", "1", "--json").json["changed"] is False
    waits = "waits for  a worker: its budget was changed now, and it asks again"
    assert waits in re.sub(r"\d+ s ago", "now", own_lab.here("show", "poor-1").out)


def test_a_budget_that_is_already_used_up_is_reported(own_lab: Project):
    out = own_lab.here("budget", "poor-1", "--usd", "0.01").out
    assert "nothing is left of usd, so its next model call waits for a higher budget" in out


def test_child_runs_continue_with_the_new_budget_of_their_parent(own_lab: Project):
    data = json.loads(own_lab.here("budget", "rich-1", "--tokens", "100000", "--json").out)
    assert sorted(data["resumed_runs"]) == ["rich-1:sub-2", "rich-1:sub-3"]
    assert data["message"].endswith("run 'rich-1:sub-2' and run 'rich-1:sub-3' continue")
    worker = own_lab.worker("lab:rich")  # which serves the sub-agent, too
    try:
        wait_until_sync(lambda: own_lab.here("show", "rich-1", "--json").json["state"] == "completed")
    finally:
        worker.terminate()
        _, output = worker.communicate(timeout=20)
    assert "serves rich, sub from all queues" in output
    out = own_lab.here("show", "rich-1:sub-2").out
    assert re.search(r"^ +3  model call .* refused.*\n.*\n +4  another budget .* ok\n +5  model call .* ok$", out, re.M)
    assert re.search(r"^ +tokens +100,000 +44,100 +55,900$", own_lab.here("budget", "rich-1").out, re.M)
    assert own_lab.here("show", "rich-1").out.count("higher budget") == 0


def test_what_cannot_be_given_a_budget_says_why(own_lab: Project):
    ended = own_lab.here("budget", "research-1", "--usd", "3")
    assert (ended.code, ended.out) == (1, "")
    assert "run 'research-1' cannot be given another budget: it has completed" in ended.err
    below = own_lab.here("budget", "rich-1:sub-2", "--usd", "3")
    assert below.code == 1
    assert "run 'rich-1:sub-2' was started without a budget of its own" in below.err
    assert "budget of run 'rich-1', which is above it: `holdfast budget rich-1 --tokens 50000` gives that" in below.err
    unknown = own_lab.here("budget", "rich", "--usd", "3")
    assert unknown.code == 1
    assert "there is no run 'rich'" in unknown.err
    assert "Did you mean rich-1" in unknown.err
    assert own_lab.here("budget", "zzz").code == 1
    assert own_lab.here("budget", "poor-1", "--usd", "0").code == 2
    assert own_lab.here("budget", "poor-1", "--turns", "1.5").code == 2
