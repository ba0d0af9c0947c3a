from __future__ import annotations

import re

from cli_project import Project

from waits import wait_until_sync


def test_show_prints_the_journal_of_a_completed_run(history: Project):
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
    out = history.here("show", "etl-acme").out
    assert "customer='acme', api_key=***" in out
    assert "k-456" not in out


def test_show_prints_where_a_run_failed(history: Project):
    out = history.here("show", "etl-bad").out
    assert re.search(r"^error +ValueError: \[red\]no such\[/red\] customer \\x1b\[31m$", out, re.M)
    assert re.search(r'File ".*app.py", line \d+, in etl\n +await check\(customer\)', out)
    assert re.search(r'File ".*app.py", line \d+, in check\n +raise ValueError', out)
    assert "holdfast/engine" not in out
    assert re.search(r"^ +5  check .* failed$", out, re.M)


def test_show_says_that_no_live_worker_serves_a_pending_run(history: Project):
    out = history.here("show", "order-8").out
    assert "nothing is recorded yet" in out
    assert (
        "no live worker serves workflow 'order': start one with `holdfast worker MODULE`, or run its program again"
        in out
    )


def test_show_names_the_dead_worker_that_holds_a_run_and_the_intent_it_left(history: Project):
    out = history.here("show", "payer").out
    assert re.search(r"^held by +worker \d+ \(\S+:\d+\), which is dead: the next worker takes it over$", out, re.M)
    assert re.search(r"^ +2  \w+  `once` step, intent recorded .*: if its worker dies, it is not run again", out, re.M)
    assert "no live worker serves workflow 'payer'" in out


def test_show_prints_the_holder_of_a_run_and_the_progress_of_its_step(seeded: Project):
    seeded.start("copier")
    worker = seeded.worker("app:copier")
    try:
        wait_until_sync(lambda: "progress" in seeded.here("show", "copier").out)
        out = seeded.here("show", "copier").out
        assert re.search(rf"^held by +worker \d+ \(\S+:{worker.pid}\), alive$", out, re.M)
        assert "progress {'rows': 3}" in out
        assert "no live worker" not in out
    finally:
        worker.kill()
        worker.communicate(timeout=20)
    assert re.search(rf"^held by .*:{worker.pid}\), which is dead", seeded.here("show", "copier").out, re.M)


def test_show_says_why_a_run_is_dead_and_what_to_do(history: Project):
    out = history("show", "crasher").out
    assert re.search(r"^state +dead", out, re.M)
    assert "died 3 times while this was the only run it held" in out
    assert "holdfast retry crasher" in out


def test_show_lists_signals_that_nothing_has_taken_yet(seeded: Project):
    assert seeded.here("signal", "order-7", "other", '{"by": "ann"}').code == 0
    out = seeded.here("show", "order-7").out
    assert re.search(r"^waits for +signal 'approved'", out, re.M)
    assert "other = {'by': 'ann'}, sent" in out


def test_show_as_json_has_everything(history: Project):
    run = history.here("show", "etl-acme", "--json").json
    assert (run["id"], run["state"], run["inputs"], run["output"]) == (
        "etl-acme",
        "completed",
        {"customer": "acme"},
        {"sum": 6},
    )
    assert [one["kind"] for one in run["journal"]] == ["step", "timer", "step", "step", "step", "step"]
    assert [one["number"] for one in run["journal"]][:2] == [1, 1]
    assert run["journal"][0]["output"] == [1, 2, 3]
    assert run["journal"][0]["replay_count"] == 0
    assert [worker["is_alive"] for worker in run["workers"] if worker["id"] == run["journal"][0]["worker_id"]] == [
        False
    ]

    payer = history.here("show", "payer", "--json").json
    assert [(one["number"], one["is_once"]) for one in payer["in_flight"]] == [(2, True)]
    assert payer["stall_reason"].startswith("no live worker serves workflow 'payer'")

    failed = history.here("show", "etl-bad", "--json").json
    assert failed["error"]["type"] == "builtins.ValueError"
    assert "in check" in failed["journal"][-1]["error"]["traceback"]


