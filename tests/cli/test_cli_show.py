from __future__ import annotations

import re
from collections.abc import Callable

from cli_project import Project


def test_show_tells_the_journal_of_a_completed_run(history: Project):
    done = history("show", "etl-acme")
    assert done.code == 0
    out = done.out
    assert re.search(r"^state +completed in \d", out, re.M)
    assert re.search(r"^inputs +customer='acme'$", out, re.M)
    assert re.search(r"^tags +nightly$", out, re.M)
    assert '"sum": 6' in out
    assert re.search(r"^ +1  extract +\+[\d.]+ m?s +[\d.]+ ms +1  ok$", out, re.M)
    assert re.search(r"^ +t1  timer 0.0\d+ s ", out, re.M)
    assert len(re.findall(r"load .* ok after 2 attempts$", out, re.M)) == 3
    assert re.search(r"^ +1  \S+:\d+, retired, 6 records$", out, re.M)


def test_show_keeps_credentials_out_of_the_arguments(history: Project):
    out = history("show", "etl-acme").out
    assert "customer='acme', api_key=***" in out
    assert "k-456" not in out


def test_show_tells_where_a_failed_run_broke(history: Project):
    out = history("show", "etl-bad").out
    assert re.search(r"^error +ValueError: \[red\]no such\[/red\] customer \\x1b\[31m$", out, re.M)
    assert re.search(r'File ".*app.py", line \d+, in etl\n +await check\(customer\)', out)
    assert re.search(r'File ".*app.py", line \d+, in check\n +raise ValueError', out)
    assert "holdfast/engine" not in out
    assert re.search(r"^ +5  check .* failed$", out, re.M)


def test_show_says_that_no_live_worker_serves_a_pending_run(history: Project):
    out = history("show", "order-8").out
    assert "nothing is recorded yet" in out
    assert "no live worker serves workflow 'order': start one with `holdfast worker module:order`" in out


def test_show_names_the_dead_worker_that_holds_a_run_and_the_intent_it_left(history: Project):
    out = history("show", "payer").out
    assert re.search(r"^held by +worker \d+ \(\S+:\d+\), which is dead: the next worker takes it over$", out, re.M)
    assert re.search(r"^ +2  \w+  `once` step, intent recorded .*: if its worker dies, nobody runs it", out, re.M)
    assert "no live worker serves workflow 'payer'" in out


def test_show_tells_who_holds_a_run_and_how_far_its_step_in_flight_is(seeded: Project, until: Callable[..., None]):
    seeded.start("copier")
    worker = seeded.worker("app:copier")
    try:
        until(lambda: "progress" in seeded("show", "copier").out)
        out = seeded("show", "copier").out
        assert re.search(rf"^held by +worker \d+ \(\S+:{worker.pid}\), alive$", out, re.M)
        assert "progress {'rows': 3}" in out
        assert "no live worker" not in out
    finally:
        worker.kill()
        worker.communicate(timeout=20)
    assert re.search(rf"^held by .*:{worker.pid}\), which is dead", seeded("show", "copier").out, re.M)


def test_show_says_why_a_run_is_dead_and_what_to_do(history: Project):
    out = history("show", "crasher").out
    assert re.search(r"^state +dead", out, re.M)
    assert "took its worker down 3 times in a row" in out
    assert "holdfast retry crasher" in out


def test_show_lists_signals_that_nothing_has_taken_yet(seeded: Project):
    assert seeded("signal", "order-7", "other", '{"by": "ann"}').code == 0
    out = seeded("show", "order-7").out
    assert re.search(r"^waits for +signal 'approved'", out, re.M)
    assert "other = {'by': 'ann'}, sent" in out


def test_show_as_json_has_everything(history: Project):
    run = history("show", "etl-acme", "--json").json
    assert (run["id"], run["state"], run["inputs"], run["output"]) == (
        "etl-acme",
        "completed",
        {"customer": "acme"},
        {"sum": 6},
    )
    assert [one["kind"] for one in run["journal"]] == ["step", "timer", "step", "step", "step", "step"]
    assert [one["number"] for one in run["journal"]][:2] == [1, 1]
    assert run["journal"][0]["output"] == [1, 2, 3]
    assert run["journal"][0]["replays"] == 0
    assert [worker["alive"] for worker in run["workers"] if worker["id"] == run["journal"][0]["worker"]] == [False]

    payer = history("show", "payer", "--json").json
    assert [(one["number"], one["once"]) for one in payer["in_flight"]] == [(2, True)]
    assert payer["stalled"].startswith("no live worker serves workflow 'payer'")

    failed = history("show", "etl-bad", "--json").json
    assert failed["error"]["type"] == "builtins.ValueError"
    assert "in check" in failed["journal"][-1]["error"]["traceback"]


def test_an_unknown_id_suggests_ids_like_it(history: Project):
    done = history("show", "etl-acm")
    assert (done.code, done.out) == (1, "")
    assert "there is no run 'etl-acm'" in done.err
    assert "Did you mean etl-acme" in done.err
    assert "`holdfast runs` lists those" in history("show", "zzz").err
