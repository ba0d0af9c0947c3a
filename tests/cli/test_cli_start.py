"""``holdfast start``: a run of a workflow that a worker has announced, and its result."""

from __future__ import annotations

import pytest
from cli_project import Project


def read_inputs(project: Project, run_id: str) -> object:
    return project.here("show", run_id, "--json").json["inputs"]


def test_a_run_is_started_for_whichever_worker_serves_it(seeded: Project):
    done = seeded.here("start", "order", "number=12", "--tag", "eu", "--tag", "big", "--queue", "later")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "run 'order-12' of workflow 'order' is pending"
    assert "holdfast worker" in done.out, "nobody serves it"
    [run] = seeded.here("runs", "--tag", "big", "--json").json
    assert (run["id"], run["tags"], run["queue"]) == ("order-12", ["eu", "big"], "later")
    again = seeded.here("start", "order", "12", "--json").json
    assert (again["id"], again["state"]) == ("order-12", "pending")
    assert "no live worker" in again["stall_reason"]


@pytest.mark.parametrize(
    "words",
    [
        ["family", "small", "3"],
        ["family", "name=small", "count=3"],
        ["family", "small", "count=3"],
        ["family", "--inputs", '{"name": "small", "count": 3}'],
        ["family", "--inputs", '["small", 3]'],
    ],
)
def test_inputs_are_given_in_order_by_name_or_all_at_once(seeded: Project, words: list[str]):
    done = seeded.here("start", *words, "--id", "given", "--delay", "2h", "--json")
    assert done.code == 0, done.err
    assert read_inputs(seeded, done.json["id"]) == {"name": "small", "count": 3}


def test_a_sentence_with_an_equals_sign_is_no_name(seeded: Project):
    done = seeded.here("start", "etl", "what is 1+1=?", "--json")
    assert read_inputs(seeded, done.json["id"]) == {"customer": "what is 1+1=?"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["order", "number=lots"], "input 'number' must be an integer, not a string"),
        (["order", "lots"], "input 'number' must be an integer, not a string"),
        (["order"], "input 'number' is missing: it must be an integer"),
        (["order", "--inputs", '{"number": "7"}'], "input 'number' must be an integer, not a string"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_and_use_up_no_id(seeded: Project, words: list[str], fault: str):
    before = seeded.here("runs", "--json").json
    done = seeded.here("start", *words, "--id", "typo")
    assert (done.code, done.out) == (1, "")
    assert fault in done.err
    assert seeded.here("runs", "--json").json == before
    assert seeded.here("start", "order", "number=500", "--id", "typo").code == 0
    assert read_inputs(seeded, "typo") == {"number": 500}


@pytest.mark.parametrize("words", [["500"], ["customer=500"], ["customer=true"], ["null"]])
def test_a_text_that_looks_like_something_else_stays_one_where_a_text_is_wanted(seeded: Project, words: list[str]):
    done = seeded.here("start", "etl", *words, "--json")
    assert done.code == 0, done.err
    assert read_inputs(seeded, done.json["id"]) == {"customer": words[0].removeprefix("customer=")}


def test_with_wait_stdout_has_only_the_result(seeded: Project):
    worker = seeded.worker("app:etl")
    try:
        done = seeded.here("start", "etl", "new", "--wait")
        assert (done.code, done.out) == (0, '{\n  "sum": 6\n}\n')
        assert done.err.startswith("run 'etl-new' of workflow 'etl' is ")
        (seeded.folder / "mended").touch()
        data = seeded.here("start", "etl", "bad", "--id", "retold", "--wait", "--json").json
        assert (data["id"], data["state"], data["output"], data["error"]) == ("retold", "completed", {"sum": 6}, None)
        (seeded.folder / "mended").unlink()
        failed = seeded.here("start", "etl", "bad", "--id", "fails", "--wait")
        assert (failed.code, failed.out) == (1, "")
        assert "run 'fails' of workflow 'etl' failed: ValueError" in failed.err
        as_json = seeded.here("start", "etl", "bad", "--id", "fails-too", "--wait", "--json")
        assert (as_json.code, as_json.json["state"], as_json.json["output"]) == (1, "failed", None)
        error = as_json.json["error"]
        assert error["type"] == "builtins.ValueError"
        assert "no such" in error["message"]
    finally:
        worker.terminate()
        worker.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["etx", "acme"], 1, "did you mean 'etl'?"),
        (["etl", "colour=red"], 1, "'colour'"),
        (["etl", "customer=a", "customer=b"], 2, "customer is given twice"),
        (["etl", "acme", "--inputs", "{}"], 2, "--inputs are all inputs"),
        (["etl", "--inputs", "7"], 2, "an object"),
        (["etl", "--inputs", "{"], 2, "--inputs is not JSON"),
        (
            ["etl", "acme", "--delay", "soon"],
            2,
            "'soon' is not a duration: use seconds, a timedelta, or text",
        ),
        (["etl", "acme", "--priority", str(2**40)], 1, "priority="),
        (["order", "7", "--id", "etl-acme"], 1, "etl-acme"),
        (["etl", "bad"], 1, "`holdfast retry etl-bad"),
    ],
)
def test_a_start_that_is_refused_explains_why(seeded: Project, words: list[str], code: int, says: str):
    done = seeded.here("start", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err