def test_an_unknown_id_suggests_ids_like_it(history: Project):
    done = history.here("show", "etl-acm")
    assert (done.code, done.out) == (1, "")
    assert "there is no run 'etl-acm'" in done.err
    assert "Did you mean etl-acme" in done.err
    assert "`holdfast runs` lists those" in history.here("show", "zzz").err


def test_show_prints_the_runs_that_a_run_started(relatives: Project):
    out = relatives.here("show", "small").out
    assert re.search(r"^ +1  start nap .* ok\n +run 'nap-3600', now (pending|waiting)$", out, re.M)
    assert re.search(r"^ +3  child leaf .* ok\n +run 'small-leaf-0'$", out, re.M)
    listed = out[out.index("runs it started or waited for") :]
    assert re.search(r"^ +nap-3600 +nap +(pending|waiting)$", listed, re.M)
    assert re.search(r"^ +small-leaf-1 +leaf +completed$", listed, re.M)
    assert re.search(r"^parent +small$", relatives.here("show", "small-leaf-0").out, re.M)


def test_show_sums_up_many_runs(relatives: Project):
    out = relatives.here("show", "many").out
    assert re.search(r"^3…22  child leaf ×20 .* ok, the last at \+", out, re.M)
    assert "      22 runs: 21 completed, 1 " in out
    assert "`holdfast runs --parent many`" in out
    # The two that it joined are listed as well.
    assert re.search(r"^ +nap-0 +nap +completed  \(not started by it\)$", relatives.here("show", "broken").out, re.M)


def test_show_prints_what_was_undone_and_what_a_retry_would_do(relatives: Project):
    out = relatives.here("show", "trip-bad").out
    assert re.search(r"^ +3  undoing: release +\+[\d.]+ ms +[\d.]+ ms +\d+  ok\n +room='room in rome'$", out, re.M)
    assert re.search(r'File ".*app.py", line \d+, in check\n +raise ValueError', out), "the step that failed first"
    assert re.search(r"^retry +not possible: its compensations have undone what it had done$", out, re.M)
    assert re.search(r"^fork +`holdfast fork trip-bad --at STEP` goes on from one of its steps", out, re.M)

    broken = relatives.here("show", "broken").out
    assert re.search(r"^ +5  child leaf .* failed\n +run 'broken-leaf-2'\n +ValueError: ", broken, re.M)
    output = "`holdfast retry broken` takes back the end of child 5 (leaf); run 'broken-leaf-2' is retried as well"
    assert f"retry      {output}\n" in broken
    mailer = relatives.here("show", "mailer").out
    assert "retry      takes back step 1 (letter). A `once` step would run a second time: check whether" in mailer
    assert "`holdfast retry mailer --run-again`" in mailer
    assert "\nretry " not in relatives.here("show", "small").out


def test_show_prints_large_values_by_their_size(relatives: Project):
    out = relatives.here("show", "large").out
    assert len(out) < 2000
    assert re.search(r"^result +2.9 MiB, see it with --json: 'yyy", out, re.M)
    assert re.search(r"^ +1  fill .* ok, 2.9 MiB$", out, re.M)


def test_show_as_json_has_related_runs_and_retries(relatives: Project):
    small = relatives.here("show", "small", "--json").json
    assert [one["id"] for one in small["related_runs"]] == ["nap-3600", "nap-0", "small-leaf-0", "small-leaf-1"]
    assert {one["parent"] for one in small["related_runs"]} == {"small"}
    assert [(one["kind"], one["related_run_id"]) for one in small["journal"]][::3] == [
        ("start", "nap-3600"),
        ("child", "small-leaf-1"),
    ]
    assert (small["parent"], small["forked_from"], small["is_paused"], small["cancel_state"], small["retry"]) == (
        None, None, False, None, None,
    )  # fmt: skip
    broken = relatives.here("show", "broken", "--json").json
    assert (broken["retry"]["is_possible"], broken["retry"]["needs_run_again"]) == (True, False)
    assert relatives.here("show", "mailer", "--json").json["retry"]["needs_run_again"] is True
    assert broken["journal"][-1]["error"]["type"] == "builtins.ValueError"
    assert broken["retry"]["rewound_seqs"] == [broken["journal"][-1]["seq"]]
    trip = relatives.here("show", "trip-bad", "--json").json
    assert (trip["retry"]["is_possible"], trip["journal"][-1]["kind"]) == (False, "compensation")
